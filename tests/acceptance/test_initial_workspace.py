"""First files of a workspace: there before Codex says its first word, written once, and the Agent's own from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from person import agent_document

if TYPE_CHECKING:
    from person import Machine, Shell

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]
TEXT = "Answer in one invented sentence."


def test_an_agent_begins_with_its_files_and_keeps_its_edits(machine: Machine, shell: Shell):
    (shell.folder / "AGENTS.md").write_text(TEXT)
    made = ("agent", "create", "guided", "--configuration", "plain", "--source", "openai")
    refused = shell.occ(*made, "--workspace-file", "/etc/hostname", code=1).err
    assert "/initialWorkspaceFiles/hostname" in refused
    shell.occ(*made, "--workspace-file", "AGENTS.md")
    assert shell.json("agent", "get", "guided")["initialWorkspace"]["status"] == "pending"
    shell.occ("agent", "deploy", "guided", "--wait")
    assert shell.json("agent", "get", "guided")["initialWorkspace"]["status"] == "complete"
    assert TEXT in shell.chat("guided", "run: cat AGENTS.md")

    edit = "run: echo edited > AGENTS.md && unlink .oce-workspace-setup.json && echo done"
    assert "done" in shell.chat("guided", edit)
    shell.occ("agent", "deploy", "guided", "--wait")
    assert "edited" in shell.chat("guided", "run: cat AGENTS.md")
    for place in (machine.state / "logs").glob("*"):
        assert TEXT not in place.read_text(errors="replace"), place

    text = agent_document("written") + f"initialWorkspaceFiles: {{SOUL.md: {TEXT}}}\n"
    shell.occ("apply", "-f", "-", "--deploy", "--wait", stdin=text)
    assert TEXT in shell.chat("written", "run: cat SOUL.md")
    assert "not compared" in shell.occ("diff", "-f", "-", stdin=text).out
    for name in ("guided", "written"):
        shell.occ("agent", "delete", name, "--wait")
