"""An Agent revision with everything a Driver is asked about it, and one OpenShell Driver pair over a scripted gateway.

Plain values with one Namespace, one Agent, one revision and one `openai` source; tests change single fields.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oce.contracts.sandbox import (
    CleanupContext,
    CredentialAttachment,
    EnvironmentLiteral,
    HarnessContext,
    HarnessFile,
    HarnessStatusContext,
    HarnessWorkloadRequirements,
    NamespaceContext,
    PhysicalNamespace,
    RevisionContext,
    WorkspaceMount,
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

if TYPE_CHECKING:
    from oce.testing.scripted_gateway import ScriptedGateway

NAMESPACE_ID = "ns_6d6f0a6a-5d38-4a2e-8d5e-0c1f6a5b7c11"
AGENT_ID = "agt_0d7d4f56-2c7f-4d39-9b4c-3e5f0b1a2c33"
REVISION_ID = "rev_7c1e0a52-8f1b-4c63-a1d7-9d9f4f0e6b42"
SOURCE_ID = "cs_3b1f7c1a-6f0e-4f53-8a77-5e1c0d9b8a21"
CANARY = "sk-canary-7f3a9e5b2d1c"
"""An invented key that must never be seen again after registration."""
TOKEN = "raw-transport-token-5f1d"  # noqa: S105 - invented
"""An invented transport token."""


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


class Bench:
    """One scripted gateway, one Driver pair, and the contexts of one revision."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self.clock = StepClock()
        self.clients: list[Gateway] = []
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
