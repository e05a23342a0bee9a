"""The supervisor: runs a machine until it is told to stop. `occ up` starts it and shows what it says.

It reports as JSON lines on standard output: `step`, then `ready` or `error`, and with `--attached` also `programs` at each change and
`stopped`. Detached it falls silent when the machine is ready, so that the command that started it can go home. Attached it stops when its
standard input ends, so that a killed terminal takes the machine down in order. Everything unexpected goes to `logs/supervisor.log`.

`python -m oce.dev.daemon --state-dir DIR [--port-base N] [--context NAME] [--attached]`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from oce.client.context import Contexts, home
from oce.client.errors import ContextError
from oce.dev.layout import LayoutError
from oce.dev.machine import Machine, MachinePlan, Step
from oce.dev.naming import context_name
from oce.dev.postgres import PostgresError
from oce.dev.programs import ProgramError, how_it_ended
from oce.dev.state import StateDirectory, StateError

FAILURES = (StateError, ProgramError, PostgresError, LayoutError, ContextError, OSError)
"""What keeps a machine from starting, each with a sentence for people."""


def sentence(error: BaseException) -> str:
    """Return the sentence of a failure; a group's members are told once each."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(sentence(inner) for inner in error.exceptions))
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full{_where(error)}; make room and try again, nothing was lost"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{_where(error)}"
    return str(error) if isinstance(error, FAILURES) else f"{type(error).__name__}: {error}"


def _where(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""


def prepare(state_dir: Path, port_base: int | None, context: str | None) -> MachinePlan:
    """Make the state directory and return the plan of its machine. Raises StateError, ContextError, OSError."""
    state = StateDirectory(state_dir.absolute())
    state.prepare()
    name = context or context_name(Contexts(home(os.environ)), state.root)
    return MachinePlan(state=state, ports=state.ports(port_base), context_name=name)


def _say(document: dict[str, object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(json.dumps(document), flush=True)  # noqa: T201 - the protocol of this program


def _report(step: Step) -> None:
    _say({"step": step.name, "milliseconds": round(step.milliseconds, 1)})


def _watch_for_stop(*, attached: bool) -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and, when attached, the end of standard input set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    if attached:
        loop.add_reader(0, read)
    return stop


async def run(plan: MachinePlan, *, attached: bool) -> None:
    """Start, keep, stop. A signal in the middle of the start takes back what was started. Raises `FAILURES`, in a group or alone."""
    stop = _watch_for_stop(attached=attached)
    machine = Machine(plan, report=_report, changed=lambda: _tell(machine) if attached else None)
    starting, stopping = asyncio.create_task(machine.__aenter__()), asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    stopping.cancel()
    await starting
    _say({"ready": True, "context": asdict(machine.context)})
    if attached:
        _tell(machine)
    else:
        _go_silent()
    await stop.wait()
    await machine.__aexit__(None, None, None)


def _tell(machine: Machine) -> None:
    _say(
        {
            "programs": [
                {
                    "name": state.program.name,
                    "pid": state.pid,
                    "ready": state.ready,
                    "restarts": state.restarts,
                    "lastExit": None if state.last_exit is None else how_it_ended(state.last_exit),
                    "log": str(state.program.log),
                }
                for state in machine.keeper.states()
            ]
        }
    )


def _go_silent() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _log_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main() -> int:
    """Run; 1 with an `error` line when the machine did not start or did not stop."""
    parser = argparse.ArgumentParser(prog="oce.dev.daemon", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--port-base", type=int)
    parser.add_argument("--context")
    parser.add_argument("--attached", action="store_true")
    given = parser.parse_args()
    failed: list[str] = []
    try:
        plan = prepare(given.state_dir, given.port_base, given.context)
        _log_to(plan.state.logs / "supervisor.log")
        asyncio.run(run(plan, attached=given.attached))
    except* FAILURES as group:
        failed.append(sentence(group))
    except* Exception as group:  # noqa: BLE001 - a fault of ours: its trace is kept, its name is told
        traceback.print_exception(group)
        failed.append(f"{sentence(group)} (see logs/supervisor.log)")
    _say({"error": "; ".join(failed)} if failed else {"stopped": True})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
