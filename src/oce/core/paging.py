"""Cursor pagination: a page continues after the last element's sort key, so that inserts and deletes never shift it.

A cursor is opaque to clients: base64url of the list's name and the key. It carries no authority (every element is authorized
again), so it is not signed; one of another list or a damaged one is refused.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from oce.contracts.refusals import Detail
from oce.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 200
_CURSOR_MAX: Final = 1024
_CURSOR_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class PageRequest:
    """At most `limit` (1…200) elements after `cursor`."""

    limit: int = LIMIT_DEFAULT
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page; `next_cursor` None means that the list ends here."""

    items: tuple[T, ...]
    next_cursor: str | None = None


Key = tuple[str, str]


def encode(listing: str, key: Key) -> str:
    """Return the cursor of a key."""
    raw = json.dumps([listing, *key], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(listing: str, cursor: str) -> Key:
    """Return the key of a cursor. Raises InvalidRequest for another list's or a damaged one."""
    known = _parsed(cursor)
    if known is None or known[0] != listing:
        raise InvalidRequest(
            "The cursor is not one of this list.", details=(Detail("/cursor", "INVALID_VALUE"),)
        )
    return known[1], known[2]


def _parsed(cursor: str) -> tuple[str, str, str] | None:
    if len(cursor) > _CURSOR_MAX or not cursor.isascii():
        return None
    try:
        raw = base64.b64decode(
            cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        )
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and len(document) == _CURSOR_PARTS:
        name, first, second = document
        if isinstance(name, str) and isinstance(first, str) and isinstance(second, str):
            return name, first, second
    return None


async def collect(
    listing: str,
    page: PageRequest,
    fetch: Callable[[Key, int], Awaitable[Sequence[T]]],
    key: Callable[[T], Key],
    visible: Callable[[Sequence[T]], Awaitable[Sequence[bool]]],
) -> Page[T]:
    """Fill a page with what the caller may see, reading further while hidden elements take up room.

    `fetch(after, count)` returns elements in key order. Raises InvalidRequest for a limit outside 1…200 or a bad cursor.
    """
    if not 1 <= page.limit <= LIMIT_MAX:
        raise InvalidRequest(details=(Detail("/limit", "INVALID_VALUE", f"1 to {LIMIT_MAX}"),))
    after: Key = decode(listing, page.cursor) if page.cursor else ("", "")
    found: list[T] = []
    while True:
        batch = await fetch(after, page.limit + 1)
        shown = await visible(batch)
        for element, allowed in zip(batch, shown, strict=True):
            if not allowed:
                continue
            if len(found) == page.limit:
                return Page(tuple(found), encode(listing, key(found[-1])))
            found.append(element)
        if len(batch) <= page.limit:
            return Page(tuple(found))
        after = key(batch[-1])
