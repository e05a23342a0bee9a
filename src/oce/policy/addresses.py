"""Which addresses may be dialled for an allowed name.

A name says nothing about where it leads, so every answer of the resolver is judged and the judged address is the one dialled.
Loopback, link-local, unspecified, multicast, reserved and metadata addresses are closed whatever a policy says. Private and
other special-purpose ranges need both the policy (`allowed_ips`) and the operator (a range opened in the gateway's own
configuration, which no RPC can set). Addresses that carry an IPv4 address are judged by it.

The table is spelled out instead of using `ipaddress.is_global`, whose answer differs between Python releases.
Source: reference/openshell-gateway.md c.5; IANA special-purpose registries.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MIN_PREFIX = {4: 8, 6: 16}
"""Shortest prefix of an allowed range by IP version; anything wider is a catch-all."""

_CLOSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "unspecified"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("100.100.100.200/32", "metadata"),
    ("168.63.129.16/32", "metadata"),
    ("192.0.0.192/32", "metadata"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
    ("fd00:ec2::/32", "metadata"),
    ("2002::/16", "6to4"),
    ("2001::/32", "Teredo"),
    ("64:ff9b:1::/48", "local NAT64"),
)
_SPECIAL: tuple[tuple[str, str], ...] = (
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignment"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("fc00::/7", "unique local"),
    ("2001::/23", "protocol assignment"),
    ("2001:db8::/32", "documentation"),
    ("3fff::/20", "documentation"),
    ("100::/64", "discard"),
    ("5f00::/16", "segment routing"),
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")


def _table(rows: Iterable[tuple[str, str]]) -> list[tuple[Network, str]]:
    return [(ipaddress.ip_network(text), kind) for text, kind in rows]


_CLOSED_NETWORKS = _table(_CLOSED)
_SPECIAL_NETWORKS = _table(_SPECIAL)


def effective_address(text: str) -> Address:
    """Parse an address (zone ignored) and unwrap IPv4-mapped, IPv4-compatible and NAT64 forms. Raises ValueError."""
    address = ipaddress.ip_address(text.split("%", 1)[0])
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    small = int(address) <= 1
    if address in _NAT64 or (address in _COMPATIBLE and not small):
        return embedded
    return address


def closed_kind(address: Address | Network) -> str | None:
    """Name the always-closed kind of an address, or of any part of a range."""
    return _kind(_CLOSED_NETWORKS, address)


def special_kind(address: Address | Network) -> str | None:
    """Name the special-purpose kind of an address that is not global unicast."""
    kind = _kind(_SPECIAL_NETWORKS, address)
    if kind is None and isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return "not global unicast"
    return kind


def _kind(table: Iterable[tuple[Network, str]], where: Address | Network) -> str | None:
    for network, kind in table:
        if network.version != where.version:
            continue
        if isinstance(where, ipaddress.IPv4Address | ipaddress.IPv6Address):
            if where in network:
                return kind
        elif where.overlaps(network):
            return kind
    return None


@lru_cache(maxsize=1024)
def parse_ranges(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Parse addresses and CIDR ranges. Raises ValueError."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def refusal(
    text: str, *, allowed: Sequence[str] = (), opened: Sequence[Network] = ()
) -> str | None:
    """Say why an address must not be dialled, or None.

    `allowed` are the deciding endpoints' `allowed_ips` (empty: any global unicast), `opened` the operator's ranges.
    """
    try:
        address = effective_address(text)
    except ValueError:
        return "not an address"
    kind = closed_kind(address)
    if kind is not None:
        return f"{kind} address"
    if allowed and not any(address in network for network in parse_ranges(tuple(allowed))):
        return "address outside allowed_ips"
    kind = special_kind(address)
    if kind is None or (allowed and any(address in network for network in opened)):
        return None
    missing = "that the operator has not opened" if allowed else "without allowed_ips"
    return f"{kind} address {missing}"
