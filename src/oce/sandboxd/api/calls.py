"""How one RPC is carried out: authenticate, authorize, execute once, answer or refuse in the protocol's words.

A *mutation* has two halves: `prepare` (optional) reaches outside the store, `apply` is a plain function inside one store
transaction. The dispatcher commits the ledger's receipt in that same transaction (reference/openshell-gateway.md a.5). A *query*
reads. Method options of the descriptors say who may call (a.2); a method without an implementation answers UNIMPLEMENTED with its
name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from oce.sandboxd.api.authentication import Door, Principal
from oce.sandboxd.api.stubs import (
    SERVICE,
    SERVICE_NAME,
    Proto,
    authorization,
    details_pb,
    message_class,
    status_pb,
)
from oce.sandboxd.state import ledger
from oce.sandboxd.state.refusals import DOMAIN, Refusal, Status, invalid

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Mapping,
    )

    from oce.sandboxd.api.authentication import Authenticator
    from oce.sandboxd.state.store import Reader, Store, Transaction

log = logging.getLogger(__name__)

MAX_MESSAGE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated request. `workspace` is the addressed one; empty with `all_workspaces`, or when not scoped."""

    principal: Principal
    method: str
    request: Proto
    workspace: str = ""
    all_workspaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A read; `spans` allows `all_workspaces`."""

    handle: Callable[[Call], Awaitable[Proto]]
    spans: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A write. `prepare`'s result goes to `apply`; `settled` runs in the loop after the commit.

    `finish` may wait a moment for what the commit set in motion and improve the answer; it never raises and is not recorded.

    `outside` marks a prepare whose effect a crash can leave behind without a receipt. `restore` rebuilds the response of a
    replay from the recorded one, or raises the replay refusal.
    """

    apply: Callable[[Transaction, Call, Any], Proto]
    restore: Callable[[Reader, Call, Proto], Proto]
    slim: Callable[[Proto], Proto]
    prepare: Callable[[Call], Awaitable[Any]] | None = None
    settled: Callable[[Call, Proto], None] | None = None
    finish: Callable[[Proto], Awaitable[Proto]] | None = None
    outside: bool = False
    spans: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A server stream."""

    handle: Callable[[Call], AsyncGenerator[Proto, None]]


Method: TypeAlias = Query | Mutation | Stream


@dataclass(slots=True)
class Dispatcher:
    """Carries out calls over a table of methods."""

    store: Store
    authenticator: Authenticator
    methods: Mapping[str, Method]
    fingerprint_key: bytes
    now: Callable[[], float]
    _executing: dict[str, asyncio.Task[Proto]] = field(default_factory=dict)
    _unnamed: set[asyncio.Task[Proto]] = field(default_factory=set)

    def outside_methods(self) -> frozenset[str]:
        """Return the methods that a crash can leave half done."""
        return frozenset(
            name
            for name, method in self.methods.items()
            if isinstance(method, Stream) or (isinstance(method, Mutation) and method.outside)
        )

    def handlers(self, door: Door) -> Proto:
        """Return grpc's generic handler for connections of one door."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME, {method.name: self._handler(method, door) for method in SERVICE.methods}
        )

    def _handler(self, method: Proto, door: Door) -> Proto:
        parse = message_class(method.input_type).FromString
        write = message_class(method.output_type).SerializeToString
        if method.server_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if method.client_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(self._streaming(method, door), parse, write)
        make = (
            grpc.stream_unary_rpc_method_handler
            if method.client_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(self._unary(method, door), parse, write)

    def _streaming(
        self, method: Proto, door: Door
    ) -> Callable[[Proto, Proto], AsyncIterator[Proto]]:
        async def answer(request: Proto, context: Proto) -> AsyncIterator[Proto]:
            try:
                call, known = self._call(method, door, request, context)
                if isinstance(known, Stream):
                    async with contextlib.aclosing(self._stream(known, call)) as events:
                        async for event in events:
                            yield event
            except Refusal as refusal:
                await abort(context, refusal)

        return answer

    def _unary(self, method: Proto, door: Door) -> Callable[[Proto, Proto], Awaitable[Proto]]:
        async def answer(request: Proto, context: Proto) -> Proto:
            try:
                call, known = self._call(method, door, request, context)
                if isinstance(known, Mutation):
                    return await self._mutate(known, call, context)
                if isinstance(known, Query):
                    return await known.handle(call)
            except Refusal as refusal:
                await abort(context, refusal)
            except Exception:
                log.exception("%s failed", method.name)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")
            return None

        return answer

    def _call(
        self, method: Proto, door: Door, request: Proto, context: Proto
    ) -> tuple[Call, Method]:
        """Authenticate and authorize. Raises Refusal."""
        known = self.methods.get(method.name)
        rule = authorization(method)
        if rule.auth_mode == "unauthenticated" and known is not None:
            nobody = Principal("", "", "", platform_admin=False)
            return Call(nobody, method.name, request), known
        principal = self.authenticator.principal(door, context.invocation_metadata() or ())
        if rule.global_role == "platform_admin" and not principal.platform_admin:
            raise Refusal(Status.PERMISSION_DENIED, "the platform_admin role is required")
        if known is None:
            raise _unimplemented(method.name)
        workspace, spans = _scope(method, request, known)
        if spans and not principal.platform_admin:
            raise Refusal(Status.PERMISSION_DENIED, "all_workspaces needs the platform_admin role")
        if workspace and not principal.may_enter(workspace):
            raise Refusal(Status.PERMISSION_DENIED, f"not a member of workspace '{workspace}'")
        return Call(principal, method.name, request, workspace, spans), known

    # --- mutations -----------------------------------------------------------------------------

    async def _mutate(self, method: Mutation, call: Call, context: Proto) -> Proto:
        request_id = getattr(call.request, "request_id", "")
        if not request_id:
            return await self._detached(self._execute(method, call, None))
        key, wanted = self._identify(call)
        verdict = ledger.judge(
            ledger.find(self.store.read, key),
            wanted,
            now=self.now(),
            executing=key in self._executing,
        )
        if verdict is ledger.Verdict.EXECUTE and key in self._executing:
            verdict = ledger.Verdict.JOIN
        if verdict is ledger.Verdict.EXECUTE:
            task = asyncio.ensure_future(self._admitted(method, call, key, wanted))
            self._executing[key] = task
            task.add_done_callback(lambda _task: self._executing.pop(key, None))
            return await asyncio.shield(task)
        if verdict is ledger.Verdict.JOIN:
            with contextlib.suppress(Refusal):
                await asyncio.shield(self._executing[key])
            verdict = ledger.judge(
                ledger.find(self.store.read, key), wanted, now=self.now(), executing=False
            )
            if verdict is ledger.Verdict.EXECUTE:
                return await self._mutate(method, call, context)
        found = ledger.find(self.store.read, key)
        if found is None:
            raise ledger.uncertain()
        recorded = message_class(SERVICE.methods_by_name[call.method].output_type).FromString(
            found.receipt
        )
        response = method.restore(self.store.read, call, recorded)
        await context.send_initial_metadata((("openshell-replayed", "true"),))
        return response

    def _identify(self, call: Call) -> tuple[str, bytes]:
        """Return the ledger key and the fingerprint of a request that carries an id. Raises Refusal."""
        scope = call.workspace or getattr(call.request, "name", "")
        request_id = call.request.request_id
        key = ledger.request_key(call.principal.key, call.method, scope, request_id)
        canonical = type(call.request)()
        canonical.CopyFrom(call.request)
        canonical.ClearField("request_id")
        text = canonical.SerializeToString(deterministic=True)
        return key, ledger.fingerprint(self.fingerprint_key, text)

    async def _admit(self, call: Call, key: str, wanted: bytes) -> None:
        admission = ledger.Admission(
            key=key,
            caller=call.principal.key,
            method=call.method,
            fingerprint=wanted,
            state=ledger.State.RUNNING,
            admitted=self.now(),
        )
        await self.store.write(lambda tx: ledger.admit(tx, admission))

    async def _stream(self, method: Stream, call: Call) -> AsyncGenerator[Proto, None]:
        """Yield a stream's events; with a request id at most once, and never again (its output is not kept)."""
        if not getattr(call.request, "request_id", ""):
            async with contextlib.aclosing(method.handle(call)) as events:
                async for event in events:
                    yield event
            return
        key, wanted = self._identify(call)
        found = ledger.find(self.store.read, key)
        if ledger.judge(found, wanted, now=self.now(), executing=False) is ledger.Verdict.REPLAY:
            raise ledger.stream_unavailable()
        await self._admit(call, key, wanted)
        try:
            async with contextlib.aclosing(method.handle(call)) as events:
                async for event in events:
                    yield event
        except Refusal:
            await self.store.write(lambda tx: ledger.free(tx, key))
            raise
        except BaseException:
            await self.store.write(lambda tx: ledger.doubt(tx, key))
            raise
        await self.store.write(lambda tx: ledger.confirm(tx, key, b"", self.now()))

    async def _detached(self, work: Coroutine[Any, Any, Proto]) -> Proto:
        """Finish the work even when the caller goes away."""
        task = asyncio.ensure_future(work)
        self._unnamed.add(task)
        task.add_done_callback(self._unnamed.discard)
        return await asyncio.shield(task)

    async def settle(self, seconds: float) -> None:
        """Wait for the mutations under way, at most that long."""
        left = {*self._executing.values(), *self._unnamed}
        if left:
            await asyncio.wait(left, timeout=seconds)

    async def _admitted(self, method: Mutation, call: Call, key: str, wanted: bytes) -> Proto:
        await self._admit(call, key, wanted)
        try:
            return await self._execute(method, call, key)
        except Refusal:
            await self.store.write(lambda tx: ledger.free(tx, key))
            raise
        except Exception:
            with contextlib.suppress(sqlite3.Error):
                await self.store.write(lambda tx: ledger.doubt(tx, key))
            raise

    async def _execute(self, method: Mutation, call: Call, key: str | None) -> Proto:
        prepared = None if method.prepare is None else await method.prepare(call)

        def work(tx: Transaction) -> Proto:
            response = method.apply(tx, call, prepared)
            if key is not None:
                receipt = method.slim(response).SerializeToString()
                ledger.confirm(tx, key, receipt, self.now())
            return response

        response = await self.store.write(work)
        if method.settled is not None:
            method.settled(call, response)
        return response if method.finish is None else await method.finish(response)


def _scope(method: Proto, request: Proto, known: Method) -> tuple[str, bool]:
    """Return (workspace, whether all). An empty selector is not "default" (a.3)."""
    if "workspace_scope" not in method.input_type.fields_by_name:
        return "", False
    which = request.workspace_scope.WhichOneof("selection")
    if which == "all_workspaces":
        if not (isinstance(known, (Query, Mutation)) and known.spans):
            raise invalid("workspace_scope", "all_workspaces is not possible here")
        return "", True
    name = request.workspace_scope.workspace
    if not name:
        raise invalid("workspace_scope", "a workspace is required")
    return name, False


def _unimplemented(name: str) -> Refusal:
    return Refusal(Status.UNIMPLEMENTED, f"{name} is not implemented by this gateway")


def rich_status(refusal: Refusal) -> tuple[Proto, bytes]:
    """Return the status code and the serialized `google.rpc.Status` with the same code and message."""
    code = grpc.StatusCode[refusal.status]
    status = status_pb.Status(code=code.value[0], message=refusal.message)
    if refusal.reason is not None:
        info = details_pb.ErrorInfo(
            reason=refusal.reason, domain=DOMAIN, metadata=dict(refusal.metadata)
        )
        status.details.add().Pack(info)
    if refusal.violations:
        bad = details_pb.BadRequest()
        for violation in refusal.violations:
            bad.field_violations.add(field=violation.field, description=violation.problem)
        status.details.add().Pack(bad)
    if refusal.retry_after is not None:
        retry = details_pb.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(refusal.retry_after * 1000))
        status.details.add().Pack(retry)
    return code, status.SerializeToString()


async def abort(context: Proto, refusal: Refusal) -> None:
    """End a call with a refusal."""
    code, details = rich_status(refusal)
    trailing = (("grpc-status-details-bin", details),)
    await context.abort(code, refusal.message, trailing_metadata=trailing)
