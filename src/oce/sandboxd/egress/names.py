"""Synthetic addresses: every name gets one, and nobody outside is asked for it.

A Sandbox resolves names only here. Each syntactically valid name is answered with addresses derived from the name by hash, so
that an answer cached by a client still means the same name after this process restarted. The name is recovered from what the
client says (SNI, Host) *and* must hash to the address it connected to; where a client says nothing, the names asked for lately
are the candidates, and only a single one counts.

IPv4 has few addresses, so two names may share one; that is harmless, since the address alone never decides.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections import OrderedDict

from oce.policy.match import is_address

MAX_NAMES = 4096
MAX_NAME = 253

_V4_FIRST = int.from_bytes(socket.inet_aton("198.18.1.0"))
_V4_COUNT = int.from_bytes(socket.inet_aton("198.20.0.0")) - _V4_FIRST
_V6_PREFIX = socket.inet_pton(socket.AF_INET6, "fd7a:5bcd:1::")[:6]
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


def valid_name(name: str) -> bool:
    """Say whether the lower-case name without trailing dot is a host name that may get an address."""
    labels = name.split(".")
    return (
        0 < len(name) <= MAX_NAME
        and all(_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdecimal()
    )


def address_v4(name: str) -> bytes:
    """Return the name's 4-byte address in 198.18.0.0/15."""
    digest = hashlib.sha256(b"oce-name\0" + name.encode()).digest()
    return (_V4_FIRST + int.from_bytes(digest[:8]) % _V4_COUNT).to_bytes(4)


def address_v6(name: str) -> bytes:
    """Return the name's 16-byte address in fd7a:5bcd::/32."""
    digest = hashlib.sha256(b"oce-name\0" + name.encode()).digest()
    return _V6_PREFIX + digest[8:18]


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)


def is_synthetic(address: str) -> bool:
    """Say whether the address is one that names are given."""
    packed = _packed(address)
    if len(packed) == len(_V6_PREFIX) + 10:
        return packed.startswith(_V6_PREFIX)
    return 0 <= int.from_bytes(packed) - _V4_FIRST < _V4_COUNT


def belongs(name: str, address: str) -> bool:
    """Say whether a client that connected to the address may have meant this name."""
    if is_address(name):
        return name == address
    packed = _packed(address)
    return packed in (address_v4(name), address_v6(name))


class RecentNames:
    """Names asked for lately, by address; bounded, the longest unasked is forgotten."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._by_address: dict[bytes, set[str]] = {}

    def remember(self, name: str) -> bool:
        """Note a name; True if it was not known."""
        if name in self._names:
            self._names.move_to_end(name)
            return False
        self._names[name] = None
        for address in (address_v4(name), address_v6(name)):
            self._by_address.setdefault(address, set()).add(name)
        if len(self._names) > MAX_NAMES:
            self._forget(self._names.popitem(last=False)[0])
        return True

    def _forget(self, name: str) -> None:
        for address in (address_v4(name), address_v6(name)):
            names = self._by_address[address]
            names.discard(name)
            if not names:
                del self._by_address[address]

    def only(self, address: str) -> str | None:
        """Return the one name of an address, None if there is none or more than one."""
        names = self._by_address.get(_packed(address), ())
        return next(iter(names)) if len(names) == 1 else None
