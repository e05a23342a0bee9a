"""One served Sandbox: its listeners, its policy and bindings in force, its caps, and its notes of what was decided.

It accepts connections and answers DNS; what happens to a connection is `arrival`'s and `exchange`'s part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oce.policy.decide import NO_RULE, Connection, Judge
from oce.policy.match import is_glob, normal_host
from oce.sandboxd.egress.arrival import Arrival
from oce.sandboxd.egress.dns import MAX_QUERY, answer
from oce.sandboxd.egress.identity import Identifier
from oce.sandboxd.egress.model import Decision
from oce.sandboxd.egress.names import RecentNames, valid_name
from oce.sandboxd.egress.pipe import Pipe
from oce.sandboxd.egress.swap import Swapper
from oce.sandboxd.egress.upstream import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.policy.model import Verdict
    from oce.sandboxd.egress.authority import Authority
    from oce.sandboxd.egress.decisions import DecisionHub
    from oce.sandboxd.egress.denial import Denial
    from oce.sandboxd.egress.exchange import Origin
    from oce.sandboxd.egress.model import SandboxEgress
    from oce.sandboxd.egress.upstream import Dialer
    from oce.sandboxd.egress.vault import Vault
    from oce.sandboxd.place import EgressDescriptors

log = logging.getLogger(__name__)

ACCEPT_BATCH = 64
SWEEP_SECONDS = 10.0
DNS_TCP_SECONDS = 10.0
DNS_PORT = 53

_RESET = struct.pack("ii", 1, 0)
_LENGTH = 2
_IP_PKTINFO = 8
_IPV6_FREEBIND = 78
_PACKET_INFO_V4 = struct.Struct("I4s4s")


class ServedSandbox:
    """Owns the descriptors of one Sandbox's namespace until `close`."""

    def __init__(
        self,
        config: SandboxEgress,
        descriptors: EgressDescriptors,
        *,
        authority: Authority,
        vault: Vault,
        dialer: Dialer,
        hub: DecisionHub,
        max_connections: int,
    ) -> None:
        self.authority = authority
        self.dialer = dialer
        self.names = RecentNames()
        self.pool = Pool()
        self._vault = vault
        self._hub = hub
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[int, tuple[tuple[Pipe, ...], Connection]] = {}
        self._overflowing = False
        self._configure(config)
        self._adopt(descriptors)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # configuration

    def _configure(self, config: SandboxEgress) -> None:
        self.config = config
        self.judge = Judge(config.policy)
        self.swapper = Swapper(config.bindings, self._vault)
        # A client may hold a cached address of a name from before a restart; exact names are known from the policy.
        for rule in config.policy.rules:
            for endpoint in rule.endpoints:
                host = normal_host(endpoint.host)
                if valid_name(host) and not is_glob(host):
                    self.names.remember(host)

    def update(self, config: SandboxEgress) -> None:
        """Put a newer generation in force: idle connections go, whatever is no longer allowed ends."""
        if config.generation < self.config.generation:
            return
        self._configure(config)
        self.identifier.remount(config.mounts)
        self.pool.close()
        for pipes, connection in list(self._serving.values()):
            if not self.judge.connection(connection).allowed:
                for pipe in pipes:
                    pipe.abort()

    def replace_descriptors(self, descriptors: EgressDescriptors) -> None:
        """Serve on fresh descriptors; connections that were accepted live on."""
        self._release()
        self._adopt(descriptors)

    def _adopt(self, descriptors: EgressDescriptors) -> None:
        for family, datagram in descriptors.udp.items():
            datagram.setblocking(False)  # noqa: FBT003 - takes no keyword
            _want_packet_info(datagram, family)
        self.identifier = Identifier(descriptors.diag, descriptors.proc, self.config.mounts)
        self._listeners = dict(descriptors.tcp)
        self._datagrams = dict(descriptors.udp)
        self._ipv4 = any(family == socket.AF_INET for family, _ in self._listeners)
        self._ipv6 = any(family == socket.AF_INET6 for family, _ in self._listeners)
        for (_, port), listener in self._listeners.items():
            listener.setblocking(False)  # noqa: FBT003 - takes no keyword
            self._loop.add_reader(listener.fileno(), self._accept, listener, port)
        for datagram in self._datagrams.values():
            self._loop.add_reader(datagram.fileno(), self._datagram, datagram)

    def _release(self) -> None:
        for sock in (*self._listeners.values(), *self._datagrams.values()):
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self.identifier.close()

    async def close(self) -> None:
        """End everything of this Sandbox."""
        self._sweeper.cancel()
        self._release()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.pool.close()

    def _sweep(self) -> None:
        self.pool.sweep()
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # connections

    def _accept(self, listener: socket.socket, port: int) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, peer = listener.accept()
            except OSError:
                return
            if len(self._tasks) >= self._max_connections:
                self._overflow(sock)
                continue
            self._overflowing = False
            sock.setblocking(False)  # noqa: FBT003 - takes no keyword
            work = self._dns_stream(sock) if port == DNS_PORT else self._arrive(sock, peer, port)
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Forget a finished connection; what it did not expect is told by its type alone."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            where = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "connection failed: %s at %s:%s", type(error).__name__, where.filename, where.lineno
            )

    def _overflow(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()
        if not self._overflowing:
            self._overflowing = True
            self._publish(
                allowed=False,
                activity="NET:OPEN",
                connection=Connection("-", 0, ()),
                reason="too many connections are open",
            )

    async def _arrive(self, sock: socket.socket, peer: tuple[str, int], port: int) -> None:
        await Arrival(self, sock, (peer[0], peer[1]), port).serve()

    @contextmanager
    def serving(self, connection: Connection, *pipes: Pipe) -> Iterator[None]:
        """Register an allowed connection, so that a newer policy can end it."""
        key = id(pipes)
        self._serving[key] = (pipes, connection)
        try:
            yield
        finally:
            del self._serving[key]

    @staticmethod
    def allowed_ips(verdict: Verdict) -> tuple[str, ...]:
        """Return the ranges that may be dialled; empty (any global unicast) when some deciding endpoint sets none."""
        lists = [endpoint.allowed_ips for endpoint in verdict.endpoints]
        if not all(lists):
            return ()
        return tuple(sorted({item for ranges in lists for item in ranges}))

    # names

    def _datagram(self, sock: socket.socket) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                query, ancillary, _, peer = sock.recvmsg(MAX_QUERY, 256)
            except OSError:
                return
            reply = self._resolve(query)
            if reply is not None:
                with contextlib.suppress(OSError):
                    sock.sendmsg([reply], _from_asked(ancillary), 0, peer)

    def _resolve(self, query: bytes) -> bytes | None:
        reply = answer(query, ipv4=self._ipv4, ipv6=self._ipv6)
        if reply is None:
            return None
        if reply.name is not None and self.names.remember(reply.name):
            named = self.judge.names_host(reply.name)
            self._publish(
                allowed=named,
                activity="DNS:QUERY",
                connection=Connection(reply.name, DNS_PORT, ()),
                reason="" if named else f"no rule names {reply.name}; nothing was asked upstream",
            )
        return reply.message

    async def _dns_stream(self, sock: socket.socket) -> None:
        _, pipe = await self._loop.connect_accepted_socket(Pipe, sock)
        try:
            while True:
                while _message_missing(pipe.buffer):
                    if not await pipe.more(DNS_TCP_SECONDS):
                        return
                size = int.from_bytes(pipe.take(_LENGTH))
                reply = self._resolve(pipe.take(size))
                if reply is None:
                    return
                pipe.write(len(reply).to_bytes(_LENGTH) + reply)
                await pipe.drain()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            pipe.close()

    # notes

    def note_open(self, origin: Origin, verdict: Verdict) -> None:
        """Publish the decision about a connection."""
        self._publish(
            allowed=verdict.allowed,
            activity="NET:OPEN",
            connection=origin.connection,
            rule=verdict.rule,
            reason=": ".join(part for part in (verdict.reason, origin.identity.doubt) if part),
            pid=origin.identity.pid,
        )

    def note_request(self, origin: Origin, verdict: Verdict, method: str, path: str) -> None:
        """Publish an allowed request."""
        self._publish(
            allowed=True,
            activity=f"HTTP:{method}",
            connection=origin.connection,
            rule=verdict.rule,
            reason=f"audit: {verdict.reason}" if verdict.would_deny else "",
            pid=origin.identity.pid,
            method=method,
            path=path,
        )

    def note_denial(self, origin: Origin, denial: Denial, method: str, path: str) -> None:
        """Publish a refused request, or one whose upstream was not reached."""
        self._publish(
            allowed=False,
            activity=f"HTTP:{method}",
            connection=origin.connection,
            rule=denial.rule,
            reason=f"{denial.error}: {denial.detail}",
            pid=origin.identity.pid,
            method=method,
            path=path,
            engine="ssrf" if denial.error == "ssrf_denied" else "opa",
        )

    def _publish(
        self,
        *,
        allowed: bool,
        activity: str,
        connection: Connection,
        rule: str = NO_RULE,
        reason: str = "",
        pid: int = 0,
        method: str = "",
        path: str = "",
        engine: str = "opa",
    ) -> None:
        self._hub.publish(
            Decision(
                sandbox_id=self.config.sandbox_id,
                time=time.time(),
                allowed=allowed,
                activity=activity,
                host=connection.host,
                port=connection.port,
                binary=", ".join(connection.binaries) or "-",
                pid=pid,
                rule=rule,
                reason=reason,
                method=method,
                path=path,
                engine=engine,
                severity="INFO" if allowed else "MED",
            )
        )


def _message_missing(buffer: bytearray) -> bool:
    """Say whether the length-prefixed DNS message at the start is incomplete."""
    return len(buffer) < _LENGTH or len(buffer) < _LENGTH + int.from_bytes(buffer[:_LENGTH])


def _want_packet_info(sock: socket.socket, family: int) -> None:
    """Ask for the address a datagram was sent to; IPv6 also needs leave to answer from an AnyIP address."""
    if family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)


def _from_asked(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return the ancillary data that makes the answer come from the asked address."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP:
            _, _, asked = _PACKET_INFO_V4.unpack(data[: _PACKET_INFO_V4.size])
            return [(level, kind, _PACKET_INFO_V4.pack(0, asked, bytes(4)))]
        if level == socket.IPPROTO_IPV6:
            return [(level, kind, data)]
    return []
