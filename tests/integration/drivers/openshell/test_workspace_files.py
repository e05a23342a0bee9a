"""Initial workspace files: private, only in a READY Sandbox, repeatable, later edits kept (§22.16; BR-38)."""

from __future__ import annotations

import json
import os
import threading
import time

import grpc
import pytest
from openshell._proto import openshell_pb2

from oce.contracts.refusals import (
    DriverRefusal,
    OwnershipConflict,
    RevisionUnsupported,
    WorkspaceSetupRefused,
)
from oce.domain.failures import Tempo
from oce.domain.resources import Harness
from oce.drivers.openshell import workspace_program
from oce.drivers.openshell.workspace_program import MARKER, Refused, initialise
from oce.harness.codex.workspace import initialised
from oce.testing.openshell_bench import AGENT_ID, DOCUMENT, NAMESPACE_ID
from oce.testing.scripted_gateway import altered, broken_stream, lost, status

CODE = grpc.StatusCode
CODEX = Harness(id="codex", version="1", mode="dedicated")
WANTED = {"id": "wss_1", "namespaceId": NAMESPACE_ID, "agentId": AGENT_ID, "defaultsId": "d1"}


@pytest.fixture
async def inside(bench, tmp_path):
    await bench.prepare()
    bench.stage_files()
    bench.run_inside(tmp_path)
    return tmp_path


async def provision(bench):
    await bench.driver.provision_harness(bench.with_files())


async def test_g16_the_files_come_private_and_the_marker_last(bench, inside):
    await provision(bench)
    assert (inside / "AGENTS.md").read_text() == DOCUMENT
    assert json.loads((inside / MARKER).read_text()) == WANTED
    assert {p.name for p in inside.iterdir()} == {"AGENTS.md", "SOUL.md", MARKER}
    (request,) = bench.gateway.made("ExecSandbox")
    assert not request.tty
    assert request.no_login_shell
    assert DOCUMENT in request.stdin.decode()
    assert DOCUMENT not in " ".join(request.command)
    assert DOCUMENT not in str(dict(request.environment))
    assert all(len(argument.encode()) < 32_768 for argument in request.command)
    for method, message in bench.gateway.requests:
        assert (DOCUMENT in str(message)) == (method == "ExecSandbox")
    assert box(bench).spec.environment["OCE_WORKSPACE_SETUP"] == "wss_1"


def box(bench):
    return bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]


async def test_g16_a_second_run_changes_nothing_and_an_edit_survives(bench, inside):
    await provision(bench)
    (inside / "SOUL.md").write_text("edited by the Agent")
    (inside / "AGENTS.md").unlink()
    await provision(bench)
    assert (inside / "SOUL.md").read_text() == "edited by the Agent"
    assert not (inside / "AGENTS.md").exists()
    assert len(bench.gateway.made("ExecSandbox")) == 2


async def test_g16_only_a_ready_sandbox_is_initialised(bench, inside):
    bench.gateway.initial_phase = openshell_pb2.SANDBOX_PHASE_PROVISIONING
    await provision(bench)
    assert "ExecSandbox" not in bench.gateway.methods()
    assert not initialised({"OCE_WORKSPACE_SETUP": "wss_1"}, str(inside))
    box(bench).status.phase = openshell_pb2.SANDBOX_PHASE_READY
    await provision(bench)
    assert initialised({"OCE_WORKSPACE_SETUP": "wss_1"}, str(inside))
    assert not initialised({"OCE_WORKSPACE_SETUP": "wss_2"}, str(inside))
    assert initialised({}, str(inside))


async def test_g16_a_sandbox_that_starts_is_waited_for_briefly(bench, inside, monkeypatch):
    bench.gateway.initial_phase = openshell_pb2.SANDBOX_PHASE_PROVISIONING
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            box(bench).status.phase = openshell_pb2.SANDBOX_PHASE_READY

    monkeypatch.setattr(bench.clock, "sleep", sleep)
    await provision(bench)
    assert len(slept) == 3
    assert json.loads((inside / MARKER).read_text()) == WANTED


async def test_files_long_in_place_stay_the_agents_own(bench, inside):
    await provision(bench)
    (inside / "SOUL.md").unlink()
    bench.stage_files(files={})
    await provision(bench)
    (inside / MARKER).unlink()  # `git clean` in the workspace
    await provision(bench)
    assert json.loads((inside / MARKER).read_text()) == WANTED
    assert {p.name for p in inside.iterdir()} == {"AGENTS.md", MARKER}


@pytest.mark.parametrize(
    "answer",
    [
        lost(after=False),
        lost(after=True),
        broken_stream(CODE.UNAVAILABLE, after_events=1),
        status(CODE.INTERNAL, details=f"echo {DOCUMENT}"),
        altered(lambda events: events[:1]),
        altered(lambda events: [*events, events[-1]]),
    ],
    ids=["before", "after", "broken", "error", "no exit", "two exits"],
)
async def test_g16_whatever_happens_to_the_call_is_safe_to_repeat(bench, inside, answer, caplog):
    caplog.set_level("DEBUG")
    bench.gateway.script("ExecSandbox", answer)
    with pytest.raises(DriverRefusal) as refused:
        await provision(bench)
    assert refused.value.tempo in {Tempo.RETRY, Tempo.TRANSIENT}
    assert DOCUMENT not in str(refused.value)
    await provision(bench)
    assert json.loads((inside / MARKER).read_text()) == WANTED
    assert DOCUMENT not in caplog.text


async def test_another_setups_marker_is_a_refusal_and_a_failed_program_a_retry(bench, inside):
    (inside / MARKER).write_text('{"id": "wss_other"}')
    with pytest.raises(WorkspaceSetupRefused):
        await provision(bench)
    bench.gateway.on_exec = lambda _: 137
    with pytest.raises(DriverRefusal) as refused:
        await provision(bench)
    assert refused.value.tempo is Tempo.RETRY


@pytest.mark.parametrize(
    "change",
    [{"agentId": "agt_other"}, {"namespaceId": "ns_x"}, {"id": "wss_2"}, {"defaultsId": "d2"}],
)
async def test_a_document_of_somebody_else_is_refused_before_any_call(bench, change):
    bench.stage_files(**change)
    with pytest.raises(WorkspaceSetupRefused):
        await provision(bench)
    assert bench.gateway.requests == []


async def test_a_missing_foreign_or_oversized_document_is_refused_before_any_call(bench):
    with pytest.raises(WorkspaceSetupRefused):
        await provision(bench)
    bench.stage_files(labels={"openclaw.dev/namespace": "ns_other"})
    with pytest.raises(OwnershipConflict):
        await provision(bench)
    bench.stage_files(files={"AGENTS.md": "x" * 400_000})
    with pytest.raises(WorkspaceSetupRefused):
        await provision(bench)
    bench.private.stage("workspace-setup-a1", "setup.json", {**_labels()}, "no json")
    with pytest.raises(WorkspaceSetupRefused):
        await provision(bench)
    assert bench.gateway.requests == []


def _labels():
    return {"openclaw.dev/namespace": NAMESPACE_ID, "openclaw.dev/agent": AGENT_ID}


async def test_without_anybody_who_stages_it_the_handoff_is_refused(bench):
    context = bench.harness(workspace_setup=bench.with_files().requirements.workspace_setup)
    with pytest.raises(WorkspaceSetupRefused):
        await bench.driver.provision_harness(context)


@pytest.mark.parametrize(
    ("harness", "configuration"),
    [
        (Harness(id="codex", version="1", mode="embedded"), {}),
        (CODEX, {"agents": {"defaults": {"workspace": "/elsewhere"}}}),
    ],
)
def test_admission_of_initial_files(bench, harness, configuration):
    bench.driver.validate_workspace_setup(CODEX, {})
    bench.driver.validate_workspace_setup(
        CODEX, {"agents": {"defaults": {"workspace": "/sandbox/enterprise"}}}
    )
    with pytest.raises(WorkspaceSetupRefused):
        bench.driver.validate_workspace_setup(harness, configuration)
    with pytest.raises(RevisionUnsupported):
        bench.driver.configure_agent({}, Harness(id="codex", version="1", mode="embedded"))


# -- The program itself


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {},
        {**WANTED, "files": {"../x": "y"}},
        {**WANTED, "files": {"AGENTS.md": 1}},
        {**WANTED, "files": {"AGENTS.md": "x" * 16_385}},
    ],
)
def test_the_program_writes_nothing_of_a_document_it_refuses(tmp_path, document):
    with pytest.raises(Refused):
        initialise(document, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_program_follows_no_link_and_keeps_what_is_there(tmp_path):
    outside, workspace = tmp_path / "outside", tmp_path / "w"
    outside.write_text("safe")
    workspace.mkdir()
    (workspace / "AGENTS.md").symlink_to(outside)
    (workspace / "SOUL.md").write_text("mine")
    initialise({**WANTED, "files": {"AGENTS.md": "a", "SOUL.md": "b"}}, str(workspace))
    assert outside.read_text() == "safe"
    assert (workspace / "SOUL.md").read_text() == "mine"
    (workspace / MARKER).unlink()
    (workspace / MARKER).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic"):
        initialise({**WANTED, "files": {}}, str(workspace))


def test_a_death_at_any_instant_leaves_whole_files_and_the_next_run_finishes(tmp_path, monkeypatch):
    files = {"AGENTS.md": "a" * 9000, "SOUL.md": "s"}

    class Died(BaseException):
        pass

    for number in range(12):
        workspace = tmp_path / str(number)
        workspace.mkdir()
        left = [number]

        def link(*args, _left=left, _real=workspace_program.os.link, **kwargs):
            _left[0] -= 1
            if _left[0] < 0:
                raise Died
            return _real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(workspace_program.os, "link", link)
            try:
                initialise({**WANTED, "files": files}, str(workspace))
            except Died:
                assert not (workspace / MARKER).exists()
        initialise({**WANTED, "files": files}, str(workspace))
        assert {p.name: len(p.read_text()) for p in workspace.glob("*.md")} == {
            "AGENTS.md": 9000,
            "SOUL.md": 1,
        }


def test_two_runs_at_once_agree(tmp_path):
    document = {**WANTED, "files": {"AGENTS.md": "a", "USER.md": "u"}}
    errors = []

    def run():
        try:
            initialise(document, str(tmp_path))
        except Exception as error:  # noqa: BLE001 - collected and asserted below
            errors.append(error)

    runs = [threading.Thread(target=run) for _ in range(2)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert json.loads((tmp_path / MARKER).read_text()) == WANTED
    assert errors == []
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_dead_run_left_behind_goes_once_it_is_old(tmp_path):
    for name, age in (("old", 1000), ("new", 1)):
        left = tmp_path / f".oce-{name}.tmp"
        left.touch()
        moment = time.time() - age
        os.utime(left, (moment, moment))
    initialise({**WANTED, "files": {}}, str(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} == {".oce-new.tmp", MARKER}
