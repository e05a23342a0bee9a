"""The process behind `occ up --detach`: runs a machine until it is told to stop.

It reports progress as JSON lines on standard output until the machine is ready (or is not), then closes it, so that the command that
started it can go home. `python -m oce.dev.daemon --state-dir DIR [--port-base N] --context NAME`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from oce.dev.layout import LayoutError
from oce.dev.machine import Machine, MachinePlan, Step
from oce.dev.postgres import PostgresError
from oce.dev.programs import ProgramError
from oce.dev.state import StateDirectory, StateError

FAILURES = (StateError, ProgramError, PostgresError, LayoutError)
"""What keeps a machine from starting, each with a sentence for people."""


def sentence(error: BaseException) -> str:
    """Return the sentence of a failure, also out of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(sentence(inner) for inner in error.exceptions)
    return str(error) if isinstance(error, FAILURES) else f"{type(error).__name__}: {error}"


def prepare(state_dir: Path, port_base: int | None, context: str) -> MachinePlan:
    """Make the state directory and return the plan of its machine. Raises StateError."""
    state = StateDirectory(state_dir.absolute())
    state.prepare()
    return MachinePlan(state=state, ports=state.ports(port_base), context_name=context)


async def until_stopped(stop: asyncio.Event) -> None:
    """Wait for SIGTERM, SIGINT or the event."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _say(document: dict[str, object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(json.dumps(document), flush=True)  # noqa: T201 - the protocol of this program


async def _run(plan: MachinePlan) -> None:
    stop = asyncio.Event()
    async with Machine(plan, report=_report) as machine:
        _say({"ready": True, "context": asdict(machine.context)})
        _go_silent()
        await until_stopped(stop)


def _report(step: Step) -> None:
    _say({"step": step.name, "milliseconds": round(step.milliseconds, 1)})


def _go_silent() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def main() -> None:
    """Run; exit 1 with an `error` line when the machine did not start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--port-base", type=int)
    parser.add_argument("--context", required=True)
    arguments = parser.parse_args()
    try:
        asyncio.run(_run(prepare(arguments.state_dir, arguments.port_base, arguments.context)))
    except* FAILURES as group:
        _say({"error": sentence(group)})
        sys.exit(1)


if __name__ == "__main__":
    main()
