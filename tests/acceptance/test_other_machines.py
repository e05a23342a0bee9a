"""State directories beside the session's machine: a stranger on the port, a full disk, a Codex that ends at once, a bad directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from person import MATERIAL, OCC, agent_document, new_root, new_shell, until

from oce.dev.processes import alive
from oce.dev.state import StateDirectory
from oce.dev.traces import sandboxes_of, traces_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from person import ModelEndpoint, Shell


@pytest.fixture
def elsewhere() -> Iterator[tuple[Path, Shell]]:
    """Return a root of its own and a terminal whose state directory lies there; nothing may be left."""
    root = new_root("oce-b-")
    sandboxes: frozenset[str] = frozenset()
    try:
        yield root, new_shell(root, root / "state")
        sandboxes = sandboxes_of(root / "state" / "sandboxd")
    finally:
        new_shell(root, root / "state").occ("down", code=None)
        shutil.rmtree(root, ignore_errors=True)
    assert traces_of(root, sandboxes=sandboxes) == ()


def test_a_stranger_on_the_port_is_named_and_never_taken_for_ours(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        base = stranger.getsockname()[1]
        refused = shell.occ("up", "--detach", "--port-base", str(base), code=1)
        assert f"port {base} (for sandboxd) is in use by another process" in refused.err
        assert "--port-base" in refused.err
        found = shell.occ("status", "-o", "json", code=1).json()
        evidence = {one["component"]: one["evidence"] for one in found}
        assert not any(one["serving"] for one in found)
        assert "in use by another process" in evidence["sandboxd"]
    assert traces_of(root / "state")[:-1] == (), "nothing but the directory"


def test_directories_that_cannot_be_used(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    long = root / ("d" * 90)
    assert "bytes" in shell.occ("up", "--detach", "--state-dir", str(long), code=1).err
    assert not long.exists()
    file = root / "file"
    file.touch()
    refused = shell.occ("up", "--detach", "--state-dir", str(file / "below"), code=1)
    assert "cannot be used: Not a directory" in refused.err
    assert "there is nothing" in shell.occ("down", "--state-dir", str(root / "no"), code=1).err
    assert "there is nothing" in shell.occ("status", "--state-dir", str(root / "no"), code=1).err
    missing = shell.occ("up", "--detach", env={"OCC_CODEX_BINARY": "/no/codex"}, code=1)
    assert "OCC_CODEX_BINARY names no executable file: /no/codex" in missing.err
    (root / "state" / "operator.toml").write_text("[[upstream]]\nhots = 'x'\n")
    unknown = shell.occ("up", "--detach", code=1)
    assert "`upstream[0].hots` is not known" in unknown.err


@pytest.mark.sandbox
def test_a_codex_that_ends_at_once_and_an_orderly_foreground(
    elsewhere: tuple[Path, Shell], model: ModelEndpoint
):
    root, shell = elsewhere
    broken = root / "codex"
    broken.write_text("#!/bin/sh\necho 'I will not run' >&2\nexit 7\n")
    broken.chmod(0o755)
    (root / "state").mkdir()
    (root / "state" / "operator.toml").write_text(model.operator_settings())
    output = (root / "up.log").open("wb")
    process = subprocess.Popen(
        [str(OCC), "up"],
        env={**shell.environment, "OCC_CODEX_BINARY": str(broken)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        until(lambda: b"Ctrl-C stops it" in (root / "up.log").read_bytes(), "occ up serves")
        shell.occ("apply", "-f", "-", stdin=MATERIAL)
        shell.occ("apply", "-f", "-", stdin=agent_document("broken"))
        refused = shell.occ("agent", "deploy", "broken", "--wait", code=1)
        assert "RUNTIME_STARTUP_FAILED" in refused.err, refused
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        output.close()
    said = (root / "up.log").read_text()
    assert "stopped; data stays" in said
    assert "Traceback" not in said
    assert shell.occ("down").out.startswith("nothing was running")


def _as_a_script_with_nohup() -> None:
    """Be born like `nohup occ up &` in a script: whoever starts it has both signals ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_a_foreground_started_by_a_script_outlives_a_logout_and_ends_at_ctrl_c(
    elsewhere: tuple[Path, Shell],
):
    root, shell = elsewhere
    state = StateDirectory(root / "state")
    state.root.mkdir()
    state.operator_file.write_text("durable = false\n")
    with (root / "up.log").open("wb") as output:
        process = subprocess.Popen(
            [str(OCC), "up"],
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_as_a_script_with_nohup,  # noqa: PLW1509 - nothing else can set what a child ignores
        )
    try:
        until(lambda: b"Ctrl-C stops it" in (root / "up.log").read_bytes(), "occ up serves")
        process.send_signal(signal.SIGHUP)
        shell.occ("apply", "-f", "-", stdin=MATERIAL)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "stopping; data stays" in (root / "up.log").read_text()


def test_a_killed_foreground_takes_its_machine_down(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    state = StateDirectory(root / "state")
    (state.root).mkdir()
    state.operator_file.write_text("durable = false\n")
    process = subprocess.Popen(
        [str(OCC), "up"],
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()  # in the middle of the start
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not traces_of(state.root)[:-1], "everything is taken back")


def _supervisor(state: StateDirectory) -> int:
    """Return the pid of the living supervisor that has written itself into the lock, 0 while there is none."""
    try:
        pid = json.loads((state.run / "lock").read_text())[0]
    except (OSError, ValueError):
        return 0
    return int(pid) if alive(pid) else 0


def test_a_supervisor_killed_in_the_middle_of_its_start(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    state = StateDirectory(root / "state")
    state.root.mkdir()
    state.operator_file.write_text("durable = false\n")
    for sign in (
        "run/worker.pid",
        "postgres/data.*",
        "postgres/data/postmaster.pid",
        "run/api.pid",
    ):
        start = subprocess.Popen(
            [str(OCC), "up", "--detach"],
            env=shell.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # A sign may be one that the supervisor killed before has left: the new one must hold the lock as well.
        until(lambda sign=sign: any(state.root.glob(sign)) and _supervisor(state), sign)
        os.kill(_supervisor(state), signal.SIGKILL)
        _, said = start.communicate(timeout=60)
        assert start.returncode == 1
        assert b"occ down" in said, said
        if sign == "postgres/data/postmaster.pid":
            assert "stopped" in shell.occ("down").out
    shell.occ("up", "--detach")
    shell.occ("agent", "list")
    shell.occ("down")


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: a small tmpfs is mounted as state directory"
)
def test_a_full_disk_while_a_revision_is_written(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    state = root / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "oce-test", state], check=True)
    try:
        shell.occ("up", "--detach")
        shell.occ("apply", "-f", "-", stdin=MATERIAL)
        shell.occ("apply", "-f", "-", stdin=agent_document("squeezed"))
        _fill(state / "filler")
        failures = [shell.occ("agent", "deploy", "squeezed", code=None) for _ in range(3)]
        assert failures[-1].code == 1, failures
        assert "503" in failures[-1].err or "DEPENDENCY" in failures[-1].err, failures
        assert "Traceback" not in failures[-1].err
        (state / "filler").unlink()
        until(lambda: shell.occ("status", code=None).code == 0, "it serves again")
        assert shell.json("agent", "get", "squeezed")["name"] == "squeezed"
        shell.occ("agent", "deploy", "squeezed")
        shell.occ("down")
    finally:
        shell.occ("down", code=None)
        subprocess.run(["umount", state], check=True)


def _fill(path: Path) -> None:
    with path.open("wb") as file:
        while True:
            try:
                file.write(bytes(1 << 16))
                file.flush()
            except OSError:
                return


def test_two_directories_at_once_keep_two_contexts(elsewhere: tuple[Path, Shell]):
    root, shell = elsewhere
    for name in ("state", "second"):
        (root / name).mkdir()
        (root / name / "operator.toml").write_text("durable = false\n")
    shell.occ("up", "--detach")
    shell.occ("up", "--detach", "--state-dir", str(root / "second"))
    try:
        rows = {one["name"]: one for one in shell.json("context", "list")}
        assert set(rows) == {"local", "second"}
        assert rows["second"]["current"]
        assert rows["local"]["url"] != rows["second"]["url"]
        shell.occ("configuration", "create", "-f", "-", stdin=CONFIGURATION)
        shell.occ("context", "use", "local")
        assert shell.json("configuration", "list") == []
        assert len(shell.json("--context", "second", "configuration", "list")) == 1
        asked = shell.occ(
            "down", "--purge", "--state-dir", str(root / "second"), stdin="n\n", code=130
        )
        assert "Remove" in asked.out
        shell.occ("status", "--state-dir", str(root / "second"))
    finally:
        shell.occ("down", "--purge", "--yes", "--state-dir", str(root / "second"), code=None)
    assert not (root / "second").exists()
    assert [one["name"] for one in shell.json("context", "list")] == ["local"]
    started = time.monotonic()
    shell.occ("down")
    assert time.monotonic() - started < 60


CONFIGURATION = """\
kind: agent
values:
  agents: {defaults: {model: {primary: openai/gpt-5.2-codex}}}
"""
