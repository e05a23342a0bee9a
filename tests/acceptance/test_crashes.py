"""Programs that die in the middle: nothing is lost, nothing runs twice, and the conversation goes on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from person import serve, until

if TYPE_CHECKING:
    from person import Machine, Shell

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]


def test_the_worker_is_killed_in_the_middle_of_a_deploy(machine: Machine, shell: Shell):
    agent = serve(shell, "survivor")
    before = machine.sandboxes_of(agent["id"])
    assert len(before) == 1
    shell.occ("agent", "deploy", "survivor")
    until(lambda: len(machine.sandboxes_of(agent["id"])) == 2, "the candidate's Sandbox exists")
    machine.kill("worker")
    shell.occ("agent", "deployment-status", "survivor", "--wait")
    until(lambda: len(machine.sandboxes_of(agent["id"])) == 1, "only the new Sandbox is left")
    assert machine.sandboxes_of(agent["id"]) != before
    assert "message" in shell.chat("survivor", "Well?")


def test_sandboxd_is_killed_and_adopts_what_runs(machine: Machine, shell: Shell):
    agent = serve(shell, "adopted")
    shell.chat("adopted", "Remember me")
    running = machine.sandboxes_of(agent["id"])
    machine.kill("sandboxd")
    machine.until_serving()
    assert machine.sandboxes_of(agent["id"]) == running, "the same processes run on"
    assert "message 2" in shell.chat("adopted", "And after")
    shell.occ("agent", "harness-status", "adopted")
    shell.occ("agent", "deploy", "adopted", "--wait")


def test_postgresql_is_stopped_and_started_again(machine: Machine, shell: Shell):
    serve(shell, "databased")
    shell.chat("databased", "Before")
    stopped = machine.kill("postgresql", signal.SIGINT)
    assert "message 2" in shell.chat("databased", "The relay knows me")
    machine.until_serving()
    assert machine.pid("postgresql") != stopped
    shell.occ("agent", "deploy", "databased", "--wait")
    assert "message 3" in shell.chat("databased", "After")


def test_the_supervisor_is_killed_and_up_takes_over(machine: Machine, shell: Shell):
    agent = serve(shell, "orphaned")
    shell.chat("orphaned", "Before")
    running = machine.sandboxes_of(agent["id"])
    os.kill(machine.supervisor(), signal.SIGKILL)
    down = shell.occ("status", "-o", "json", code=1).json()
    assert [one["component"] for one in down if not one["serving"]] == ["supervisor"]
    assert "message 2" in shell.chat("orphaned", "Nobody watches")
    shell.occ("up", "--detach")
    assert machine.sandboxes_of(agent["id"]) == running, "the Sandbox was adopted"
    assert "message 3" in shell.chat("orphaned", "Watched again")


def test_down_keeps_everything_and_up_brings_it_back(machine: Machine, shell: Shell):
    agent = serve(shell, "rebooted")
    serve(shell, "resting")
    shell.occ("agent", "stop", "resting")
    shell.chat("rebooted", "Before")
    said = shell.occ("down")
    assert "data stays" in said.out
    assert machine.sandboxes_of(agent["id"]) == []
    assert {one["serving"] for one in shell.occ("status", "-o", "json", code=1).json()} == {False}
    (machine.state / "keys" / "administrator.json").unlink()
    shell.occ("up", "--detach")
    until(lambda: machine.sandboxes_of(agent["id"]), "the Agent runs again")
    until(
        lambda: shell.occ("agent", "harness-status", "rebooted", code=None).code == 0,
        "the Agent serves again",
    )
    assert "message 2" in shell.chat("rebooted", "After")
    assert shell.json("agent", "get", "resting")["desiredRuntimeState"] == "stopped"


def test_a_second_up_is_refused(machine: Machine, shell: Shell):
    for mode in ((), ("--detach",)):
        refused = shell.occ("up", *mode, code=1)
        assert f"in use by process {machine.supervisor()} since" in refused.err
        assert "occ down" in refused.err
    shell.occ("status")
