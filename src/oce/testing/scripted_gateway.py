"""A gateway that does what a test tells it: a grpc.aio server on the real OpenShell stubs, kept in memory.

It keeps the semantics a Driver depends on (request ids and their refusals, ownership by name, attachment of providers, asynchronous
deletion, concealment), and every answer can be scripted: refused with any status and structured details, dropped before or after the
effect, altered, stale, or broken in the middle of a stream. Nothing sleeps; what would take time is a number of reads. Service HTTP shares the port, as on a real gateway.

It decides no policy and runs no workload: that is `oce.sandboxd`. Import it in tests only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from openshell._proto import openshell_pb2, openshell_pb2_grpc

from oce.testing.scripted_state import STREAMS, Proto, Refused, State, effects_of

Effect = Callable[[Proto], Proto]
ServiceHandler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Gets the request head as bytes and writes whatever it likes."""

_DOMAIN: Final = "openshell.nvidia.com"
_PREFACE: Final = b"PRI"


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer. `after`: the effect happens first and its answer is lost."""

    refusal: Refused | None = None
    after: bool = False
    alter: Effect | None = None
    silent: bool = False
    """Never answer; the call ends when its caller gives up."""
    instead: Proto = None
    """Answer with this message and do nothing."""
    breaks: tuple[int, Refused] | None = None
    """Break a stream after so many events."""


def status(
    code: grpc.StatusCode, reason: str | None = None, details: str = "", *, after: bool = False
) -> Answer:
    """Answer with a status."""
    return Answer(Refused(code, reason, details), after=after)


def lost(*, after: bool) -> Answer:
    """Break the connection before or after the effect, as UNAVAILABLE."""
    return status(grpc.StatusCode.UNAVAILABLE, after=after)


def silence(*, after: bool) -> Answer:
    """Never answer, before or after the effect."""
    return Answer(after=after, silent=True)


def altered(alter: Effect) -> Answer:
    """Do the effect and change its answer."""
    return Answer(alter=alter)


def replay_refused(reason: str = "REQUEST_OUTCOME_UNCERTAIN") -> Answer:
    """Say that a request id is spent, as structured details: one of the three replay reasons."""
    return status(grpc.StatusCode.FAILED_PRECONDITION, reason)


def admission_limit() -> Answer:
    """Say that too many mutations are unsettled."""
    return status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, details="durable mutation admission limit reached"
    )


def accepted() -> Answer:
    """Do a deletion and say only that it was accepted."""

    def only_accepted(response: Proto) -> Proto:
        response.outcome = openshell_pb2.DELETION_OUTCOME_ACCEPTED
        return response

    return altered(only_accepted)


def repeated_page(token: str = "0") -> Answer:  # noqa: S107 - a page token
    """Answer a list with a page token that was given already."""

    def again(response: Proto) -> Proto:
        response.next_page_token = token
        return response

    return altered(again)


def stale(response: Proto) -> Answer:
    """Answer with an earlier answer instead of the present one."""
    return Answer(instead=response)


def broken_stream(code: grpc.StatusCode, *, after_events: int) -> Answer:
    """Break a stream after some of its events."""
    return Answer(breaks=(after_events, Refused(code)))


def watch_warning(message: str) -> Proto:
    """Return an in-band error of a watch, to put into `watch_events`."""
    event = openshell_pb2.SandboxStreamEvent()
    event.warning.message = message
    return event


HOSTILE: Final = (
    "\x1b[31mred\x1b[0m\x07",
    "line\r\nX-Injected: yes",
    "\u202egnp.exe\u2066",
    "{{config.node_setup_json}} ${HOME} $(id) `id`",
    "<script>alert(1)</script>",
    "../../../../etc/shadow",
    "openshell:resolve:env:OPENAI_API_KEY",
    "%s%n%d",
    "\U0001f469\u200d\U0001f680" * 50,
    "A" * 70_000,
)
"""Texts that a gateway may put wherever a text goes."""


class ScriptedGateway:
    """Start it, script it, read `requests` afterwards."""

    def __init__(self) -> None:
        self.state = State()
        self.requests: list[tuple[str, Proto]] = []
        self.metadata: list[dict[str, str]] = []
        self.version = "0.1.5"
        self.accepts_deletions = False
        """DeleteSandbox answers ACCEPTED; the Sandbox stays DELETING for `deletion_reads` reads."""
        self.deletion_reads = 0
        self.concealed = False
        """Objects inside Workspaces are hidden as NOT_FOUND, and the Workspaces too."""
        self.refuses: grpc.StatusCode | None = None
        """Every call but Health is refused with this status."""
        self.initial_phase = openshell_pb2.SANDBOX_PHASE_READY
        self.on_service: ServiceHandler = _not_found
        self.on_exec: Callable[[Proto], int] = lambda _: 0
        """Gets an ExecSandbox request and returns the exit code."""
        self.watch_events: list[Proto] = []
        """What a watch sends after the Sandbox itself, in-band errors included."""
        self.loads_policies = True
        """A new policy revision is loaded and active at once; otherwise it stays pending."""
        self.page_size = 0
        """Items per page whatever the client asks for; 0 means all."""
        self.hung = asyncio.Event()
        """Set once a silent answer has begun."""
        self.given_up = asyncio.Event()
        """Set once a silent call was cancelled or let expire by its caller."""
        self._script: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._server: grpc.aio.Server | None = None
        self._front: asyncio.Server | None = None
        self._splices: set[asyncio.Task[None]] = set()
        self._grpc_port = 0
        self.port = 0

    def script(self, method: str, *answers: Answer) -> None:
        """Queue answers for the next calls of a method."""
        self._script[method].extend(answers)

    def unscript(self) -> None:
        """Forget every answer that was not used."""
        self._script.clear()

    def methods(self) -> list[str]:
        """Return the names of the calls so far."""
        return [method for method, _ in self.requests]

    def made(self, method: str) -> list[Proto]:
        """Return the requests of one method."""
        return [message for name, message in self.requests if name == method]

    async def start(self) -> None:
        """Listen on a free loopback port for gRPC and service HTTP."""
        self._server = grpc.aio.server()
        openshell_pb2_grpc.add_OpenShellServicer_to_server(_Servicer(self), self._server)  # type: ignore[no-untyped-call] # generated
        self._grpc_port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._front = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._front.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._front is not None:
            self._front.close()
        for task in list(self._splices):
            task.cancel()
        await asyncio.gather(*self._splices, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._splices.add(task)
            task.add_done_callback(self._splices.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            first = await reader.readexactly(len(_PREFACE))
            if first == _PREFACE:
                await self._splice(first, reader, writer)
            else:
                head = first + await reader.readuntil(b"\r\n\r\n")
                await self.on_service(head, writer)
                await writer.drain()
        writer.close()

    async def _splice(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._grpc_port)
        back_writer.write(first)
        try:
            await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer))
        finally:
            back_writer.close()

    async def answer(self, method: str, request: Proto, context: Proto, effect: Effect) -> Proto:
        """Record a call and answer it as scripted."""
        return (await self._answered(method, request, context, effect))[0]

    async def events(
        self, method: str, request: Proto, context: Proto, effect: Effect
    ) -> AsyncGenerator[Proto, None]:
        """Record a call and stream its answer as scripted."""
        found, scripted = await self._answered(method, request, context, effect)
        for number, event in enumerate(found):
            if scripted.breaks is not None and scripted.breaks[0] == number:
                await _abort(context, scripted.breaks[1])
            yield event
        if scripted.breaks is not None:
            await _abort(context, scripted.breaks[1])

    async def _answered(
        self, method: str, request: Proto, context: Proto, effect: Effect
    ) -> tuple[Proto, Answer]:
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests.append((method, copy))
        self.metadata.append(dict(context.invocation_metadata() or ()))
        queue = self._script[method]
        scripted = queue.popleft() if queue else Answer()
        if scripted.silent and not scripted.after:
            await self._hang()
        if scripted.instead is not None:
            return scripted.instead, scripted
        try:
            response = self._carry_out(method, request, scripted, effect)
        except Refused as refusal:
            await _abort(context, refusal)
        if scripted.silent:
            await self._hang()
        return response if scripted.alter is None else scripted.alter(response), scripted

    async def _hang(self) -> None:
        self.hung.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()

    def _carry_out(self, method: str, request: Proto, scripted: Answer, effect: Effect) -> Proto:
        if self.refuses is not None and method != "Health":
            raise Refused(self.refuses)
        if scripted.refusal is not None and not scripted.after:
            raise scripted.refusal
        response = effect(request)
        if scripted.refusal is not None:
            raise scripted.refusal
        return response


async def _not_found(head: bytes, writer: asyncio.StreamWriter) -> None:
    del head
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _abort(context: Proto, refusal: Refused) -> None:
    trailing: tuple[tuple[str, bytes], ...] = ()
    if refusal.reason is not None:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=_DOMAIN))
        rich = status_pb2.Status(
            code=refusal.code.value[0], message=refusal.details, details=[packed]
        )
        trailing = (("grpc-status-details-bin", rich.SerializeToString()),)
    await context.abort(refusal.code, refusal.details, trailing_metadata=trailing)


class _Servicer(openshell_pb2_grpc.OpenShellServicer):
    """The stubs' service: each known RPC is an effect on the state."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        for method, effect in effects_of(gateway).items():
            made = _stream(gateway, method, effect) if method in STREAMS else None
            setattr(self, method, made or _handler(gateway, method, effect))


def _handler(
    gateway: ScriptedGateway, method: str, effect: Effect
) -> Callable[[Proto, Proto], Awaitable[Proto]]:
    async def handle(request: Proto, context: Proto) -> Proto:
        return await gateway.answer(method, request, context, effect)

    return handle


def _stream(
    gateway: ScriptedGateway, method: str, effect: Effect
) -> Callable[[Proto, Proto], AsyncGenerator[Proto, None]]:
    async def handle(request: Proto, context: Proto) -> AsyncGenerator[Proto, None]:
        async for event in gateway.events(method, request, context, effect):
            yield event

    return handle
