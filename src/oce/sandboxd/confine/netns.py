"""The network of one Sandbox, made from inside its fresh namespace: every address is local, and we hold the listeners.

AnyIP: a `local default` route on the loopback device makes every IPv4 and IPv6 address an address of this namespace. A
connection to any host arrives at a listener that the egress process serves; what nobody listens on is refused at once. There is
no other device, so nothing can leave, whatever fails. rtnetlink is spoken directly, because starting `ip` costs more than the
whole set-up. Sources: the confinement recipe §1.2; rtnetlink(7), RFC 3549.

Everything but `set_up`, `redirect_all` and `listeners` is pure.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import subprocess

OWN_IPV4 = "198.18.0.1"
OWN_IPV6 = "fd7a:5bcd::1"
"""Addresses of the Sandbox itself. glibc's AI_ADDRCONFIG ignores 127.0.0.1 and ::1, so an own address must exist."""

CATCH_ALL_PORT = 1
LISTENED_PORTS = (443, 80, 53, CATCH_ALL_PORT)
"""All below 1024: nobody inside has a capability in this namespace, so nobody inside can bind or steal them."""

_LOOPBACK_INDEX = 1
_RTM_NEWADDR, _RTM_NEWROUTE = 20, 24
_REQUEST_ACK_CREATE = 0x405
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_NODAD = 2
"""Without it an IPv6 address is tentative for a second and no route may name it."""
_RTA_OIF, _RTA_PREFSRC = 4, 7
_RT_TABLE_LOCAL, _RTPROT_BOOT, _RTN_LOCAL = 255, 3, 2
_SCOPE_HOST, _SCOPE_UNIVERSE = 254, 0
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_NETLINK_SOCK_DIAG = 4
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78
_BACKLOG = 1024
_NFT_SECONDS = 5.0


def attribute(kind: int, data: bytes) -> bytes:
    """Return one netlink attribute, padded to four bytes."""
    length = 4 + len(data)
    return struct.pack("=HH", length, kind) + data + b"\0" * (-length % 4)


def message(kind: int, body: bytes) -> bytes:
    """Return one rtnetlink request that asks for an acknowledgement."""
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_ACK_CREATE, 1, 0) + body


def add_own_address(family: int) -> bytes:
    """Return the request for `ip addr add OWN dev lo`."""
    own = _own(family)
    header = struct.pack(
        "=BBBBI", family, len(own) * 8, _IFA_F_NODAD, _SCOPE_UNIVERSE, _LOOPBACK_INDEX
    )
    return message(_RTM_NEWADDR, header + attribute(_IFA_LOCAL, own) + attribute(_IFA_ADDRESS, own))


def add_any_address_route(family: int) -> bytes:
    """Return the request for `ip route add local default dev lo src OWN table local`."""
    scope = _SCOPE_HOST if family == socket.AF_INET else _SCOPE_UNIVERSE
    header = struct.pack(
        "=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_BOOT, scope, _RTN_LOCAL, 0
    )
    device = attribute(_RTA_OIF, struct.pack("=I", _LOOPBACK_INDEX))
    return message(_RTM_NEWROUTE, header + device + attribute(_RTA_PREFSRC, _own(family)))


def redirect_rules() -> str:
    """Return the nft program that sends every other TCP port to the catch-all listener.

    Loopback and the own addresses stay out of it, or the workload's own servers and the inbound connector would break.
    """
    kept = ", ".join(str(port) for port in LISTENED_PORTS if port != CATCH_ALL_PORT)
    return (
        "table inet oce {\nchain out {\ntype nat hook output priority -100; policy accept;\n"
        "ip daddr 127.0.0.0/8 return\n"
        f"ip daddr {OWN_IPV4} return\n"
        "ip6 daddr ::1 return\n"
        f"ip6 daddr {OWN_IPV6} return\n"
        f"tcp dport {{ {kept} }} return\n"
        f"meta l4proto tcp redirect to :{CATCH_ALL_PORT}\n"
        "}\n}\n"
    )


def _own(family: int) -> bytes:
    return socket.inet_pton(family, OWN_IPV4 if family == socket.AF_INET else OWN_IPV6)


def _ask(route: socket.socket, request: bytes, what: str) -> None:
    route.send(request)
    answer = route.recv(8192)
    (code,) = struct.unpack_from("=i", answer, 16)
    if code and -code != errno.EEXIST:
        raise OSError(-code, f"{what}: {os.strerror(-code)}")


def families() -> tuple[int, ...]:
    """Return the address families that this kernel has."""
    ipv6 = os.path.exists("/proc/sys/net/ipv6/conf/lo")  # noqa: PTH110 - pathlib would cost 5 ms at the start
    return (socket.AF_INET, socket.AF_INET6) if ipv6 else (socket.AF_INET,)


def set_up(wanted: tuple[int, ...]) -> None:
    """Bring loopback up and give it own addresses and the AnyIP routes. Raises OSError naming the step."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("=16sH14x", b"lo", _IFF_UP_RUNNING))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        for family in wanted:
            name = "IPv4" if family == socket.AF_INET else "IPv6"
            _ask(route, add_own_address(family), f"own {name} address")
            _ask(route, add_any_address_route(family), f"{name} AnyIP route")


def redirect_all(nft: str) -> str:
    """Install the redirect with the `nft` program; return an empty string, or why it is not in force.

    Not in force is safe: other ports are then refused by the kernel instead of being answered and logged.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the operator's nft, no shell
            [nft, "-f", "-"],
            input=redirect_rules().encode(),
            capture_output=True,
            env={},
            timeout=_NFT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return done.stderr.decode(errors="replace").strip()[:200] or f"nft exit {done.returncode}"
    return ""


def _stream_listener(family: int, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    # No SO_REUSEADDR and no SO_REUSEPORT: nobody may share these ports.
    listener.bind(("", port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)  # noqa: FBT003 - the method takes no keyword
    return listener


def _name_server_socket(family: int) -> socket.socket:
    server = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        # IPv6, unlike IPv4, refuses to answer from an AnyIP address without this.
        server.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    else:
        server.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    server.bind(("", 53))
    server.setblocking(False)  # noqa: FBT003 - the method takes no keyword
    return server


def listeners(wanted: tuple[int, ...]) -> list[tuple[str, socket.socket]]:
    """Return every socket of the namespace with its name: `tcp/<family>/<port>`, `udp/<family>`, `diag`."""
    made: list[tuple[str, socket.socket]] = []
    for family in wanted:
        made += [
            (f"tcp/{int(family)}/{port}", _stream_listener(family, port)) for port in LISTENED_PORTS
        ]
        made.append((f"udp/{int(family)}", _name_server_socket(family)))
    made.append(("diag", socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)))
    return made
