"""Which names belong to many: the public suffix list, as far as an Agent's wildcard is concerned.

Under a public suffix (`com`, `co.uk`, `github.io`) anybody can have a name, so a wildcard directly over one reaches strangers. The list
comes with the package `publicsuffixlist` and is as old as its pinned version: it is asked when a policy is admitted, never again for an
admitted one. Nothing here asks the network.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from publicsuffixlist import PSLFILE, PublicSuffixList


def is_public_suffix(name: str) -> bool:
    """Tell whether anybody can have a name directly under `name`; an unknown top-level label counts as one."""
    return bool(_list().is_public(name))


def holds_public_suffix(name: str) -> bool:
    """Tell whether a public suffix lies below `name`, as `s3.amazonaws.com` below `amazonaws.com`."""
    return any(suffix.endswith(f".{name}") for suffix in _suffixes())


@cache
def _list() -> PublicSuffixList:
    return PublicSuffixList()


@cache
def _suffixes() -> frozenset[str]:
    lines = Path(PSLFILE).read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("//"))
