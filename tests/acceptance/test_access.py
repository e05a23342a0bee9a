"""Roles, keys and bindings as an administrator gives them out, and what their holders can and cannot do."""

from __future__ import annotations

import json
import subprocess

import pytest
from person import Machine, Shell, agent_document, serve

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]


def _holder(shell: Shell, name: str, role: str) -> Shell:
    """Return the terminal of somebody who holds one role in the Namespace, and nothing else."""
    principal = shell.json("service-principal", "create", "--installation")["id"]
    shell.occ("binding", "create", "--subject", principal, "--role", role)
    key = shell.folder / f"{name}.json"
    shell.occ("key", "create", name, "--service-principal", principal, "--out", str(key))
    assert key.stat().st_mode & 0o777 == 0o600
    return Shell({**shell.environment, "OCC_SERVICE_KEY_FILE": str(key)}, shell.folder)


def _curl(machine: Machine, path: str, key: str, body: dict[str, str]) -> tuple[int, str]:
    """Run one turn as a person with curl does."""
    context = json.loads((machine.root / "contexts" / "contexts" / "local.json").read_text())
    done = subprocess.run(
        [
            *("curl", "-sS", "--cacert", context["caFile"], "-w", "\n%{http_code}", "-N"),
            *("-H", f"x-api-key: {key}", "-H", "content-type: application/json"),
            *("-d", json.dumps(body), f"{context['gatewayUrl']}{path}"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def test_a_viewer_sees_and_cannot_deploy(machine: Machine, shell: Shell):
    viewer = _holder(shell, "watching", "viewer")
    shell.occ("apply", "-f", "-", stdin=agent_document("looked-at"))
    assert viewer.json("agent", "get", "looked-at")["name"] == "looked-at"
    refused = viewer.occ("agent", "deploy", "looked-at", code=1)
    assert "403 FORBIDDEN" in refused.err
    viewer.occ("secret", "delete", "openai-key", code=1)
    denied = shell.json("audit", "list", "--outcome", "denied")
    assert any("deploy" in event["action"] for event in denied), denied


def test_a_key_with_agent_use_talks_by_curl_and_does_nothing_else(machine: Machine, shell: Shell):
    agent = serve(shell, "curled")
    shell.occ(
        "role", "create", "talkers", "--permission", "agent:read", "--permission", "agent:use"
    )
    role = next(one for one in shell.json("role", "list") if one["name"] == "talkers")
    principal = shell.json("service-principal", "create", "--installation")["id"]
    target = f"agent:{agent['id']}"
    shell.occ(
        "binding", "create", "--subject", principal, "--role", role["id"], "--resource", target
    )
    file = shell.folder / "talker.json"
    shell.occ("key", "create", "talker", "--service-principal", principal, "--out", str(file))
    issued = json.loads(file.read_text())["data"]
    turns = f"/namespaces/{agent['namespaceId']}/agents/{agent['id']}/turns"

    status, answer = _curl(machine, turns, issued["key"], {"input": "From curl"})
    assert status == 200
    assert "You said: From curl (message 1)" in answer
    thread = next(
        json.loads(line.removeprefix("data: "))["threadId"]
        for line in answer.splitlines()
        if "threadId" in line
    )
    _, again = _curl(machine, turns, issued["key"], {"input": "Again", "threadId": thread})
    assert "(message 2)" in again

    talker = Shell({**shell.environment, "OCC_SERVICE_KEY_FILE": str(file)}, shell.folder)
    talker.occ("agent", "deploy", "curled", code=1)
    talker.occ("agent", "delete", "curled", code=1)
    other = serve(shell, "not-for-curl")
    elsewhere = turns.replace(agent["id"], other["id"])
    status, problem = _curl(machine, elsewhere, issued["key"], {"input": "Hello"})
    assert status == 403
    assert json.loads(problem)["error"]["code"] == "FORBIDDEN"
    status, _ = _curl(machine, turns, "occ_" + "0" * 32 + "_" + "x" * 43, {"input": "Hello"})
    assert status == 401

    shell.occ("key", "revoke", issued["id"])
    talker.occ("agent", "get", "curled", code=1)
