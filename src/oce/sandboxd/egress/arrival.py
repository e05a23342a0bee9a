"""A connection that a program in the Sandbox opened: who opened it, where to, and what it speaks.

In this order, and nothing leaves the machine before the decision: original destination and callers from the kernel, first bytes
from the client, the name from both, the decision, then one of: TLS terminated and served as HTTP, plain HTTP, raw relay, or a
refusal in a form that the client understands. Callers are looked at again after the TLS handshake.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from typing import TYPE_CHECKING

from oce.policy.decide import NO_RULE
from oce.policy.match import is_address, normal_host
from oce.policy.model import DenyCode, Protocol, Tls, Verdict
from oce.sandboxd.egress.authority import MintLimitError
from oce.sandboxd.egress.denial import Denial, policy_denial
from oce.sandboxd.egress.exchange import Exchange, Origin
from oce.sandboxd.egress.hello import HelloState, read_hello
from oce.sandboxd.egress.names import belongs, is_synthetic, valid_name
from oce.sandboxd.egress.pipe import Pipe
from oce.sandboxd.egress.relay import splice
from oce.sandboxd.egress.swap import MarkFoundError
from oce.sandboxd.egress.upstream import Target, UpstreamError

if TYPE_CHECKING:
    from oce.sandboxd.egress.identity import Identity
    from oce.sandboxd.egress.relay import Scanner
    from oce.sandboxd.egress.sandbox import ServedSandbox
    from oce.sandboxd.egress.swap import BodyScanner

CATCH_ALL_PORT = 1
DENIED_SILENCE_SECONDS = 1.0
FIRST_BYTES_SECONDS = 30.0
SPEAKS_FIRST_SECONDS = 0.3
"""How long an allowed raw connection may be silent before its server is taken to speak first."""
HANDSHAKE_SECONDS = 15.0

_SO_ORIGINAL_DST = 80
_ADDRESS_V4 = struct.Struct("!2xH4s8x")
_ADDRESS_V6 = struct.Struct("!2xH4x16s4x")
_METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"CONNECT",
    b"OPTIONS",
    b"TRACE",
    b"PATCH",
    b"PRI",
    b"PROPFIND",
    b"REPORT",
)
_HTTP = re.compile(b"(?:" + b"|".join(_METHODS) + b") ", re.IGNORECASE)
_LONGEST_METHOD = max(len(method) for method in _METHODS) + 1
_HOST_LINE = re.compile(rb"\r\nhost:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_TLS_RECORD = 0x16
_HTTP_PORT = 80
_JUDGED_PORTS = (80, 443)
"""Nothing but HTTP and TLS is spoken here: a relay of other bytes would only dodge the judging of names."""
_HEAD_LIMIT = 16 * 1024


class _DropError(Exception):
    """Nothing can be answered in a form the client understands: reset."""


class Arrival:
    """Handles one accepted socket to its end."""

    def __init__(
        self, sandbox: ServedSandbox, sock: socket.socket, peer: tuple[str, int], port: int
    ) -> None:
        self._sandbox = sandbox
        self._sock = sock
        self._peer = peer
        self._listener_port = port

    async def serve(self) -> None:
        """Serve to the end; the socket is closed afterwards."""
        loop = asyncio.get_running_loop()
        try:
            address, port = self._destination()
        except OSError:
            self._sock.close()
            return
        source = self._peer[0].split("%", 1)[0], self._peer[1]
        self._ends = (source, (address, port))
        identity = await self._sandbox.identifier.identify(*self._ends)
        _, pipe = await loop.connect_accepted_socket(Pipe, self._sock)
        try:
            await self._judge(pipe, address, port, identity)
        except (_DropError, ConnectionError, TimeoutError, MintLimitError):
            pipe.abort()
        except BaseException:
            pipe.abort()
            raise

    def _destination(self) -> tuple[str, int]:
        """Return where the program connected to."""
        if self._listener_port != CATCH_ALL_PORT:
            name = self._sock.getsockname()
            return str(name[0]).split("%", 1)[0], int(name[1])
        if self._sock.family == socket.AF_INET6:
            raw = self._sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, _ADDRESS_V6.size)
            port, packed = _ADDRESS_V6.unpack(raw)
            return socket.inet_ntop(socket.AF_INET6, packed), port
        raw = self._sock.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, _ADDRESS_V4.size)
        port, packed = _ADDRESS_V4.unpack(raw)
        return socket.inet_ntop(socket.AF_INET, packed), port

    async def _judge(self, pipe: Pipe, address: str, port: int, identity: Identity) -> None:
        likely = address if not is_synthetic(address) else self._sandbox.names.only(address)
        origin = Origin(likely or address, port, identity, encrypted=False, ends=self._ends)
        opened = self._sandbox.judge.connection(origin.connection)
        if not await self._first_bytes(pipe, origin, opened):
            await self._raw(pipe, origin, opened, silent=True)
        elif pipe.buffer[0] == _TLS_RECORD:
            await self._tls(pipe, origin, address)
        elif self._is_http(pipe, origin, opened):
            await self._plain(pipe, origin, address)
        else:
            await self._raw(pipe, origin, opened)

    async def _first_bytes(self, pipe: Pipe, origin: Origin, opened: Verdict) -> bool:
        """Wait for something to judge; False when an allowed raw connection stays silent."""
        raw = opened.allowed and self._may_be_raw(origin, opened)
        patience = FIRST_BYTES_SECONDS if opened.allowed else DENIED_SILENCE_SECONDS
        try:
            while not pipe.buffer:
                if not await pipe.more(SPEAKS_FIRST_SECONDS if raw else patience):
                    raise _DropError
            while len(pipe.buffer) < _LONGEST_METHOD and _maybe_method(pipe.buffer):
                if not await pipe.more(patience):
                    break
        except TimeoutError:
            if raw and not pipe.buffer:
                return False
            self._sandbox.note_open(origin, _as_denied(opened, "the client sent nothing to judge"))
            raise _DropError from None
        return True

    def _may_be_raw(self, origin: Origin, opened: Verdict) -> bool:
        """Only where no request has to be judged, no credential could be meant, and raw bytes are usual at all."""
        return (
            origin.port not in _JUDGED_PORTS
            and all(e.protocol is Protocol.TCP for e in opened.endpoints)
            and not (self._sandbox.swapper.bound(origin.host, origin.port))
        )

    def _is_http(self, pipe: Pipe, origin: Origin, opened: Verdict) -> bool:
        if origin.port == _HTTP_PORT or _HTTP.match(pipe.buffer):
            return True
        return opened.allowed and not self._may_be_raw(origin, opened)

    # TLS

    async def _tls(self, pipe: Pipe, origin: Origin, address: str) -> None:
        hello = read_hello(pipe.buffer)
        while hello.state is HelloState.MORE:
            if not await pipe.more(HANDSHAKE_SECONDS):
                raise _DropError
            hello = read_hello(pipe.buffer)
        if hello.state is not HelloState.DONE:
            raise _DropError
        origin.encrypted = True
        name = hello.name
        if name is None and is_synthetic(address):
            self._sandbox.note_open(origin, _refused("TLS without a server name"))
            raise _DropError
        shown = name or address
        if not (valid_name(shown) or is_address(shown)):
            raise _DropError
        origin.host = normal_host(shown)
        if not belongs(origin.host, address) or (name is not None and is_address(origin.host)):
            detail = "the TLS name is not the name that was connected to"
            self._deny(origin, "request_authority_mismatch", detail)
        else:
            opened = self._sandbox.judge.connection(origin.connection)
            self._sandbox.note_open(origin, opened)
            if not opened.allowed:
                origin.denial = policy_denial(opened, origin.connection, None)
            elif all(e.tls is Tls.SKIP for e in opened.endpoints):
                if not self._sandbox.swapper.bound(origin.host, origin.port):
                    await self._relay(pipe, origin, opened)
                    return
                detail = "a credential is bound to this endpoint, which must then be inspected"
                self._deny(origin, "uninspected_credentials", detail)
        await self._terminate(pipe, origin, shown)

    async def _terminate(self, pipe: Pipe, origin: Origin, name: str) -> None:
        context = self._sandbox.authority.context(name)
        await pipe.start_tls(context, server_hostname=None, timeout=HANDSHAKE_SECONDS)
        if origin.denial is None:
            # The socket may have been handed to another program since it was accepted.
            origin.identity = await self._sandbox.identifier.identify(*self._ends)
            again = self._sandbox.judge.connection(origin.connection)
            if not again.allowed:
                self._sandbox.note_open(origin, again)
                origin.denial = policy_denial(again, origin.connection, None)
        await Exchange(self._sandbox, pipe, origin).serve()

    def _deny(self, origin: Origin, error: str, detail: str) -> None:
        origin.denial = Denial(
            status=403,
            error=error,
            detail=detail,
            host=origin.host,
            port=origin.port,
            binary=", ".join(origin.identity.binaries),
        )
        self._sandbox.note_open(origin, _refused(f"{error}: {detail}"))

    # plain

    async def _plain(self, pipe: Pipe, origin: Origin, address: str) -> None:
        """Take the name from the first Host line; the strict parser judges the head afterwards."""
        while b"\r\n\r\n" not in pipe.buffer and len(pipe.buffer) <= _HEAD_LIMIT:
            if b"\n\n" in pipe.buffer or not await pipe.more(FIRST_BYTES_SECONDS):
                break
        match = _HOST_LINE.search(pipe.buffer)
        text = match[1].decode("latin-1") if match else ""
        host = re.sub(r":[0-9]+$", "", text) if not is_address(text) else text
        name = normal_host(host)
        if not (valid_name(name) or is_address(name)):
            name = origin.host
        origin.host = name
        if not belongs(name, address):
            detail = "Host is not the name that was connected to"
            self._deny(origin, "request_authority_mismatch", detail)
        else:
            opened = self._sandbox.judge.connection(origin.connection)
            self._sandbox.note_open(origin, opened)
            if not opened.allowed:
                origin.denial = policy_denial(opened, origin.connection, None)
        await Exchange(self._sandbox, pipe, origin).serve()

    # raw

    async def _raw(
        self, pipe: Pipe, origin: Origin, opened: Verdict, *, silent: bool = False
    ) -> None:
        """Relay bytes that are neither TLS nor HTTP, where the policy judges connections only."""
        if opened.allowed and not self._may_be_raw(origin, opened):
            opened = _as_denied(opened, "neither TLS nor HTTP, and requests must be judged here")
        self._sandbox.note_open(origin, opened)
        if not opened.allowed:
            raise _DropError
        scanner = self._sandbox.swapper.scanner()
        await self._relay(pipe, origin, opened, LateGuard(scanner) if silent else scanner)

    async def _relay(
        self, pipe: Pipe, origin: Origin, opened: Verdict, scanner: Scanner | None = None
    ) -> None:
        allowed_ips = self._sandbox.allowed_ips(opened)
        target = Target(origin.host, origin.port, encrypted=False, allowed_ips=allowed_ips)
        try:
            upstream = await self._sandbox.dialer.dial(target)
        except UpstreamError as error:
            refused = Verdict(
                allowed=False, rule=opened.rule, reason=f"{error.code}: {error.detail}"
            )
            self._sandbox.note_open(origin, refused)
            raise _DropError from None
        with self._sandbox.serving(origin.connection, pipe, upstream):
            await splice(pipe, upstream, scanner)


class LateGuard:
    """Ends a relay that began in silence when the client then speaks TLS or HTTP, which would have been judged."""

    def __init__(self, scanner: BodyScanner) -> None:
        self._scanner = scanner
        self._start: bytearray | None = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """Return what may be sent now. Raises MarkFoundError."""
        if self._start is not None:
            self._start += piece
            if self._start[0] == _TLS_RECORD or _HTTP.match(self._start):
                raise MarkFoundError
            if len(self._start) < _LONGEST_METHOD and _maybe_method(self._start):
                return b""
            piece, self._start = bytes(self._start), None
        return self._scanner.feed(piece)

    def end(self) -> bytes:
        """Return what was held back, now that nothing follows."""
        return bytes(self._start or b"") + self._scanner.end()


def _maybe_method(buffer: bytearray) -> bool:
    """Say whether these few bytes could still become a method."""
    start = bytes(buffer).upper()
    return any((method + b" ").startswith(start) for method in _METHODS)


def _refused(reason: str) -> Verdict:
    return Verdict(allowed=False, rule=NO_RULE, reason=reason, code=DenyCode.IDENTITY)


def _as_denied(verdict: Verdict, reason: str) -> Verdict:
    if not verdict.allowed:
        return verdict
    return Verdict(allowed=False, rule=verdict.rule, reason=reason, code=DenyCode.METHOD_PATH)
