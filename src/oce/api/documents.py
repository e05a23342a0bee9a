"""Reading a request body as strict JSON, before any schema sees it.

Python's parser accepts more than JSON does (NaN, duplicate keys, lone surrogates) and the database stores less than JSON allows (no
NUL), so both gaps are closed here, once, for every route: the first offender in document order is named by its pointer and never by
its value (reference/control-plane.md §2.3).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from oce.api.errors import ApiError, Problem, pointer

DEPTH_MAX: Final = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER_MAX: Final = 2**63 - 1


class _DuplicateError(ValueError):
    """Two members of one object have the same name."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateError
    return members


def _refuse_constant(_name: str) -> float:
    raise ValueError("not JSON")


def invalid(path: str, code: str, words: str) -> ApiError:
    """Return the refusal of a request for one problem."""
    where = path or "the request body"
    return ApiError(
        "INVALID_REQUEST",
        f"The request is not valid: {where}: {words}.",
        problems=[Problem(path, code, words)],
    )


def parse(raw: bytes) -> Any:  # noqa: ANN401 # a JSON document of any shape
    """Parse a body strictly. Raises ApiError INVALID_REQUEST."""
    try:
        document = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_refuse_constant
        )
    except _DuplicateError:
        raise invalid("", "INVALID_FORMAT", "an object names the same member twice") from None
    except RecursionError:
        raise invalid("", "TOO_DEEP", f"nested deeper than {DEPTH_MAX} levels") from None
    except UnicodeDecodeError:
        raise invalid("", "INVALID_FORMAT", "not UTF-8") from None
    except ValueError:
        raise invalid("", "INVALID_FORMAT", "not a JSON document") from None
    check(document)
    return document


def text_problem(text: str) -> tuple[str, str] | None:
    """Return the detail code and words for a text that cannot be kept, or None."""
    if "\x00" in text:
        return "INVALID_FORMAT", "holds a NUL character"
    if _SURROGATE.search(text):
        return "INVALID_VALUE", "holds a lone surrogate"
    return None


def check(document: object) -> None:
    """Walk a document in its own order and refuse the first thing that cannot be kept. Raises ApiError."""
    stack: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    while stack:
        path, value = stack.pop()
        if len(path) > DEPTH_MAX:
            raise invalid(
                pointer(path[:DEPTH_MAX]), "TOO_DEEP", f"nested deeper than {DEPTH_MAX} levels"
            )
        if isinstance(value, str):
            _check_text(path, value)
        elif isinstance(value, dict):
            for key in value:
                _check_text((*path, key), key)
            stack.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend(((*path, index), value[index]) for index in range(len(value) - 1, -1, -1))
        elif (isinstance(value, float) and not math.isfinite(value)) or (
            isinstance(value, int) and not isinstance(value, bool) and abs(value) > _INTEGER_MAX
        ):
            raise invalid(pointer(path), "INVALID_VALUE", "a number out of range")


def _check_text(path: tuple[str | int, ...], text: str) -> None:
    problem = text_problem(text)
    if problem is not None:
        raise invalid(pointer(path), *problem)
