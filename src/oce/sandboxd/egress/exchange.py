"""HTTP on one accepted connection: each request is judged, its placeholders replaced, and relayed as it comes.

Every road passes the same gate per request: reused connections, absolute targets, upgrades. Bodies stream both ways under
back-pressure; a response that breaks upstream is broken off here too, so that it cannot pass for complete.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from oce.policy.canonical import CanonicalPath, PathError, canonical_path
from oce.policy.decide import Connection, Request
from oce.policy.match import is_address, normal_host
from oce.sandboxd.egress.denial import Denial, policy_denial, render
from oce.sandboxd.egress.http1 import (
    CHUNKED,
    MAX_REQUEST_HEAD,
    MAX_RESPONSE_HEAD,
    UNTIL_END,
    BodyReader,
    HttpError,
    RequestHead,
    ResponseHead,
    frame,
    frame_end,
    parse_request,
    parse_response,
    read_head,
    render_fields,
)
from oce.sandboxd.egress.pipe import BrokenPipeEnd, Pipe
from oce.sandboxd.egress.relay import splice
from oce.sandboxd.egress.swap import Destination, MarkFoundError, Message, SwapRefusedError
from oce.sandboxd.egress.upstream import Target, UpstreamError

if TYPE_CHECKING:
    from oce.policy.model import Verdict
    from oce.sandboxd.egress.identity import Identity
    from oce.sandboxd.egress.sandbox import ServedSandbox

IDLE_SECONDS = 300.0
HEAD_SECONDS = 30.0
BODY_SECONDS = 120.0
RESPONSE_SECONDS = 900.0
"""Longest silence of an upstream before and inside a response; models think for minutes."""
WHOLE_BODY = 64 * 1024
"""Bodies up to this size are read and scanned before anything is sent."""
FRESH_SECONDS = 5.0
"""How long an idle upstream connection is trusted with a request that must not be sent twice."""
LINGER_SECONDS = 1.0

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORT = {True: 443, False: 80}
_SWITCHING = 101
_FIRST_FINAL = 200


@dataclass(slots=True)
class Origin:
    """What the accepted connection is known to be: the name it is for, its callers, and a refusal decided earlier.

    `ends` are the addresses of the Sandbox's socket and of what it connected to, by which callers are found again.
    """

    host: str
    port: int
    identity: Identity
    encrypted: bool
    ends: tuple[tuple[str, int], tuple[str, int]]
    denial: Denial | None = None

    @property
    def connection(self) -> Connection:
        """What policy judges."""
        return Connection(self.host, self.port, self.identity.binaries)


@dataclass(slots=True)
class _Outgoing:
    head: RequestHead
    path: str
    rule: str
    target: Target
    start: bytes


class Exchange:
    """Serves requests on one pipe until either side ends."""

    def __init__(self, sandbox: ServedSandbox, pipe: Pipe, origin: Origin) -> None:
        self._sandbox = sandbox
        self._pipe = pipe
        self._origin = origin

    async def serve(self) -> None:
        """Serve until the end. Raises nothing that the caller must know."""
        pipe = self._pipe
        try:
            with self._sandbox.serving(self._origin.connection, pipe):
                while await self._one():
                    pass
        except HttpError as error:
            await self._answer(
                Denial(status=error.status, error="bad_request", detail=error.problem)
            )
        except (BrokenPipeEnd, TimeoutError):
            pipe.abort()
        except BaseException:
            pipe.abort()
            raise
        else:
            pipe.close()

    async def _one(self) -> bool:
        """Serve one request; False to end the connection."""
        raw = await read_head(self._pipe, MAX_REQUEST_HEAD, IDLE_SECONDS, HEAD_SECONDS)
        if raw is None:
            return False
        head = parse_request(raw)
        if not self._sandbox.identifier.unchanged(self._origin.identity):
            # A holder ended or became another program: who holds the socket now is what counts.
            self._origin.identity = await self._sandbox.identifier.identify(*self._origin.ends)
        outgoing = self._admit(head)
        if isinstance(outgoing, Denial):
            await self._answer(outgoing)
            return False
        return await self._forward(outgoing)

    # the gate

    def _admit(self, head: RequestHead) -> _Outgoing | Denial:
        """Take every decision about one request; nothing has been sent yet."""
        origin, sandbox = self._origin, self._sandbox
        connection = origin.connection
        if origin.denial is not None:
            self._note(origin.denial, head.method, head.target.split("?", 1)[0])
            return origin.denial
        try:
            raw_path, query = self._split(head)
            path = canonical_path(
                raw_path, allow_encoded_slash=sandbox.judge.encoded_slash(connection)
            )
        except PathError as error:
            return self._refuse(400, "bad_request", str(error), head.method, "")
        if self._authority(head.host) != (origin.host, origin.port):
            detail = "the request is for another host than its connection"
            return self._refuse(403, "request_authority_mismatch", detail, head.method, path.match)
        request = Request(head.method, path.match, query)
        verdict = sandbox.judge.request(connection, request)
        if not verdict.allowed:
            denial = policy_denial(verdict, connection, request)
            self._note(denial, head.method, path.match)
            return denial
        return self._swap(head, path, query, verdict)

    def _swap(
        self, head: RequestHead, path: CanonicalPath, query: str, verdict: Verdict
    ) -> _Outgoing | Denial:
        origin = self._origin
        destination = Destination(
            origin.host, origin.port, path.match, origin.identity.binaries, origin.encrypted
        )
        try:
            message = self._sandbox.swapper.apply(
                Message(head.fields, path.wire, query), destination
            )
        except SwapRefusedError as error:
            return self._refuse(error.status, error.code, error.detail, head.method, path.match)
        target = message.path + (f"?{message.query}" if message.query else "")
        fields = [item for item in message.fields if item[0] != b"host"]
        default = _DEFAULT_PORT[origin.encrypted] == origin.port
        name = f"[{origin.host}]" if ":" in origin.host else origin.host
        authority = name if default else f"{name}:{origin.port}"
        start = f"{head.method} {target} HTTP/1.1\r\nhost: {authority}\r\n".encode("latin-1")
        start += render_fields(fields)
        if head.body == CHUNKED:
            start += b"transfer-encoding: chunked\r\n"
        if head.upgrade:
            start += b"connection: upgrade\r\nupgrade: " + head.upgrade.encode() + b"\r\n"
        self._sandbox.note_request(origin, verdict, head.method, path.match)
        upstream = Target(
            origin.host, origin.port, origin.encrypted, self._sandbox.allowed_ips(verdict)
        )
        return _Outgoing(head, path.match, verdict.rule, upstream, start + b"\r\n")

    def _split(self, head: RequestHead) -> tuple[str, str]:
        """Return path and query of the target; an absolute one must name this connection's authority."""
        target = head.target
        if head.method == "CONNECT" or "#" in target:
            raise PathError("the request target has no meaning here")
        lowered = target[:8].lower()
        if lowered.startswith(("http://", "https://")):
            scheme, _, rest = target.partition("://")
            authority, slash, tail = rest.partition("/")
            if "?" in authority:
                raise PathError("the request target has no path")
            encrypted = scheme.lower() == "https"
            same = self._authority(authority) == (self._origin.host, self._origin.port)
            if encrypted != self._origin.encrypted or not same:
                raise PathError("the request target names another authority")
            target = slash + tail or "/"
        path, _, query = target.partition("?")
        return path, query

    def _authority(self, text: str) -> tuple[str, int] | None:
        host, port = text, str(_DEFAULT_PORT[self._origin.encrypted])
        bracket = text.rfind("]")
        colon = text.rfind(":")
        if colon > bracket and not (bracket < 0 and is_address(text)):
            host, port = text[:colon], text[colon + 1 :]
        if "@" in host or not port.isdecimal() or not port.isascii():
            return None
        return normal_host(host), int(port)

    def _refuse(self, status: int, code: str, detail: str, method: str, path: str) -> Denial:
        origin = self._origin
        denial = Denial(
            status=status,
            error=code,
            detail=detail,
            method=method,
            path=path,
            host=origin.host,
            port=origin.port,
            binary=", ".join(origin.identity.binaries),
        )
        self._note(denial, method, path)
        return denial

    def _note(self, denial: Denial, method: str, path: str) -> None:
        self._sandbox.note_denial(self._origin, denial, method, path)

    # answers of our own

    async def _answer(self, denial: Denial) -> None:
        """Answer and end the connection."""
        self._pipe.on_gone = None
        self._pipe.write(render(denial))
        await self._pipe.part(LINGER_SECONDS)

    # relaying

    async def _forward(self, outgoing: _Outgoing) -> bool:
        head = outgoing.head
        body: bytes | None = b""
        if head.body:
            body = await self._whole_body(head)
            if body is None and not head.expects_continue and self._pipe.ended:
                raise BrokenPipeEnd("the peer ended inside a body")
        scanner = self._sandbox.swapper.scanner() if body else None
        if scanner is not None and body:
            try:
                body = scanner.feed(body) + scanner.end()
            except MarkFoundError:
                await self._answer(self._body_refusal(outgoing))
                return False
        if body is not None:
            self._watch_client(asyncio.current_task())
        try:
            return await self._try(outgoing, body)
        except UpstreamError as error:
            status = 403 if error.code == "ssrf_denied" else 502
            denial = self._refuse(status, error.code, error.detail, head.method, outgoing.path)
            await self._answer(denial)
            return False
        finally:
            self._pipe.on_gone = None

    def _watch_client(self, task: asyncio.Task[None] | None) -> None:
        """End the request upstream as well when nobody waits for its answer any more."""
        if task is not None:
            self._pipe.on_gone = partial(_cancel, task)

    async def _whole_body(self, head: RequestHead) -> bytes | None:
        """Return a small body completely, None for one that must be streamed."""
        if head.expects_continue or not 0 < head.body <= WHOLE_BODY:
            return None
        pipe = self._pipe
        while len(pipe.buffer) < head.body:
            if not await pipe.more(BODY_SECONDS):
                raise BrokenPipeEnd("the peer ended inside a body")
        return pipe.take(head.body)

    async def _try(self, outgoing: _Outgoing, body: bytes | None) -> bool:
        """Send to an idle upstream connection, and once more to a fresh one where that is safe."""
        repeatable = outgoing.head.method in _REPEATABLE and body is not None
        if not outgoing.head.upgrade:
            limit = {} if repeatable else {"max_idle": FRESH_SECONDS}
            idle = self._sandbox.pool.take(outgoing.target, **limit)
            if idle is not None:
                try:
                    return await self._send(outgoing, idle, body)
                except _NoResponseError:
                    if not repeatable:
                        raise UpstreamError(
                            "upstream_unreachable", "the upstream closed without an answer"
                        ) from None
        fresh = await self._sandbox.dialer.dial(outgoing.target)
        try:
            return await self._send(outgoing, fresh, body)
        except _NoResponseError:
            raise UpstreamError(
                "upstream_unreachable", "the upstream closed without an answer"
            ) from None

    async def _send(self, outgoing: _Outgoing, upstream: Pipe, body: bytes | None) -> bool:
        sending: asyncio.Task[None] | None = None
        proper = False
        try:
            if body is not None:
                upstream.write(outgoing.start + body)
            else:
                upstream.write(outgoing.start)
                sending = asyncio.create_task(
                    self._stream_up(outgoing.head, upstream, asyncio.current_task())
                )
            try:
                response = await self._response(outgoing, upstream)
            except (BrokenPipeEnd, _NoResponseError):
                refusal = self._sending_failure(outgoing, sending)
                if refusal is None:
                    raise _NoResponseError from None
                await self._answer(refusal)
                return False
            if response.status == _SWITCHING:
                proper = True
                await self._switch(upstream, response)
                return False
            proper, go_on = await self._stream_down(outgoing, upstream, response, sending)
            return go_on
        finally:
            if sending is not None and not sending.done():
                sending.cancel()
            if not proper:
                upstream.abort()

    def _sending_failure(
        self, outgoing: _Outgoing, sending: asyncio.Task[None] | None
    ) -> Denial | None:
        """Say why our own side broke the request off, None if it did not."""
        if sending is None or not sending.done() or sending.cancelled():
            return None
        error = sending.exception()
        if isinstance(error, MarkFoundError):
            return self._body_refusal(outgoing)
        if isinstance(error, HttpError):
            return self._refuse(
                error.status, "bad_request", error.problem, outgoing.head.method, outgoing.path
            )
        return None

    def _body_refusal(self, outgoing: _Outgoing) -> Denial:
        return self._refuse(
            403,
            "credential_unavailable",
            "the body contains a placeholder, and bodies are not rewritten",
            outgoing.head.method,
            outgoing.path,
        )

    async def _stream_up(
        self, head: RequestHead, upstream: Pipe, serving: asyncio.Task[None] | None
    ) -> None:
        """Relay the request's body; any failure breaks the upstream connection off."""
        reader = BodyReader(self._pipe, head.body, BODY_SECONDS)
        scanner = self._sandbox.swapper.scanner()
        try:
            while piece := await reader.read():
                clean = scanner.feed(piece)
                if clean:
                    upstream.write(frame(clean, head.body))
                    await upstream.drain()
            rest = scanner.end()
            tail = frame(rest, head.body) if rest else b""
            for _, value in reader.trailers:
                scanner.feed(value)
            upstream.write(tail + frame_end(head.body, reader.trailers))
            await upstream.drain()
            self._watch_client(serving)
        except BaseException:
            upstream.abort()
            raise

    async def _response(self, outgoing: _Outgoing, upstream: Pipe) -> ResponseHead:
        """Read up to the final response head; interim ones are passed on."""
        while True:
            try:
                raw = await read_head(
                    upstream, MAX_RESPONSE_HEAD, RESPONSE_SECONDS, RESPONSE_SECONDS
                )
            except TimeoutError:
                raise UpstreamError("upstream_unreachable", "the upstream did not answer") from None
            except HttpError as error:
                raise UpstreamError("upstream_unreachable", error.problem) from None
            if raw is None:
                raise _NoResponseError
            try:
                response = parse_response(raw, outgoing.head.method)
            except HttpError as error:
                raise UpstreamError("upstream_unreachable", error.problem) from None
            if response.status >= _FIRST_FINAL:
                return response
            if response.status == _SWITCHING:
                if not outgoing.head.upgrade or response.upgrade != outgoing.head.upgrade:
                    raise UpstreamError(
                        "upstream_unreachable", "the upstream switched protocols unasked"
                    )
                return response
            self._pipe.write(_render_head(response, b""))

    async def _stream_down(
        self,
        outgoing: _Outgoing,
        upstream: Pipe,
        response: ResponseHead,
        sending: asyncio.Task[None] | None,
    ) -> tuple[bool, bool]:
        """Relay the response. Returns whether the upstream ended properly, and whether to serve on."""
        pipe = self._pipe
        reader = BodyReader(upstream, response.body, RESPONSE_SECONDS)
        if response.body == CHUNKED and outgoing.head.old:
            response.body = UNTIL_END
        out = response.body
        go_on = outgoing.head.keep_alive and out != UNTIL_END
        start = _render_head(response, b"" if go_on else b"connection: close\r\n")
        try:
            first = b"" if reader.done else reader.buffered()
            pipe.write(start + (frame(first, out) if first else b""))
            while piece := await reader.read():
                pipe.write(frame(piece, out))
                if pipe.behind:
                    await pipe.drain()
            end = frame_end(out, reader.trailers)
            if end:
                pipe.write(end)
            await pipe.drain()
        except (HttpError, BrokenPipeEnd, TimeoutError):
            raise BrokenPipeEnd("the response was cut off") from None
        sent = sending is None or (
            sending.done() and not sending.cancelled() and not sending.exception()
        )
        if sent and response.keep_alive:
            self._sandbox.pool.put(outgoing.target, upstream)
        else:
            upstream.close()
        return True, go_on and sent

    async def _switch(self, upstream: Pipe, response: ResponseHead) -> None:
        """Relay raw bytes after an upgrade that was asked for and granted."""
        self._pipe.on_gone = None
        extra = b"connection: upgrade\r\nupgrade: " + response.upgrade.encode() + b"\r\n"
        self._pipe.write(_render_head(response, extra))
        await splice(self._pipe, upstream)


class _NoResponseError(Exception):
    """The upstream ended before a response began."""


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _render_head(response: ResponseHead, extra: bytes) -> bytes:
    start = b"HTTP/1.1 %d %b\r\n" % (response.status, response.reason)
    if response.body == CHUNKED:
        extra += b"transfer-encoding: chunked\r\n"
    return start + render_fields(response.fields) + extra + b"\r\n"
