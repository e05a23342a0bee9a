"""A wrong key, and a model endpoint that is away: said at once, by name, while what served goes on serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from person import agent_document, serve

if TYPE_CHECKING:
    from person import Machine, Shell

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]

WRONG = """\
kind: Secret
name: wrong-key
valueFrom: {env: WRONG_KEY}
---
kind: CredentialSource
name: wrong
type: openai
secrets: {api_key: wrong-key}
"""


def test_a_wrong_key_fails_the_deployment_and_the_predecessor_serves(
    machine: Machine, shell: Shell
):
    agent = serve(shell, "keyed")
    shell.chat("keyed", "Before")
    shell.occ("apply", "-f", "-", stdin=WRONG, env={"WRONG_KEY": "sk-wrong-0123456789abcdef"})
    shell.occ("apply", "-f", "-", stdin=agent_document("keyed", source="wrong"))
    refused = shell.occ("agent", "deploy", "keyed", "--wait", code=1)
    assert "RUNTIME_AUTHENTICATION_FAILED" in refused.err, refused
    assert "Hint:" in refused.err
    assert "sk-wrong" not in refused.out + refused.err
    status = shell.occ("agent", "deployment-status", "keyed", "-o", "json", code=1).json()
    assert status["status"] == "failed"
    assert status["error"]["code"] == "RUNTIME_AUTHENTICATION_FAILED"
    after = shell.json("agent", "get", "keyed")
    assert after["activeRevisionId"] == agent["activeRevisionId"]
    assert len(machine.sandboxes_of(agent["id"])) == 1, "the failed candidate is removed"
    assert "message 2" in shell.chat("keyed", "The predecessor serves")
    shell.occ("apply", "-f", "-", "--deploy", "--wait", stdin=agent_document("keyed"))
    assert "message 3" in shell.chat("keyed", "Repaired")


def test_the_model_endpoint_is_down(machine: Machine, shell: Shell):
    agent = serve(shell, "modelless")
    shell.chat("modelless", "Before")
    machine.model.stop()
    try:
        failed = shell.occ("agent", "chat", "modelless", "Anybody?", code=1)
        assert failed.err.startswith("Error: "), failed
        assert "Traceback" not in failed.err
    finally:
        machine.model.start()
    assert "You said: Back" in shell.chat("modelless", "Back")
    assert shell.json("agent", "get", "modelless")["activeRevisionId"] == agent["activeRevisionId"]
