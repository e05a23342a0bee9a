"""The tutorial, typed as it stands: from `occ agent init` to `occ agent delete`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from person import Machine, Shell

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]


def _steps(err: str) -> list[str]:
    return [
        line.split(" s  ")[1].split()[0].strip(":") for line in err.splitlines() if " s  " in line
    ]


def test_from_init_to_delete(machine: Machine, shell: Shell):
    shell.occ("agent", "init", "story", "-f", "story.yaml", "--model", "gpt-5.2-codex")
    assert "left alone" in shell.occ("agent", "init", "story", "-f", "story.yaml", code=1).err
    assert "+ agent story" in shell.occ("apply", "-f", "story.yaml", "--dry-run").out
    shell.occ("agent", "get", "story", code=3)
    shell.occ("apply", "-f", "story.yaml")

    deployed = shell.occ("agent", "deploy", "story", "--wait")
    for step in ("sandbox", "readiness", "attachments", "activate", "succeeded"):
        assert step in _steps(deployed.err)

    first = shell.chat("story", "Say hello")
    assert first == "You said: Say hello (message 1)"
    assert shell.chat("story", "Once more") == "You said: Once more (message 2)"
    curious = "run: python3 -c \"import urllib.request as u; u.urlopen('https://example.com/')\""
    assert "403" in shell.chat("story", curious)
    denial = [
        one for one in shell.json("agent", "logs", "story")["records"] if one["type"] == "line"
    ]
    assert any("example.com" in json.dumps(one) for one in denial), denial
    assert "example.com" in shell.occ("agent", "logs", "story").out

    assert shell.occ("diff", "-f", "story.yaml", "--exit-code").code == 0
    text = (shell.folder / "story.yaml").read_text()
    (shell.folder / "story.yaml").write_text(text.replace("gpt-5.2-codex", "gpt-5.1-codex"))
    changed = shell.occ("diff", "-f", "story.yaml", "--exit-code", code=1)
    assert "gpt-5.1-codex" in changed.out
    shell.occ("apply", "-f", "story.yaml")

    before = shell.json("agent", "get", "story")["activeRevisionId"]
    shell.occ("agent", "deploy", "story")
    assert "message" in shell.chat("story", "Still there?"), "the predecessor serves meanwhile"
    shell.occ("agent", "deployment-status", "story", "--wait")
    after = shell.json("agent", "get", "story")
    assert after["activeRevisionId"] != before
    assert after["harnessStatus"]["harness"]["state"] == "running"
    assert shell.chat("story", "And now?").endswith("(message 5)"), "the thread goes on"
    assert len(shell.json("agent", "revisions", "story")) == 2
    placeholder = shell.chat("story", "run: cat $CODEX_HOME/auth.json | tr : '|'", "--new")
    assert "openshell|resolve|env|OPENAI_API_KEY" in placeholder
    assert machine.model.stats()["placeholdersSeen"] == 0

    shell.occ("agent", "stop", "story")
    refused = shell.occ("agent", "chat", "story", "Anybody?", code=1)
    assert "503" in refused.err or "409" in refused.err, refused
    shell.occ("agent", "deploy", "story", "--wait")
    assert shell.chat("story", "Back?").endswith("(message 2)"), "the thread outlives a stop"
    shell.occ("agent", "delete", "story")
    shell.occ("agent", "get", "story", code=3)
