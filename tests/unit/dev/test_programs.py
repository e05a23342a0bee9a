"""Keeping programs: ready or a sentence with the last words, restarted after a crash, ended with their whole group, never mistaken."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from oce.dev.processes import alive, end_recorded, record, recorded, start_time
from oce.dev.programs import Keeper, Program, ProgramError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    kept = Keeper()
    yield kept
    await kept.stop_all()


def _program(folder: Path, script: str, ready: Path | None = None, **more: object) -> Program:
    marker = ready or folder / "ready"

    async def probe() -> bool:
        return marker.exists()

    return Program(
        name="one",
        command=[sys.executable, "-I", "-S", "-c", script],
        log=folder / "one.log",
        ready=probe,
        pid_file=folder / "one.pid",
        marker=marker,
        **more,  # type: ignore[arg-type]
    )


def _serving(folder: Path) -> str:
    return f"import time; open({str(folder / 'ready')!r}, 'w').close(); time.sleep(60)"


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.01)


async def test_a_crash_is_followed_by_a_restart_and_a_stop_ends_the_group(
    tmp_path: Path, keeper: Keeper
):
    await keeper.start(_program(tmp_path, _serving(tmp_path)))
    first = recorded(tmp_path / "one.pid")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    state = keeper.states()[0]
    await _until(lambda: state.restarts == 1 and state.ready)
    second = recorded(tmp_path / "one.pid")
    assert second not in {None, first}
    assert state.last_exit == -signal.SIGKILL
    await keeper.stop("one")
    assert second is not None
    assert not alive(second)
    assert not (tmp_path / "one.pid").exists()


async def test_a_marker_of_an_earlier_life_proves_nothing(tmp_path: Path, keeper: Keeper):
    (tmp_path / "ready").touch()
    with pytest.raises(ProgramError, match="ended with status 3 before it was ready"):
        await keeper.start(_program(tmp_path, "raise SystemExit(3)"))


async def test_what_does_not_start_is_quoted_with_whole_lines(tmp_path: Path, keeper: Keeper):
    script = "print('x' * 2000); print('the reason'); raise SystemExit(1)"
    with pytest.raises(ProgramError) as failed:
        await keeper.start(_program(tmp_path, script))
    assert str(failed.value).endswith("ends with:\nthe reason")


async def test_patience_ends(tmp_path: Path, keeper: Keeper):
    program = _program(tmp_path, "import time; time.sleep(60)", ready_seconds=0.1)
    with pytest.raises(ProgramError, match=r"was not ready after 0 s\. Its log .* is empty"):
        await keeper.start(program)


async def test_a_loaded_program_runs_only_when_it_may(tmp_path: Path, keeper: Keeper):
    program = Program(
        name="once",
        module=["compileall", "-q", str(tmp_path / "made")],
        log=tmp_path / "once.log",
        ready=_never,
    )
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "m.py").write_text("x = 1\n")
    keeper.load(program)
    assert not (tmp_path / "made" / "__pycache__").exists()
    with pytest.raises(
        ProgramError
    ):  # `compileall.main` returns True for success, which is status 1
        await keeper.run_once(program)
    assert (tmp_path / "made" / "__pycache__").exists()


async def test_a_loaded_program_whose_starter_is_gone_does_nothing(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "oce.dev.run", "compileall", "-q", str(tmp_path)),
        stdin=asyncio.subprocess.PIPE,
    )
    (tmp_path / "m.py").write_text("x = 1\n")
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0
    assert not (tmp_path / "__pycache__").exists()


async def _never() -> bool:
    return False


@pytest.mark.parametrize(
    "text", ["", "1", "x y z", "{pid} {start}", "{pid} 1 {boot}", "{pid} {start} other"]
)
async def test_a_file_that_does_not_name_exactly_this_process_ends_nobody(
    tmp_path: Path, text: str
):
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(60)"
    )
    file = tmp_path / "x.pid"
    try:
        record(file, victim.pid)
        boot = file.read_text().split()[2]
        assert recorded(file) == victim.pid
        file.write_text(text.format(pid=victim.pid, start=start_time(victim.pid), boot=boot))
        assert not await end_recorded(file)
        assert victim.returncode is None
        assert alive(victim.pid)
        assert not file.exists()
    finally:
        victim.kill()
        await victim.wait()


async def test_a_recorded_process_is_ended_with_its_group(tmp_path: Path):
    victim = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", f"sleep 60 & echo $! > {tmp_path / 'child'}; wait"),
        start_new_session=True,
    )
    child = tmp_path / "child"
    await _until(lambda: child.exists() and bool(child.read_text()))
    record(tmp_path / "x.pid", victim.pid)
    reaped = asyncio.create_task(victim.wait())
    assert await end_recorded(tmp_path / "x.pid")
    await reaped
    await _until(lambda: not alive(int(child.read_text())))
