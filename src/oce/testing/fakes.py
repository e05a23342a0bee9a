"""In-memory Drivers for tests of the control plane: real contracts, no infrastructure.

They keep what they are told and can be made to fail or to wait at any member: `fail["register_source"] = error` raises it there after
the effect when the key is prefixed with `after:`, before it otherwise. `calls` lists what was asked for, in order.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from oce.contracts.compute import ComputeReadiness, NamespaceReadiness
from oce.contracts.credential_gateway import AttachmentStatus, SourceStatus, SourceType
from oce.contracts.drivers import Drivers, abilities_of
from oce.contracts.refusals import ConfigurationRefused, Detail, NotVisible, RevisionUnsupported
from oce.contracts.sandbox import (
    CredentialAttachment,
    Facet,
    HarnessObservation,
    HarnessState,
    LogChunk,
    NamespaceContext,
    NetworkPolicySupport,
    PhysicalNamespace,
    PolicySnapshot,
)
from oce.domain.names import credential_provider, digest, physical_namespace
from oce.domain.resources import SecretLocator
from oce.testing.memory_provider import OPENAI, model_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from oce.contracts.compute import DeployContext
    from oce.contracts.iam import IamDriver
    from oce.contracts.sandbox import (
        CleanupContext,
        LogLine,
        LogRequest,
        PolicyScope,
        RevisionContext,
    )
    from oce.domain.resources import (
        Agent,
        AgentRevision,
        CredentialSource,
        Harness,
        Json,
        Namespace,
    )
    from oce.domain.secret import SecretText


class ManualClock:
    """A clock that a test moves; sleeping moves it too."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self._monotonic = 1000.0

    def now(self) -> datetime:
        """Return the test's time; each question is one microsecond later, so that creation order is total."""
        self._now += timedelta(microseconds=1)
        return self._now

    def monotonic(self) -> float:
        """Return the test's monotonic seconds."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


class _Fake:
    """Recording and failing on demand."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, Exception] = {}

    def _called(self, member: str) -> None:
        self.calls.append(member)
        if member in self.fail:
            raise self.fail[member]

    def _done(self, member: str) -> None:
        if f"after:{member}" in self.fail:
            raise self.fail[f"after:{member}"]


class FakeSecrets(_Fake):
    """SecretDriver over a dictionary."""

    id = "fake-secrets"
    implementation = "oce.testing.secrets"

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, SecretText] = {}

    async def create(
        self, namespace: PhysicalNamespace, secret_id: str, value: SecretText
    ) -> SecretLocator:
        """Store under a deterministic name."""
        self._called("create")
        name = f"oce-secret-{digest('secret', secret_id)[:20]}"
        self.values[name] = value
        self._done("create")
        return SecretLocator(
            driver_id=self.id, namespace_name=namespace.name, name=name, key="value", uid=secret_id
        )

    async def update(self, locator: SecretLocator, value: SecretText) -> None:
        """Replace."""
        self._called("update")
        if locator.name not in self.values:
            raise NotVisible(locator.name)
        self.values[locator.name] = value
        self._done("update")

    async def resolve(self, locator: SecretLocator) -> SecretText:
        """Return."""
        self._called("resolve")
        if locator.name not in self.values:
            raise NotVisible(locator.name)
        return self.values[locator.name]

    async def delete(self, locator: SecretLocator) -> None:
        """Forget."""
        self._called("delete")
        self.values.pop(locator.name, None)
        self._done("delete")


class FakeConfigurations(_Fake):
    """ConfigurationDriver over a dictionary."""

    id = "fake-configurations"
    implementation = "oce.testing.configurations"

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[tuple[str, int], Json] = {}

    async def write(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int, values: Json
    ) -> None:
        """Store one generation; a different document under it is a conflict."""
        self._called("write")
        del namespace
        present = self.documents.setdefault((configuration_id, generation), copy.deepcopy(values))
        if present != values:
            raise RuntimeError("another document has this generation")
        self._done("write")

    async def read(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int
    ) -> Json:
        """Return one generation."""
        self._called("read")
        del namespace
        if (configuration_id, generation) not in self.documents:
            raise NotVisible(configuration_id)
        return copy.deepcopy(self.documents[configuration_id, generation])

    async def delete(self, namespace: PhysicalNamespace, configuration_id: str) -> None:
        """Forget every generation."""
        self._called("delete")
        del namespace
        for key in [key for key in self.documents if key[0] == configuration_id]:
            del self.documents[key]


class FakeCompute(_Fake):
    """ComputeDriver that is ready at once unless told otherwise."""

    id = "fake-compute"
    implementation = "oce.testing.compute"
    render_version = 4

    def __init__(self) -> None:
        super().__init__()
        self.namespace_complete = True
        self.ready = True

    def physical_namespace(self, namespace: Namespace) -> PhysicalNamespace:
        """Return the derived name."""
        return PhysicalNamespace(id=namespace.id, name=physical_namespace(namespace.id))

    def namespace_context(self, namespace: Namespace) -> NamespaceContext:
        """Return a context without objects."""
        return NamespaceContext(namespace=self.physical_namespace(namespace))

    def admit(self, agent: Agent, execution_mode: str, harness_id: str) -> None:
        """Admit dedicated Codex only."""
        del agent
        if execution_mode != "dedicated" or harness_id != "codex":
            raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED")

    async def preflight(self) -> Sequence[str]:
        """Warn of nothing."""
        return ()

    async def ensure_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """Answer `namespace_complete`."""
        self._called("ensure_namespace")
        return NamespaceReadiness(namespace_id=namespace.id, complete=self.namespace_complete)

    async def delete_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """Answer `namespace_complete`."""
        self._called("delete_namespace")
        return NamespaceReadiness(namespace_id=namespace.id, complete=self.namespace_complete)

    async def prepare_revision(
        self, revision: AgentRevision, context: DeployContext
    ) -> ComputeReadiness:
        """Answer `ready`."""
        await context.step("prepare")
        self._called("prepare_revision")
        return ComputeReadiness(revision_id=revision.id, ready=self.ready)

    async def activate_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Note it."""
        del revision
        await context.step("activate")
        self._called("activate_revision")

    async def retire_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Note it."""
        del revision
        await context.step("retire")
        self._called("retire_revision")

    async def withdraw_exposure(self, revision: AgentRevision, namespace: Namespace) -> None:
        """Note it."""
        del revision, namespace
        self._called("withdraw_exposure")

    async def delete_agent(self, context: DeployContext) -> None:
        """Note it."""
        await context.step("delete")
        self._called("delete_agent")


class FakeCredentialGateway(_Fake):
    """CredentialGatewayDriver that offers `openai` and a tool type, and keeps digests of what it was given."""

    id = "fake-gateway"
    implementation = "oce.testing.gateway"

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, dict[str, str]] = {}
        self.answer = SourceStatus(state="ready")

    def source_types(self) -> Sequence[SourceType]:
        """Return two types."""
        return (
            OPENAI,
            SourceType(
                id="bearer-token",
                secret_fields=("token",),
                required_config=("host", "env_var"),
                optional_config=("port", "path"),
                harness_login_mode=None,
                harness_provider=None,
                environment_names=(),
            ),
        )

    def validate_source(self, source_type: str, config: Mapping[str, str]) -> None:
        """Refuse a base URL that is not https."""
        del source_type
        if not config.get("base_url", "https://").startswith("https://"):
            raise ConfigurationRefused(Detail("/config/base_url", "INVALID_VALUE", "https only"))

    def network_rules(self, source: CredentialSource) -> Mapping[str, Json]:
        """Return one rule for the model's endpoint."""
        return model_rules(source)

    async def register_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Keep digests."""
        del context
        self._called("register_source")
        if self.answer.state in ("ready", "pending"):
            self.sources[source.id] = {k: digest(v.reveal()) for k, v in secrets.items()}
        self._done("register_source")
        return self.answer

    async def update_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Replace digests."""
        del context
        self._called("update_source")
        self.sources[source.id] = {k: digest(v.reveal()) for k, v in secrets.items()}
        self._done("update_source")
        return self.answer

    async def source_status(
        self, context: NamespaceContext, source: CredentialSource
    ) -> SourceStatus:
        """Tell whether it is kept."""
        del context
        self._called("source_status")
        return self.answer if source.id in self.sources else SourceStatus(state="absent")

    async def remove_source(self, context: NamespaceContext, source: CredentialSource) -> None:
        """Forget."""
        del context
        self._called("remove_source")
        self.sources.pop(source.id, None)
        self._done("remove_source")

    async def attach_for_revision(
        self, context: RevisionContext, sources: Sequence[CredentialSource]
    ) -> tuple[CredentialAttachment, ...]:
        """Issue one attachment per source."""
        del context
        return tuple(
            CredentialAttachment(source_id=one.id, ref=credential_provider(one.id))
            for one in sources
        )

    async def attachment_status(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> AttachmentStatus:
        """Say that it is in force."""
        del context, attachment
        return AttachmentStatus.READY

    async def withdraw(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> Literal["revoked", "pending", "absent"]:
        """Say that it is revoked."""
        del context, attachment
        return "revoked"


class FakeSandbox(_Fake):
    """SandboxDriver with the abilities that use cases ask for: transform, policies, observation, logs."""

    id = "fake-sandbox"
    implementation = "oce.testing.sandbox"
    facets = (Facet.NETWORKING, Facet.FILESYSTEM, Facet.PROCESS)
    render_version = 3
    network_policy = NetworkPolicySupport(wildcards=False, port_ranges=False, live=False)

    def __init__(self) -> None:
        super().__init__()
        self.observation = HarnessObservation(state=HarnessState.RUNNING)
        self.lines: tuple[LogLine, ...] = ()
        self.observed_at = datetime(2026, 1, 2, tzinfo=UTC)

    def configure_agent(self, configuration: Json, harness: Harness) -> Json:
        """Force the settings that the real Driver forces."""
        del harness
        values: dict[str, Any] = copy.deepcopy(configuration)
        codex = values.setdefault("plugins", {}).setdefault("entries", {}).setdefault("codex", {})
        codex["enabled"] = True
        codex.setdefault("config", {}).setdefault("appServer", {})["sandbox"] = "danger-full-access"
        return values

    def admit_network_policy(
        self,
        additions: Json,
        version: int,
        defaults: Json | None = None,
        scope: PolicyScope | None = None,
    ) -> PolicySnapshot:
        """Refuse anything but an object."""
        del scope
        if additions is not None and not isinstance(additions, dict):
            raise ConfigurationRefused(Detail("", "INVALID_TYPE"))
        return PolicySnapshot(
            driver_id=self.id, version=version, defaults=defaults, additions=additions
        )

    def validate_workspace_setup(self, harness: Harness, configuration: Json) -> None:
        """Accept."""
        del harness, configuration
        self._called("validate_workspace_setup")

    async def observe_harness(self, context: RevisionContext) -> HarnessObservation:
        """Answer `observation`."""
        del context
        self._called("observe_harness")
        return self.observation

    async def read_sandbox_logs(self, context: RevisionContext, request: LogRequest) -> LogChunk:
        """Answer the newest of `lines`."""
        self._called("read_sandbox_logs")
        shown = self.lines[-request.lines :]
        return LogChunk(
            sandbox=context.revision.id,
            observed_at=self.observed_at,
            lines=shown,
            examined=len(self.lines),
        )

    async def cleanup(self, context: CleanupContext) -> None:
        """Note it."""
        del context
        self._called("cleanup")


class FakeDrivers:
    """One of each, and their composition with a given IAM Driver."""

    def __init__(self, iam: IamDriver) -> None:
        self.secrets = FakeSecrets()
        self.configurations = FakeConfigurations()
        self.compute = FakeCompute()
        self.gateway = FakeCredentialGateway()
        self.sandbox = FakeSandbox()
        self.iam = iam

    def compose(self) -> Drivers:
        """Return what a Platform takes."""
        return Drivers(
            compute=self.compute,
            sandbox=abilities_of(self.sandbox),
            credential_gateway=self.gateway,
            configuration=self.configurations,
            secret=self.secrets,
            iam=self.iam,
        )
