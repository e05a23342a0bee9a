"""The official `openai` client, in a Sandbox that the official `openshell` SDK made on the machine's own sandboxd."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import Distribution, distribution
from typing import TYPE_CHECKING

import pytest
from openshell import SandboxClient, TlsConfig, WorkspaceClient
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb
from packaging.requirements import Requirement
from person import ENDPOINT, MODEL_KEY, Machine, Shell, until

from oce.dev.state import StateDirectory
from oce.sandboxd.state.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

WORKSPACE = "people"
SCOPE = datamodel_pb2.WorkspaceSelector(workspace=WORKSPACE)
PROGRAM = """\
import json, os, sys
sys.path.insert(0, "/sandbox/lib")
import openai
client = openai.OpenAI(max_retries=0)
answer = client.responses.create(model="gpt-5.2-codex", input="Hello from Python")
pieces = [
    event.delta
    for event in client.responses.create(model="gpt-5.2-codex", input="Streamed", stream=True)
    if event.type == "response.output_text.delta"
]
print(json.dumps([answer.output_text, "".join(pieces), dict(os.environ)]))
"""


@pytest.fixture
def sdk(machine: Machine) -> Iterator[SandboxClient]:
    state = StateDirectory(machine.state)
    keys = Keys(state.sandboxd / "auth")
    tls = TlsConfig(keys.ca, keys.client_certificate, keys.client_key)
    with SandboxClient(f"127.0.0.1:{state.ports().sandboxd}", tls=tls, timeout=30) as client:
        workspaces = WorkspaceClient.from_sandbox_client(client)
        workspaces.create(WORKSPACE)
        yield client
        for sandbox in client.list_all(workspace=WORKSPACE):
            client.delete(sandbox.name, workspace=WORKSPACE)
            client.wait_deleted(sandbox.name, workspace=WORKSPACE, timeout_seconds=30)


def _provider(client: SandboxClient, python: str) -> None:
    stub = openshell_pb2_grpc.OpenShellStub(client._channel)
    endpoint = {
        "host": ENDPOINT,
        "port": 443,
        "protocol": "rest",
        "enforcement": 1,
        "access": 2,
        "path": "/v1/**",
    }
    profile = pb.ProviderProfile(
        id="people-openai",
        credentials=[{"name": "api_key", "env_vars": ["OPENAI_API_KEY"]}],
        endpoints=[endpoint],
        binaries=[{"path": python}],
    )
    stub.ImportProviderProfiles(
        pb.ImportProviderProfilesRequest(workspace_scope=SCOPE, profiles=[{"profile": profile}])
    )
    provider = datamodel_pb2.Provider(
        metadata=datamodel_pb2.ObjectMeta(name="key"),
        type="people-openai",
        credentials={"api_key": MODEL_KEY},
    )
    stub.CreateProvider(pb.CreateProviderRequest(workspace_scope=SCOPE, provider=provider))


def _running(client: SandboxClient, name: str, **spec: object) -> str:
    made = client.create(
        workspace=WORKSPACE, name=name, spec=pb.SandboxSpec(command=["sleep", "1000"], **spec)
    )
    until(
        lambda: client.get(name, workspace=WORKSPACE).phase == pb.SANDBOX_PHASE_READY,
        f"{name} runs",
    )
    return str(made.id)


def _needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Collect a distribution and everything it requires here."""
    if name not in found:
        found[name] = distribution(name)
        for text in found[name].requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                _needed(wanted.name.lower(), found)
    return found


def _install(library: Path) -> None:
    """Lay the client and what it needs into the Sandbox's own workspace."""
    for one in _needed("openai", {}).values():
        for file in one.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = library / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target)


def test_an_openai_client_gets_its_answer_and_holds_a_placeholder(
    machine: Machine, shell: Shell, sdk: SandboxClient
):
    shell.occ("status")
    _running(sdk, "look")
    found = sdk.exec(
        "look",
        ["sh", "-c", "readlink -f /usr/bin/python3; python3 -V | cut -d' ' -f2"],
        workspace=WORKSPACE,
    )
    python, version = found.stdout.split()
    if version.split(".")[:2] != [str(sys.version_info.major), str(sys.version_info.minor)]:
        pytest.skip(f"needs the Sandbox's Python ({version}) to be the one of these tests")
    _provider(sdk, python)
    sandbox = _running(sdk, "client", providers=["key"])
    _install(machine.state / "sandboxd" / "sandboxes" / sandbox / "workspace" / "lib")
    asked = machine.model.stats()["responses"]
    result = sdk.exec("client", [python, "-c", PROGRAM], workspace=WORKSPACE, timeout_seconds=60)
    assert result.exit_code == 0, result.stderr
    whole, streamed, environment = json.loads(result.stdout)
    assert whole == "You said: Hello from Python (message 1)"
    assert streamed == "You said: Streamed (message 1)"
    assert environment["OPENAI_API_KEY"] == "openshell:resolve:env:OPENAI_API_KEY"
    assert MODEL_KEY not in json.dumps(environment)
    after = machine.model.stats()
    assert after["responses"] == asked + 2
    assert after["placeholdersSeen"] == 0
