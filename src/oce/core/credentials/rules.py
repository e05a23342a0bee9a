"""Rules of credential sources, pure (reference/control-plane.md §5.5)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import Detail
from oce.domain.resources import SOURCE_CONFIG_MAX, SOURCE_SECRETS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from oce.contracts.credential_gateway import SourceType

EFFECT_TIMEOUT: Final = 30.0
"""Seconds after which we stop waiting for the gateway; a Driver ends any effect of an aborted call within as many again."""
LATE_EFFECT: Final = timedelta(seconds=70)
"""How long after sending an effect whose answer we never heard it may still land."""
_FIELD: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VALUE_MAX: Final = 2048


def draft_problems(
    source_type: str,
    config: Mapping[str, str],
    secrets: Mapping[str, str],
    catalogue: Sequence[SourceType],
) -> tuple[Detail, ...]:
    """Return what is wrong with a new source, before any Secret is looked at."""
    offered = {one.id: one for one in catalogue}
    chosen = offered.get(source_type)
    if chosen is None:
        known = ", ".join(sorted(offered))
        return (Detail("/type", "INVALID_VALUE", f"this installation offers: {known}"),)
    problems: list[Detail] = []
    if len(config) > SOURCE_CONFIG_MAX:
        problems.append(Detail("/config", "TOO_LONG", f"at most {SOURCE_CONFIG_MAX} settings"))
    allowed = {*chosen.required_config, *chosen.optional_config}
    for key, value in config.items():
        if _FIELD.fullmatch(key) is None:
            problems.append(Detail("/config", "INVALID_FORMAT", "a setting's name is malformed"))
        elif key not in allowed:
            problems.append(Detail(f"/config/{key}", "UNKNOWN_FIELD"))
        elif not 1 <= len(value) <= _VALUE_MAX:
            problems.append(Detail(f"/config/{key}", "TOO_LONG", f"1 to {_VALUE_MAX} characters"))
    problems += [
        Detail(f"/config/{key}", "REQUIRED") for key in chosen.required_config if key not in config
    ]
    return (*problems, *secret_problems(secrets, chosen))


def secret_problems(secrets: Mapping[str, str], chosen: SourceType) -> tuple[Detail, ...]:
    """Return what is wrong with the fields that name Secrets."""
    if len(secrets) > SOURCE_SECRETS_MAX:
        return (Detail("/secrets", "TOO_LONG", f"at most {SOURCE_SECRETS_MAX} fields"),)
    missing = [
        Detail(f"/secrets/{f}", "REQUIRED") for f in chosen.secret_fields if f not in secrets
    ]
    unknown = [
        Detail(f"/secrets/{f}" if _FIELD.fullmatch(f) else "/secrets", "UNKNOWN_FIELD")
        for f in secrets
        if f not in chosen.secret_fields
    ]
    return (*missing, *unknown)


def may_still_land(effect_at: datetime | None, now: datetime) -> bool:
    """Tell whether an effect that was never answered may still arrive at the gateway."""
    return effect_at is not None and now - effect_at < LATE_EFFECT
