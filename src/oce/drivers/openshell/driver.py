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
from oce.drivers.openshell import (
    adoption,
    agent_configuration,
    logs,
    marks,
    observation,
    policies,
    workspace_setup,
)
from oce.drivers.openshell.absence import read_proved
from oce.drivers.openshell.app_server import signed_in_with_pat
from oce.drivers.openshell.cleanup import Remover
from oce.drivers.openshell.cluster import apply_operator_objects, remove_operator_objects
from oce.drivers.openshell.documents import certificates
from oce.drivers.openshell.failures import (
    Category,
    GatewayFailure,
    namespace_refusals,
    refusals,
)
from oce.drivers.openshell.live_policy import LivePolicies, Target, recommendations
from oce.drivers.openshell.private_material import offered_node_setup, workspace_payload
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
    interpreter,
    render,
    resource_ref,
    unsupported,
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
    from collections.abc import Iterator, Mapping, Sequence

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
_NATIVE: Final = "openclaw"
_PERMISSION_PROFILE: Final = ":danger-full-access"


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
        return agent_configuration.configure_agent(
            configuration, harness, self._settings.data_mount_path
        )

    def validate_workspace_setup(self, harness: Harness, configuration: Json) -> None:
        """Admit initial workspace files (ValidatesWorkspaceSetup). Raises WorkspaceSetupRefused."""
        workspace_setup.validate(self._settings, harness, configuration)

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
        """Create or adopt profile, runtime provider and Sandbox, then initialise the workspace. Raises the contract's refusals.

        Everything that needs no gateway is settled before the first call. A Sandbox that is not READY yet is initialised by a later
        pass; its Harness waits for that.
        """
        wanted = render(self.id, self._settings, context)
        offered = await offered_node_setup(context, wanted)
        setup = context.requirements.workspace_setup
        payload = None if setup is None else await workspace_payload(context, setup)
        with refusals():
            require_version(await self._gateway.health())
            await ensure_profile(self._gateway, wanted.workspace, wanted.profile)
            held = await ensure_runtime_provider(self._gateway, wanted, offered, self._now_ms())
            wanted = wanted.enrolling(held)
            record, created = await ensure_sandbox(self._gateway, wanted)
            if created and self._settings.startup_delay_ms:
                await self._clock.sleep(self._settings.startup_delay_ms / 1000)
            if payload is not None:
                await workspace_setup.initialise(
                    self._gateway,
                    self._settings,
                    wanted,
                    record,
                    payload,
                    python=interpreter(context.requirements.command),
                    clock=self._clock,
                )
        return resource_ref(self._settings, context)

    async def harness_endpoint(self, context: HarnessContext) -> HarnessEndpoint | None:
        """Return the transport of a provisioned Codex; None for native OpenClaw, which dials out.

        Raises OwnershipConflict for another exposure than ours.
        """
        wanted = render(self.id, self._settings, context)
        if context.revision.harness.id == _NATIVE:
            return None
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
        """Observe the exposed port: handshake first, the held failure only after a refused upgrade.

        A native worker never serves here: its exposure only shows a held failure, and only until its node has enrolled.
        """
        wanted = render(self.id, self._settings, context)
        if not wanted.exposed:
            raise UnsupportedByDriver("an enrolled native worker has no exposure to read")
        pat = context.requirements.login_mode == "codex_pat"
        backend = self._gateway.backend
        with refusals():
            service = await self._service(wanted)
            urls = service_url(backend, service.url)
            found = await upgrade(
                backend, urls, context.transport_token, signed_in_with_pat if pat else None
            )
            if found.accepted:
                serving = found.answer and context.revision.harness.id != _NATIVE
                return HarnessStatus(state="serving" if serving else "starting")
            failure = held_failure(await read_status(backend, urls, context.transport_token))
            if failure is not None:
                return HarnessStatus(state="failed", failure_document=failure)
            record = await self._gateway.get_sandbox(wanted.workspace, wanted.sandbox)
        if record is not None:
            observation.require_live(record)
        return HarnessStatus(state="starting")

    async def withdraw_harness_exposure(self, context: RevisionContext) -> None:
        """Remove a native worker's exposure; resolves only when its absence is proved. A Codex exposure is its transport."""
        check_revision(self.id, self._settings, context)
        if context.revision.harness.id != _NATIVE:
            raise UnsupportedByDriver("a Codex exposure is its transport and is not withdrawn")
        ref = resource_ref(self._settings, context)
        with refusals():
            await self._remover.exposure(ref.namespace_name, ref.resource_name, context.revision)

    async def workspace_node_peer_labels(
        self, context: RevisionContext
    ) -> Mapping[str, str] | None:
        """Return the label that selects this Sandbox's supervisor alone; None before the Sandbox exists (NamesNodePeers)."""
        check_revision(self.id, self._settings, context)
        if not isinstance(self._settings.place, KubernetesPlace):
            raise UnsupportedByDriver("one machine has no Pods")
        ref = resource_ref(self._settings, context)
        with refusals():
            found = await self._gateway.get_sandbox(ref.namespace_name, ref.resource_name)
            if found is None:
                return None
            return adoption.supervisor_labels(ref, context.revision, found)

    async def enroll_harness(self, context: HarnessContext, installation: Json) -> None:
        """Refuse a protected egress plan: the enrolment's wire is not public, and nothing weaker is started instead."""
        del installation
        check_revision(self.id, self._settings, context)
        unsupported("a protected egress plan")

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
            try:
                chunks = await self._gateway.draft_chunks(ref.namespace_name, ref.resource_name)
            except GatewayFailure as failure:
                if failure.status == "UNIMPLEMENTED":
                    raise UnsupportedByDriver("this gateway makes no suggestions") from failure
                raise
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

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

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


@contextmanager
def _not_visible() -> Iterator[None]:
    try:
        yield
    except GatewayFailure as failure:
        if failure.category is Category.NOT_FOUND:
            raise NotVisible("the Sandbox") from failure
        raise
