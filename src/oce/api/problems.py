"""From pydantic's errors to the documented details: a JSON Pointer and one of seven codes, and one sentence for people.

The sentence names at most three problems and counts the rest; equal problems are told once; a long path is shortened before any
wording is cut (reference/control-plane.md §2.3). Pydantic puts the tag of a union into its path; the submitted document decides which
parts of a path are real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oce.api.errors import DETAILS_MAX, MESSAGE_MAX, ApiError, Problem, pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SHOWN: Final = 3
_PATH_SHOWN: Final = 48

_CODES: Final = {
    "missing": ("REQUIRED", "is required"),
    "extra_forbidden": ("UNKNOWN_FIELD", "is not a field here"),
    "string_too_short": ("INVALID_FORMAT", "is too short"),
    "string_too_long": ("TOO_LONG", "is too long"),
    "too_long": ("TOO_LONG", "has too many entries"),
    "too_short": ("INVALID_VALUE", "has too few entries"),
    "string_pattern_mismatch": ("INVALID_FORMAT", "does not have the required form"),
    "literal_error": ("INVALID_VALUE", "is not one of the allowed values"),
    "enum": ("INVALID_VALUE", "is not one of the allowed values"),
    "union_tag_invalid": ("INVALID_VALUE", "is not one of the allowed values"),
    "union_tag_not_found": ("REQUIRED", "is required"),
    "greater_than_equal": ("INVALID_VALUE", "is too small"),
    "less_than_equal": ("INVALID_VALUE", "is too large"),
    "json_invalid": ("INVALID_FORMAT", "is not a JSON document"),
    "datetime_parsing": ("INVALID_FORMAT", "is not a timestamp"),
    "datetime_from_date_parsing": ("INVALID_FORMAT", "is not a timestamp"),
    "timezone_aware": ("INVALID_FORMAT", "is not a timestamp with a time zone"),
    "REQUIRED": ("REQUIRED", "is required"),
    "INVALID_TYPE": ("INVALID_TYPE", "has the wrong type"),
    "INVALID_FORMAT": ("INVALID_FORMAT", "does not have the required form"),
    "INVALID_VALUE": ("INVALID_VALUE", "is not acceptable"),
    "TOO_LONG": ("TOO_LONG", "is too long"),
}
"""Pydantic's error type (or a detail code that one of our validators raised) to the detail code and its wording."""


def _kind(error_type: str) -> tuple[str, str]:
    if error_type in _CODES:
        return _CODES[error_type]
    if error_type.endswith(("_type", "_parsing")):
        return "INVALID_TYPE", "has the wrong type"
    return "INVALID_VALUE", "is not acceptable"


def real_path(location: Sequence[str | int], document: object) -> tuple[str | int, ...]:
    """Drop the parts of pydantic's path that are union tags: those that the document does not have (the last part may be missing)."""
    path: list[str | int] = []
    here = document
    for index, part in enumerate(location):
        if part == "[key]":
            break
        inside = (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if inside:
            path.append(part)
            here = here[part]  # type: ignore[index] # `inside` says that it can be indexed so
        elif index == len(location) - 1 and isinstance(here, dict):
            path.append(part)
    return tuple(path)


def _locate(error: Mapping[str, Any], document: object) -> str:
    place, *rest = error["loc"] or ("body",)
    if place == "body":
        path = real_path(rest, document)
        if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            path = (*path, str(error.get("ctx", {}).get("discriminator", "")).strip("'"))
        return pointer(path)
    return pointer((place, *rest))


def from_pydantic(errors: Iterable[Mapping[str, Any]], document: object) -> ApiError:
    """Return the INVALID_REQUEST answer for validation errors of pydantic."""
    found: list[Problem] = []
    for error in errors:
        code, words = _kind(error["type"])
        if error["type"] == "string_too_short" and error.get("ctx", {}).get("min_length") == 1:
            code, words = "REQUIRED", "is empty"
        problem = Problem(_locate(error, document), code, words)
        if problem not in found:
            found.append(problem)
    return refuse(found)


def _shorten(path: str) -> tuple[str, bool]:
    """Return a path that fits a message and whether whole segments at its end were dropped."""
    if not path:
        return "the body", False
    if len(path) <= _PATH_SHOWN:
        return path, False
    kept = ""
    for segment in path.split("/")[1:]:
        if len(kept) + len(segment) + 1 > _PATH_SHOWN - 2:
            break
        kept += f"/{segment}"
    return (f"{kept}/…", True) if kept else (f"{path[: _PATH_SHOWN - 1]}…", False)


def refuse(problems: Sequence[Problem]) -> ApiError:
    """Return the INVALID_REQUEST answer for these problems."""
    told = []
    for problem in problems[:_SHOWN]:
        shown, inside = _shorten(problem.path)
        words = problem.words or _kind(problem.code)[1]
        told.append(f"{shown}: a field inside {words}" if inside else f"{shown} {words}")
    rest = len(problems) - len(told)
    end = f"; and {rest} more." if rest else "."
    text = "; ".join(told)
    room = MESSAGE_MAX - len(end)
    if len(text) > room:
        text = text[: room - 1] + "…"
    return ApiError("INVALID_REQUEST", text + end, problems=problems[:DETAILS_MAX])
