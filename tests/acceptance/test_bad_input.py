"""What bad input gets: a sentence that names what is wrong, exit code 1, and nothing changed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from person import MATERIAL, agent_document

if TYPE_CHECKING:
    from person import Machine, Shell

CONFIGURATION = """\
kind: Configuration
name: odd
values:
  agents:
    defaults:
      model: {primary: openai/gpt-5.2-codex}
"""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (CONFIGURATION + "      colour: red\n", "colour"),
        (CONFIGURATION + "colour: red\n", "colour"),
        (agent_document("odd") + "colour: red\n", "colour"),
        (agent_document("n" * 300), "TOO_LONG"),
        (CONFIGURATION.replace("odd", "o" * 300), "TOO_LONG"),
        (CONFIGURATION + "secretBindings:\n  PATH: openai-key\n", "secretBindings"),
        (CONFIGURATION + "secretBindings:\n  OPENAI_API_KEY: openai-key\n", "secretBindings"),
        ("kind: Agent\nname: [\n", "line"),
        ("kind: Robot\nname: r\n", "kind must be one of"),
        (
            MATERIAL.replace("OPENAI_API_KEY", "NOT_SET_ANYWHERE").replace("openai-key", "k2"),
            "NOT_SET",
        ),
    ],
)
def test_a_document_that_cannot_be(shell: Shell, document: str, said: str):
    before = _names(shell)
    refused = shell.occ("apply", "-f", "-", stdin=document, code=1)
    assert said in refused.err, refused
    assert "Traceback" not in refused.err
    assert _names(shell) == before


def _names(shell: Shell) -> set[str]:
    return {
        str(item["id"])
        for word in ("agent", "configuration", "secret")
        for item in shell.json(word, "list")
    }


def test_a_name_of_300_characters_typed_as_an_argument(shell: Shell):
    assert "TOO_LONG" in shell.occ("agent", "get", "n" * 300, code=1).err
    refused = shell.occ("namespace", "create", "n" * 300, code=1)
    assert "400" in refused.err
    assert "/name" in refused.err


def test_a_deploy_that_a_gateway_cannot_honour_is_refused_not_trimmed(shell: Shell):
    bound = CONFIGURATION.replace("odd", "bound") + "secretBindings:\n  WEATHER: openai-key\n"
    shell.occ("apply", "-f", "-", stdin=bound)
    shell.occ("apply", "-f", "-", stdin=agent_document("bound", configuration="bound"))
    refused = shell.occ("agent", "deploy", "bound", code=1)
    assert "secretBindings" in refused.err, refused


def test_nothing_listens_at_the_url(machine: Machine, shell: Shell):
    refused = shell.occ("--url", "https://127.0.0.1:9", "agent", "list", code=1)
    assert "127.0.0.1:9" in refused.err
    assert "occ up" in refused.err or "Hint" in refused.err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "id: compute-local\n    implementation: local",
            "id: c\n    implementation: kubernetes",
            "do not mix",
        ),
        ("cluster: single-machine", "clutser: single-machine", "occ.clutser"),
        ("implementation: openshell", "implementation: docker", "implementation"),
    ],
)
def test_a_startup_file_that_cannot_be_composed(
    machine: Machine, shell: Shell, before: str, after: str, said: str
):
    text = (machine.state / "config" / "installation.yaml").read_text()
    assert before in text
    file = shell.folder / "odd.yaml"
    file.write_text(text.replace(before, after, 1))
    sockets = machine.state / "postgres" / "run"
    started = subprocess.run(
        [sys.executable, "-m", "oce.worker.main"],
        env={
            **shell.environment,
            "OCC_CONFIG_PATH": str(file),
            "OCC_DATABASE_URL": f"postgresql://occ_app@/occ?host={sockets}",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 2, started
    assert said in started.stderr
    assert "Traceback" not in started.stderr
