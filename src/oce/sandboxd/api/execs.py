"""Commands inside a running Sandbox, and its log lines (reference/openshell-gateway.md a.9, b.11)."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import aclosing
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query, Stream
from oce.sandboxd.api.stubs import Proto, pb, timestamp
from oce.sandboxd.lifecycle.logs import LEVELS, at_least
from oce.sandboxd.lifecycle.providers import views_of
from oce.sandboxd.lifecycle.rendering import WORKDIR, full_environment
from oce.sandboxd.place import ExecExit, ExecRequest, NotRunningError
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing, precondition
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.lifecycle.logs import LogLine
    from oce.sandboxd.state.store import Record

_MAX_ARGUMENTS, _MAX_ARGUMENT, _MAX_WORKDIR = 1024, 32 * 1024, 4096
_MAX_LINES = 2000
_PYTHON_FUNCTION = "OPENSHELL_PYFUNC_B64"
_SOURCES = frozenset({"gateway", "sandbox"})


def log_message(sandbox_id: str, line: LogLine) -> Proto:
    """Return a log line's message."""
    return pb.SandboxLogLine(
        sandbox_id=sandbox_id,
        event_time=timestamp(line.time),
        level=line.level,
        target=line.target,
        message=line.message,
        source=line.source,
        fields=dict(line.fields),
    )


class Execs:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "ExecSandbox": Stream(handle=self._exec),
            "GetSandboxLogs": Query(handle=self._logs),
        }

    def _sandbox(self, call: Call) -> Record:
        reader = self._g.store.read
        checks.active_workspace(reader, call.workspace, writing=False)
        record = reader.named(Kind.SANDBOX, call.workspace, call.request.sandbox)
        if record is None or not call.principal.may_enter(record.workspace):
            raise missing("sandbox", call.request.sandbox)
        return record

    async def _exec(self, call: Call) -> AsyncGenerator[Proto, None]:
        request = self._request(call)
        record = self._sandbox(call)
        running = self._g.supervisor.running(record.id)
        status = pb.SandboxStatus.FromString(record.status)
        if running is None or status.phase != pb.SANDBOX_PHASE_READY:
            raise precondition("sandbox is not ready")
        spec = pb.Sandbox.FromString(record.payload).spec
        views = views_of(self._g.store.read, record.workspace, list(spec.providers))
        complete = full_environment(spec, views) | dict(request.environment)
        request = ExecRequest(
            command=request.command,
            workdir=request.workdir,
            environment=complete,
            stdin=request.stdin,
            timeout_seconds=request.timeout_seconds,
        )
        try:
            async with aclosing(running.exec(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, ExecExit):
                        yield pb.ExecSandboxEvent(exit=pb.ExecSandboxExit(exit_code=event.code))
                    elif event.stream == 1:
                        yield pb.ExecSandboxEvent(stdout=pb.ExecSandboxStdout(data=event.data))
                    else:
                        yield pb.ExecSandboxEvent(stderr=pb.ExecSandboxStderr(data=event.data))
        except ValueError as error:
            raise invalid("command", str(error)) from error
        except NotRunningError as error:
            raise precondition("sandbox is not ready") from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise Refusal(Status.UNAVAILABLE, "the sandbox ended while the command ran") from error

    def _request(self, call: Call) -> ExecRequest:
        request = call.request
        if request.tty:
            raise Refusal(
                Status.UNIMPLEMENTED, "ExecSandbox with tty is not implemented by this gateway"
            )
        if not request.command or not request.command[0]:
            raise invalid("command", "must name a program")
        if len(request.command) > _MAX_ARGUMENTS:
            raise invalid("command", f"has more than {_MAX_ARGUMENTS} arguments")
        if any(len(item.encode()) > _MAX_ARGUMENT or "\0" in item for item in request.command):
            raise invalid("command", "has an argument over 32 KiB or with NUL")
        if len(request.workdir) > _MAX_WORKDIR or "\0" in request.workdir:
            raise invalid("workdir", "is too long or has NUL")
        if request.workdir and not request.workdir.startswith("/"):
            raise invalid("workdir", "must be absolute")
        checks.environment(request.environment, "environment", (_PYTHON_FUNCTION,))
        timeout: float | None = None
        if request.HasField("execution_timeout"):
            timeout = request.execution_timeout.ToTimedelta().total_seconds()
            if timeout <= 0:
                raise invalid("execution_timeout", "must be positive")
        shell = "-c" if request.no_login_shell else "-lc"
        return ExecRequest(
            command=("/bin/bash", shell, shlex.join(request.command)),
            workdir=request.workdir or WORKDIR,
            environment=dict(request.environment),
            stdin=request.stdin,
            timeout_seconds=timeout,
        )

    async def _logs(self, call: Call) -> Proto:
        request = call.request
        record = self._sandbox(call)
        if request.min_level and request.min_level.upper() not in LEVELS:
            raise invalid("min_level", f"must be one of {', '.join(LEVELS)}")
        if not set(request.sources) <= _SOURCES:
            raise invalid("sources", "must be gateway or sandbox")
        held = self._g.logs.lines(record.id)
        since = 0.0
        if request.HasField("since_time"):
            since = request.since_time.seconds + request.since_time.nanos / 1e9
        wanted = [
            line
            for line in at_least(request.min_level.upper(), held)
            if line.time >= since and (not request.sources or line.source in request.sources)
        ]
        count = min(request.lines or _MAX_LINES, _MAX_LINES)
        return pb.GetSandboxLogsResponse(
            logs=[log_message(record.id, line) for line in wanted[-count:]],
            buffer_total=len(held),
        )
