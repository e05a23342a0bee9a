"""An Agent revision with everything a Driver is asked about it, and one OpenShell Driver pair over a scripted gateway.

Plain values with one Namespace, one Agent, one revision and one `openai` source; tests change single fields.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oce.contracts.sandbox import (
    CleanupContext,
    CredentialAttachment,
    EnvironmentLiteral,
    EnvironmentSecret,
    HarnessContext,
    HarnessFile,
    HarnessStatusContext,
    HarnessWorkloadRequirements,
    NamespaceContext,
    PhysicalNamespace,
    RevisionContext,
    WorkspaceMount,
    WorkspaceSetup,
)
from oce.domain import names
from oce.domain.resources import (
    AgentRevision,
    CredentialSource,
    Harness,
    HarnessAuth,
    RevisionSource,
    SourceState,
)
from oce.domain.secret import SecretText
from oce.drivers.openshell.backend import Backend
from oce.drivers.openshell.credentials import GatewaySettings, OpenShellCredentialGateway
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.drivers.openshell.wire import Gateway
from oce.testing.memory_objects import MemoryPrivateObjects

if TYPE_CHECKING:
    from pathlib import Path

    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.settings import Settings
    from oce.testing.scripted_gateway import ScriptedGateway
    from oce.testing.scripted_state import Proto

NAMESPACE_ID = "ns_6d6f0a6a-5d38-4a2e-8d5e-0c1f6a5b7c11"
AGENT_ID = "agt_0d7d4f56-2c7f-4d39-9b4c-3e5f0b1a2c33"
REVISION_ID = "rev_7c1e0a52-8f1b-4c63-a1d7-9d9f4f0e6b42"
SOURCE_ID = "cs_3b1f7c1a-6f0e-4f53-8a77-5e1c0d9b8a21"
CANARY = "sk-canary-7f3a9e5b2d1c"
"""An invented key that must never be seen again after registration."""
TOKEN = "raw-transport-token-5f1d"  # noqa: S105 - invented
"""An invented transport token."""


SETUP_TOKEN = "bootstrap-canary-91c2"  # noqa: S105 - invented
"""An invented bootstrap token of a node."""
NODE_SECRET = "workspace-node-a1"  # noqa: S105 - an object's name
SETUP_SECRET = "workspace-setup-a1"  # noqa: S105 - an object's name
NODE_CA = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
DOCUMENT = "Private words of a person, canary-6d0e"
"""An invented initial document that must never be seen outside its channel."""


NETWORK_OBJECT: Document = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "np"},
}
ACCOUNT_OBJECT: Document = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "sa"},
}


class StepClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(1_800_000_000 + self.time, UTC)

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Advance at once."""
        self.time += seconds


def a_backend(port: int, **changes: object) -> Backend:
    """Return a plain Backend on a loopback port."""
    values: dict[str, object] = {
        "host": "127.0.0.1",
        "port": port,
        "tls": False,
        "token_path": None,
        "root_certificate_path": None,
        "request_timeout_ms": 5000,
        "sandbox_id": "box",
        "credential_gateway_id": "keys",
    }
    return Backend(**{**values, **changes})  # type: ignore[arg-type] # fields by name, for brevity of tests


def a_revision(**changes: object) -> AgentRevision:
    """Return the revision."""
    values: dict[str, object] = {
        "id": REVISION_ID,
        "namespace_id": NAMESPACE_ID,
        "agent_id": AGENT_ID,
        "revision": 1,
        "configuration_id": "cfg_1",
        "configuration_generation": 1,
        "configuration": {},
        "harness": Harness(id="codex", version="0.163.0", mode="dedicated"),
        "compute_id": "compute",
        "compute_implementation": "local",
        "sandbox_driver_id": "box",
        "harness_auth": HarnessAuth(method="credential_source", source_id=SOURCE_ID),
        "credential_sources": (
            RevisionSource(source_id=SOURCE_ID, credential_gateway_id="keys", source_type="openai"),
        ),
        "secret_bindings": {},
        "service_principal_id": "spn_1",
        "network_policy": None,
        "render_version": 1,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return AgentRevision(**{**values, **changes})  # type: ignore[arg-type] # fields by name, for brevity of tests


def a_namespace() -> PhysicalNamespace:
    """Return the physical Namespace."""
    return PhysicalNamespace(id=NAMESPACE_ID, name=names.physical_namespace(NAMESPACE_ID))


def requirements(**changes: object) -> HarnessWorkloadRequirements:
    """Return what local Compute prepares for the revision."""
    values: dict[str, object] = {
        "image": "host",
        "command": ("/usr/bin/python3", "-m", "harness"),
        "login_mode": "api_key",
        "environment": (
            EnvironmentLiteral(name="APP_SERVER_PORT", value="18790"),
            EnvironmentLiteral(name="APP_TOKEN_SHA", value="ab" * 32),
            EnvironmentLiteral(name="CODEX_HOME", value="/home/node/.codex"),
        ),
        "files": (
            HarnessFile(
                name="runtime.json",
                content='{"kind": "codex"}',
                environment_variable="OPENCLAW_PLUGIN_RUNTIME_MANIFEST",
            ),
            HarnessFile(
                name="config.toml",
                content='model = "m"\n',
                environment_variable="OPENCLAW_PLUGIN_CODEX_CONFIG_TOML",
            ),
        ),
        "workspace_mounts": (
            WorkspaceMount(
                claim="agents",
                sub_path="a1/workspace",
                mount_path="/sandbox/enterprise",
                read_only=False,
            ),
        ),
        "credential_attachments": (
            CredentialAttachment(source_id=SOURCE_ID, ref=names.credential_provider(SOURCE_ID)),
        ),
        "labels": {"openclaw.dev/agent": "a1", "openclaw.dev/revision": "r1"},
    }
    return HarnessWorkloadRequirements(**{**values, **changes})  # type: ignore[arg-type] # fields by name, for brevity of tests


def a_source(**changes: object) -> CredentialSource:
    """Return the credential source."""
    values: dict[str, object] = {
        "id": SOURCE_ID,
        "namespace_id": NAMESPACE_ID,
        "name": "model",
        "type": "openai",
        "config": {},
        "secrets": {"api_key": "sec_1"},
        "driver_id": "keys",
        "state": SourceState.READY,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return CredentialSource(**{**values, **changes})  # type: ignore[arg-type] # fields by name, for brevity of tests


def native_requirements(**changes: object) -> HarnessWorkloadRequirements:
    """Return what Compute prepares for native OpenClaw: no runtime files, a node setup code, the Gateway's CA."""
    values: dict[str, object] = {
        "files": (),
        "environment": (
            EnvironmentLiteral(name="APP_SERVER_PORT", value="18790"),
            EnvironmentLiteral(name="APP_TOKEN_SHA", value="ab" * 32),
            EnvironmentLiteral(name="OPENCLAW_NODE_CA_PEM", value=NODE_CA),
            EnvironmentSecret(
                name="OPENCLAW_NODE_SETUP_CODE",
                secret_name=NODE_SECRET,
                secret_key="setupCode",  # noqa: S106 - a key's name
            ),
        ),
    }
    return requirements(**{**values, **changes})


def setup_code(
    *,
    expires: int = 1_800_000_600_000,
    token: str = SETUP_TOKEN,
    url: str = "wss://gateway.example.com/node",
    **more: object,
) -> str:
    """Return a node's setup code."""
    document = {"url": url, "bootstrapToken": token, "expiresAtMs": expires, **more}
    raw = json.dumps(document).encode()
    return "oc-pair://" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def owner_labels() -> dict[str, str]:
    """Return the labels that Compute puts on what it stages for the Agent."""
    return {"openclaw.dev/namespace": NAMESPACE_ID, "openclaw.dev/agent": AGENT_ID}


def kubernetes_settings(*, mode: str = "operator", account: Document = ACCOUNT_OBJECT) -> Settings:
    """Return a Kubernetes place with two operator objects."""
    return parse_settings(
        {
            "gateway": {
                "workspaceMode": mode,
                "operatorNamespaceLabels": {"openshell.ai/workspace": "true"},
                "operatorWorkspaceResources": [account],
                "networkPolicyResources": [NETWORK_OBJECT],
            },
            "kubernetes": {
                "runtimeClassName": "rc",
                "serviceAccount": {"mode": "gatewayConfigured"},
                "sandboxDataMount": {
                    "subPath": "w",
                    "mountPath": "/sandbox/enterprise",
                    "readOnly": False,
                },
            },
            "policy": {
                "process": {"runAsUser": "1000", "runAsGroup": "1000"},
                "networkPolicies": [
                    {
                        "name": "web",
                        "binaries": [{"path": "/usr/bin/curl"}],
                        "endpoints": [{"host": "a.example.com", "ports": [443]}],
                    }
                ],
            },
        }
    )


class Bench:
    """One scripted gateway, one Driver pair, and the contexts of one revision."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self.clock = StepClock()
        self.clients: list[Gateway] = []
        self.private = MemoryPrivateObjects()
        self.restart()

    def restart(self, client: Gateway | None = None) -> None:
        """Become a new control plane process: nothing is remembered."""
        self.client = client or Gateway(a_backend(self.gateway.port))
        self.clients.append(self.client)
        settings = parse_settings({"local": {}})
        self.driver = OpenShellSandbox("box", settings, self.client, self.clock)
        self.keys = OpenShellCredentialGateway(
            "keys",
            GatewaySettings(("/opt/oce/codex/bin/codex",)),
            self.client,
            "box",
            clock=self.clock,
        )

    @property
    def workspace(self) -> str:
        """Name of the Workspace."""
        return a_namespace().name

    @property
    def sandbox(self) -> str:
        """Name of the Sandbox."""
        return names.sandbox_name(REVISION_ID)

    def namespace(self) -> NamespaceContext:
        """Return a namespace context."""
        return NamespaceContext(namespace=a_namespace())

    def revision(self, **changes: object) -> RevisionContext:
        """Return a revision context."""
        return RevisionContext(namespace=a_namespace(), revision=a_revision(**changes))

    def harness(self, revision: AgentRevision | None = None, **changes: object) -> HarnessContext:
        """Return a Harness context."""
        return HarnessContext(
            namespace=a_namespace(),
            revision=revision or a_revision(),
            requirements=requirements(**changes),
        )

    def native(self, *, enrolled: bool = False, **changes: object) -> HarnessContext:
        """Return the context of a native OpenClaw revision."""
        return HarnessContext(
            namespace=a_namespace(),
            revision=self.native_revision,
            requirements=native_requirements(**changes),
            private=self.private,
            workspace_node_enrolled=enrolled,
        )

    @property
    def native_revision(self) -> AgentRevision:
        """The revision, for native OpenClaw."""
        return a_revision(harness=Harness(id="openclaw", version="2026.1", mode="dedicated"))

    def with_files(self, **changes: object) -> HarnessContext:
        """Return the context of a Codex revision with initial workspace files."""
        setup = WorkspaceSetup(
            id="wss_1",
            defaults_id="d1",
            secret_name=SETUP_SECRET,
            secret_key="setup.json",  # noqa: S106 - a key's name
        )
        return HarnessContext(
            namespace=a_namespace(),
            revision=a_revision(),
            requirements=requirements(workspace_setup=setup, **changes),
            private=self.private,
        )

    def stage_node(self, labels: dict[str, str] | None = None, **changes: object) -> None:
        """Stage the node's setup code."""
        found = owner_labels() if labels is None else labels
        self.private.stage(NODE_SECRET, "setupCode", found, setup_code(**changes))  # type: ignore[arg-type] # fields by name

    def stage_files(self, labels: dict[str, str] | None = None, **changes: object) -> None:
        """Stage the initial workspace files."""
        document = {
            "id": "wss_1",
            "namespaceId": NAMESPACE_ID,
            "agentId": AGENT_ID,
            "defaultsId": "d1",
            "files": {"AGENTS.md": DOCUMENT, "SOUL.md": "calm"},
            **changes,
        }
        found = owner_labels() if labels is None else labels
        self.private.stage(SETUP_SECRET, "setup.json", found, json.dumps(document))

    def run_inside(self, workspace: Path) -> None:
        """Let ExecSandbox run the program that the Driver sends, with `workspace` as the Agent's directory."""

        def execute(request: Proto) -> int:
            command = [sys.executable, *request.command[1:]]
            environment = {**request.environment, "OPENCLAW_WORKSPACE_DIR": str(workspace)}
            done = subprocess.run(  # noqa: S603 - the Driver's own program
                command, input=request.stdin, env=environment, capture_output=True, check=False
            )
            return done.returncode

        self.gateway.on_exec = execute

    def status(self, token: str = TOKEN) -> HarnessStatusContext:
        """Return a status context."""
        return HarnessStatusContext(
            namespace=a_namespace(),
            revision=a_revision(),
            requirements=requirements(),
            transport_token=SecretText(token),
        )

    def removal(self, *, whole: bool = False) -> CleanupContext:
        """Return a cleanup context of the revision, or of the whole Namespace."""
        return CleanupContext(namespace=a_namespace(), revision=None if whole else a_revision())

    async def register(self) -> None:
        """Register the credential source."""
        await self.keys.register_source(
            self.namespace(), a_source(), {"api_key": SecretText(CANARY)}
        )

    async def prepare(self) -> None:
        """Make the Namespace and the credential source."""
        await self.driver.ensure_namespace(self.namespace())
        await self.register()

    async def deploy(self) -> None:
        """Walk up to a provisioned Harness."""
        await self.prepare()
        await self.driver.provision_harness(self.harness())
