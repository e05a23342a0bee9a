"""OpenShellSandbox: the SandboxDriver over one OpenShell gateway (mission documents 000 to 003).

It delegates and proves; every rule lives in a pure module beside it. Preconditions come before the first call. Each member is safe
to repeat, and a failure leaves as one of the contract's refusals.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import (
    DriverRefusal,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    UnsupportedByDriver,
)
from oce.contracts.sandbox import Facet, HarnessEndpoint, HarnessObservation, HarnessStatus
from oce.domain.failures import Tempo
from oce.drivers.openshell import adoption, agent_configuration, logs, marks, observation, policies
from oce.drivers.openshell.absence import read_proved
from oce.drivers.openshell.cleanup import Remover
from oce.drivers.openshell.cluster import apply_operator_objects, remove_operator_objects
from oce.drivers.openshell.failures import (
    Category,
    GatewayFailure,
    namespace_refusals,
    refusals,
)
from oce.drivers.openshell.live_policy import LivePolicies, Target, recommendations
from oce.drivers.openshell.provisioning import (
    ensure_profile,
    ensure_runtime_provider,
    ensure_sandbox,
    require_version,
)
from oce.drivers.openshell.rendering import (
    RENDER_VERSION,
    Rendering,
    check_revision,
    render,
    resource_ref,
)
from oce.drivers.openshell.settings import HARNESS_HOME, KubernetesPlace, Settings
from oce.drivers.openshell.transport import (
    held_failure,
    read_status,
    service_url,
    upgrade,
    websocket,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oce.contracts.sandbox import (
        CleanupContext,
        HarnessContext,
        HarnessStatusContext,
        LogChunk,
        LogRequest,
        NamespaceContext,
        PolicyApplication,
        PolicyObservation,
        PolicyRecommendation,
        PolicyScope,
        PolicySnapshot,
        RevisionContext,
        SandboxResourceRef,
    )
    from oce.domain.clock import Clock
    from oce.domain.resources import Harness, Json
    from oce.drivers.openshell.records import ServiceRecord
    from oce.drivers.openshell.wire import Gateway

_ACTIVE: Final = ("WORKSPACE_PHASE_ACTIVE", 1)
_PERMISSION_PROFILE: Final = ":danger-full-access"
_PEM_LINE: Final = "-----BEGIN CERTIFICATE-----"


class OpenShellSandbox:
    """The bundled SandboxDriver; `gateway` is shared with the paired Credential Gateway."""

    implementation = "openshell"
    facets = (Facet.NETWORKING, Facet.FILESYSTEM, Facet.PROCESS)
    harness_home = HARNESS_HOME
    render_version = RENDER_VERSION
    network_policy = policies.SUPPORT

    def __init__(self, driver_id: str, settings: Settings, gateway: Gateway, clock: Clock) -> None:
        self.id = driver_id
        self._settings = settings
        self._gateway = gateway
        self._clock = clock
        self._remover = Remover(gateway, clock)
        self._live = LivePolicies(gateway)

    # -- Admission ---------------------------------------------------------------------------------------------------------

    def configure_agent(self, configuration: Json, harness: Harness) -> Json:
        """Return the effective configuration (ConfiguresAgent)."""
        return agent_configuration.configure_agent(configuration, harness)

    def admit_network_policy(
        self,
        additions: Json,
        version: int,
        defaults: Json | None = None,
        scope: PolicyScope | None = None,
    ) -> PolicySnapshot:
        """Validate and detach (AdmitsNetworkPolicy). Raises ConfigurationRefused, NetworkPolicyConflict."""
        return policies.admit(
            self.id,
            self._settings.network_rules,
            additions=additions,
            version=version,
            defaults=defaults,
            scope=scope,
        )

    def harness_resource(self, context: RevisionContext) -> SandboxResourceRef:
        """Return the reference that `provision_harness` returns; pure."""
        return resource_ref(self._settings, context)

    # -- Namespace ---------------------------------------------------------------------------------------------------------

    async def ensure_namespace(self, context: NamespaceContext) -> None:
        """Own or adopt the Workspace. Raises NamespaceRefused, OwnershipConflict, TransientDependency."""
        place = self._settings.place
        name = context.namespace.name
        with namespace_refusals():
            if isinstance(place, KubernetesPlace):
                await apply_operator_objects(place, context)
            await self._gateway.health()
            found = await self._gateway.get_workspace(name)
            wanted = marks.workspace_labels(context.namespace.id)
            if found is None:
                try:
                    await self._gateway.create_workspace(name, wanted)
                except GatewayFailure as failure:
                    if failure.category is not Category.EXISTS:
                        raise
                found = await self._gateway.get_workspace(name)
            if found is None:
                raise DriverRefusal(
                    "DEPENDENCY_UNAVAILABLE",
                    Tempo.RETRY,
                    "the Workspace vanished while it was made",
                )
            field = marks.difference(wanted, found.meta.labels)
            if found.meta.name != name or field is not None:
                raise OwnershipConflict("Workspace", f"labels.{field}")
            if found.phase not in _ACTIVE:
                raise OwnershipConflict("Workspace", "phase")

    # -- Harness -----------------------------------------------------------------------------------------------------------

    async def provision_harness(self, context: HarnessContext) -> SandboxResourceRef:
        """Create or adopt profile, runtime provider and Sandbox. Raises the refusals of the contract."""
        wanted = render(self.id, self._settings, context)
        with refusals():
            require_version(await self._gateway.health())
            await ensure_profile(self._gateway, wanted.workspace, wanted.profile)
            await ensure_runtime_provider(self._gateway, wanted)
            created = await ensure_sandbox(self._gateway, wanted)
        if created and self._settings.startup_delay_ms:
            await self._clock.sleep(self._settings.startup_delay_ms / 1000)
        return resource_ref(self._settings, context)

    async def harness_endpoint(self, context: HarnessContext) -> HarnessEndpoint | None:
        """Return the transport of a provisioned Codex. Raises OwnershipConflict for another exposure than ours."""
        wanted = render(self.id, self._settings, context)
        with refusals():
            service = await self._service(wanted)
            urls = service_url(self._gateway.backend, service.url)
            return HarnessEndpoint(
                url=websocket(urls.advertised),
                control_url=websocket(urls.control),
                workspace_root=self._settings.data_mount_path,
                codex_permission_profile=_PERMISSION_PROFILE,
                ca_bundle=self._ca_bundle(),
            )

    async def harness_status(self, context: HarnessStatusContext) -> HarnessStatus:
        """Observe the exposed port: handshake first, the held failure only after a refused upgrade."""
        wanted = render(self.id, self._settings, context)
        backend = self._gateway.backend
        with refusals():
            service = await self._service(wanted)
            urls = service_url(backend, service.url)
            if await upgrade(backend, urls, context.transport_token):
                return HarnessStatus(state="serving")
            failure = held_failure(await read_status(backend, urls, context.transport_token))
        if failure is not None:
            return HarnessStatus(state="failed", failure_document=failure)
        with refusals():
            record = await self._gateway.get_sandbox(wanted.workspace, wanted.sandbox)
        if record is not None:
            observation.require_live(record)
        return HarnessStatus(state="starting")

    async def withdraw_harness_exposure(self, context: RevisionContext) -> None:
        """Refuse: only a native worker has an exposure to withdraw, and this Driver runs Codex."""
        check_revision(self.id, self._settings, context)
        raise UnsupportedByDriver("a Codex exposure is its transport and is not withdrawn")

    async def observe_harness(self, context: RevisionContext) -> HarnessObservation:
        """Read the provider's record once (ObservesHarness). An unreadable record is `unknown`."""
        check_revision(self.id, self._settings, context)
        ref = resource_ref(self._settings, context)
        try:
            record = await self._gateway.get_sandbox(ref.namespace_name, ref.resource_name)
        except GatewayFailure:
            return observation.UNKNOWN
        return observation.observe(context.revision, record)

    async def read_sandbox_logs(self, context: RevisionContext, request: LogRequest) -> LogChunk:
        """Return a bounded page (ReadsSandboxLogs). Raises NotVisible when the gateway shows no such Sandbox."""
        check_revision(self.id, self._settings, context)
        ref = resource_ref(self._settings, context)
        lines = max(1, min(request.lines, logs.MAX_LINES))
        with refusals(), _not_visible():
            found, examined = await self._gateway.get_logs(
                ref.namespace_name, ref.resource_name, lines, request.since
            )
            return logs.chunk(ref.resource_name, self._clock.now(), found, examined)

    # -- Policy of a running Sandbox ---------------------------------------------------------------------------------------

    async def observe_network_policy(
        self, context: RevisionContext, snapshot: PolicySnapshot
    ) -> PolicyObservation:
        """Compare the policy in force with the candidate (AppliesNetworkPolicy)."""
        check_revision(self.id, self._settings, context)
        with refusals():
            return await self._live.observe(self._target(context), snapshot)

    async def apply_network_policy(
        self, context: RevisionContext, application: PolicyApplication
    ) -> PolicyObservation:
        """Compare-and-swap the network part of the policy; returns what is in force now, never a promise."""
        check_revision(self.id, self._settings, context)
        with refusals():
            return await self._live.apply(self._target(context), application)

    async def read_policy_recommendations(
        self, context: RevisionContext, limit: int
    ) -> Sequence[PolicyRecommendation]:
        """Return at most `limit` (1..100) untrusted suggestions (RecommendsPolicy)."""
        check_revision(self.id, self._settings, context)
        ref = resource_ref(self._settings, context)
        with refusals(), _not_visible():
            chunks = await self._gateway.draft_chunks(ref.namespace_name, ref.resource_name)
        return recommendations(chunks, limit)

    def _target(self, context: RevisionContext) -> Target:
        ref = resource_ref(self._settings, context)
        return Target(ref.namespace_name, ref.resource_name, self.id, context.revision)

    # -- Removal -----------------------------------------------------------------------------------------------------------

    async def cleanup(self, context: CleanupContext) -> None:
        """Remove a revision's objects, or everything in a Namespace's Workspace; resolves only on proof."""
        place = self._settings.place
        if isinstance(place, KubernetesPlace) and place.managed:
            raise RevisionUnsupported("SANDBOX_MODE_UNSUPPORTED")
        revision = context.revision
        if revision is not None:
            if revision.sandbox_driver_id != self.id:
                raise DriverRefusal("SANDBOX_DRIVER_MISMATCH", Tempo.PERMANENT)
            if revision.namespace_id != context.namespace.id:
                raise DriverRefusal("INVALID_REVISION_OWNER", Tempo.PERMANENT)
            with refusals():
                await self._remover.revision(
                    context.namespace, revision, self._settings.name_prefix
                )
            return
        with namespace_refusals():
            await self._remover.namespace(context.namespace)
        if isinstance(place, KubernetesPlace):
            await remove_operator_objects(place, context)

    # -- Shared ------------------------------------------------------------------------------------------------------------

    async def _service(self, wanted: Rendering) -> ServiceRecord:
        """Return the exposure when it is exactly ours; a missing one is an error, never 'starting'."""
        read = partial(self._gateway.get_service, wanted.workspace, wanted.sandbox)
        found = await read_proved(self._gateway, wanted.workspace, read)
        if found is None:
            raise DriverRefusal("DEPENDENCY_UNAVAILABLE", Tempo.RETRY, "the exposure is gone")
        field = adoption.service_difference(wanted, found)
        if field is not None:
            raise OwnershipConflict("service", field)
        return found

    def _ca_bundle(self) -> str | None:
        """Return the public CA certificates of the link: certificate blocks only, whatever else the file holds."""
        path = self._gateway.backend.root_certificate_path
        if path is None:
            return None
        try:
            text = Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            raise GatewayFailure(
                "service", "an unusable root certificate", Category.UNAVAILABLE
            ) from None
        return certificates(text)


def certificates(pem: str) -> str:
    """Return the CERTIFICATE blocks of a PEM text, nothing else: never a key. Pure."""
    blocks: list[str] = []
    inside = False
    for line in pem.splitlines():
        inside = inside or line.strip() == _PEM_LINE
        if inside:
            blocks.append(line.strip())
        if line.strip() == "-----END CERTIFICATE-----":
            inside = False
    return "\n".join(blocks) + "\n" if blocks else ""


@contextmanager
def _not_visible() -> Iterator[None]:
    try:
        yield
    except GatewayFailure as failure:
        if failure.category is Category.NOT_FOUND:
            raise NotVisible("the Sandbox") from failure
        raise
