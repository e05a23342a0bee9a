"""Checks that several use cases share; each answers with details that name a path and never a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.refusals import Detail
from oce.core.errors import InvalidRequest, PreconditionFailed
from oce.domain.ids import IdKind, is_id
from oce.domain.names import name_problem

if TYPE_CHECKING:
    from collections.abc import Iterable


def refuse(details: Iterable[Detail]) -> None:
    """Raise InvalidRequest when there is anything wrong. The message shows the first three by path."""
    listed = tuple(details)
    if not listed:
        return
    shown = [f"{one.path or '/'}: {one.note or one.code}" for one in listed[:3]]
    rest = f" and {len(listed) - 3} more" if len(listed) > len(shown) else ""
    raise InvalidRequest(f"{'; '.join(shown)}{rest}", details=listed)


def name(value: str, path: str = "/name") -> None:
    """Raise InvalidRequest unless `value` can be a resource name (1…200 code points, trimmed, no control characters)."""
    problem = name_problem(value)
    if problem is not None:
        refuse((Detail(path, problem),))
    if any(is_id(kind, value) for kind in IdKind):
        refuse((Detail(path, "INVALID_VALUE", "a name must not look like an id"),))


def generation(current: int, expected: int | None) -> None:
    """Raise PreconditionFailed when `If-Match` names another generation."""
    if expected is not None and expected != current:
        raise PreconditionFailed(
            f"The current generation is {current}; the request expected {expected}."
        )
