"""Globs of the policy language: hosts by labels, paths and programs by segments.

`*` stands for any run of characters inside one label or segment, `**` for any run across them, `?` for one character. This is
not `fnmatch`, whose `*` crosses separators, and there are no character classes. Overlap of two globs is judged by
intersection of what they match, never by comparing their text.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

HOST_SEPARATOR = "."
PATH_SEPARATOR = "/"

_ONE = "\0one"
_STAR = "\0star"
_GLOBSTAR = "\0globstar"


def is_glob(pattern: str) -> bool:
    """Say whether the pattern can match more than its own text."""
    return "*" in pattern or "?" in pattern


@lru_cache(maxsize=4096)
def _regex(pattern: str, separator: str) -> re.Pattern[str]:
    inside = f"[^{re.escape(separator)}]"
    parts = {_GLOBSTAR: ".*", _STAR: f"{inside}*", _ONE: inside}
    body = "".join(parts.get(token) or re.escape(token) for token in _tokens(pattern))
    return re.compile(body, re.DOTALL)


@lru_cache(maxsize=4096)
def _tokens(pattern: str) -> tuple[str, ...]:
    tokens: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            tokens.append(_GLOBSTAR)
            at += 2
            continue
        tokens.append({"*": _STAR, "?": _ONE}.get(pattern[at], pattern[at]))
        at += 1
    return tuple(tokens)


def glob_matches(pattern: str, text: str, separator: str) -> bool:
    """Match the whole text, case-sensitively."""
    if not is_glob(pattern):
        return pattern == text
    return _regex(pattern, separator).fullmatch(text) is not None


def globs_intersect(first: str, second: str, separator: str) -> bool:
    """Say whether some text matches both globs."""
    a, b = _tokens(first), _tokens(second)
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0)]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        i, j = state
        if i == len(a) and j == len(b):
            return True
        todo.extend(_steps(a, b, i, j, separator))
    return False


def _steps(
    a: tuple[str, ...], b: tuple[str, ...], i: int, j: int, separator: str
) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    left = a[i] if i < len(a) else None
    right = b[j] if j < len(b) else None
    if left in (_STAR, _GLOBSTAR):
        steps.append((i + 1, j))
    if right in (_STAR, _GLOBSTAR):
        steps.append((i, j + 1))
    if left is not None and right is not None and _compatible(left, right, separator):
        steps.append(
            (
                i if left in (_STAR, _GLOBSTAR) else i + 1,
                j if right in (_STAR, _GLOBSTAR) else j + 1,
            )
        )
    return steps


def _compatible(left: str, right: str, separator: str) -> bool:
    if _GLOBSTAR in (left, right):
        return True
    inside = (_STAR, _ONE)
    if left in inside or right in inside:
        return separator not in (left, right)
    return left == right


@lru_cache(maxsize=4096)
def normal_host(host: str) -> str:
    """Return the one form in which hosts are compared: lower case, no trailing dot, IP literals compressed, no brackets."""
    text = host.strip().lower()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return text.removesuffix(".")


def is_address(host: str) -> bool:
    """Say whether the normalised host is an IP literal."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_matches(pattern: str, host: str) -> bool:
    """Match a normalised host. A glob never matches an IP literal: an address is allowed by its own text only."""
    wanted = normal_host(pattern)
    if not is_glob(wanted):
        return wanted == host
    return not is_address(host) and glob_matches(wanted, host, HOST_SEPARATOR)


def path_matches(pattern: str, path: str) -> bool:
    """Match a canonical path. Empty, `**` and `/**` match everything; `/v1/**` matches `/v1` and all below it."""
    if pattern in ("", "**", "/**"):
        return True
    if pattern.endswith("/**") and glob_matches(pattern[:-3], path, PATH_SEPARATOR):
        return True
    return glob_matches(pattern, path, PATH_SEPARATOR)


def binary_matches(pattern: str, binary: str) -> bool:
    """Match a program's kernel-resolved path; `/**` is any program."""
    return glob_matches(pattern, binary, PATH_SEPARATOR)
