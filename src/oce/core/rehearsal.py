"""Dry run: the same use case, stopped where its first effect would be.

`rehearse(platform)` is the one mechanism. A use case validates, asks for permission, lets Drivers judge, and writes; on a rehearsing
platform the first write (a commit, or a value handed to a Driver that keeps it) ends it with `Rehearsed` instead. Denials are
recorded for real: who tries what is not allowed is heard, dry or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from oce.store.rehearsal import Rehearsal, Rehearsed

if TYPE_CHECKING:
    from oce.core.platform import Platform

__all__ = ("Rehearsed", "rehearse")

_WRITES = frozenset(
    ("create", "update", "delete", "write", "register_source", "update_source", "remove_source")
)
"""Members of the Secret, Configuration and Credential Gateway contracts that change something."""


class _Untouched:
    """A Driver whose reading members are the real one's."""

    def __init__(self, driver: object) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever member the contract has
        return _stop if name in _WRITES else getattr(self._driver, name)


async def _stop(*_args: object, **_given: object) -> NoReturn:
    raise Rehearsed


def rehearse(platform: Platform) -> Platform:
    """Return a platform on which a use case changes nothing and ends with `Rehearsed` once it would."""
    drivers = platform.drivers
    gateway = drivers.credential_gateway
    return replace(
        platform,
        db=Rehearsal(platform.db),
        denials=platform.db,
        drivers=replace(
            drivers,
            secret=cast("Any", _Untouched(drivers.secret)),
            configuration=cast("Any", _Untouched(drivers.configuration)),
            credential_gateway=None if gateway is None else cast("Any", _Untouched(gateway)),
        ),
    )
