"""ComputeDriver of one machine: walks a revision to a serving candidate, switches the route, takes it away again.

It owns the Agent's directories, its transport token and its route document; confinement, credentials and the relay are asked of the
composed SandboxDriver, the Credential Gateway and the Agent Gateway. The candidate always runs beside the serving revision: nothing of
the predecessor is touched before `activate_revision`. Every member may be repeated at any point, also after a crash in the middle.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oce.contracts.compute import ComputeReadiness, NamespaceReadiness
from oce.contracts.credential_gateway import AttachmentStatus
from oce.contracts.refusals import (
    DriverRefusal,
    RevisionUnsupported,
    StillPending,
    TransientDependency,
)
from oce.contracts.sandbox import (
    CleanupContext,
    HarnessContext,
    HarnessState,
    HarnessStatusContext,
    NamespaceContext,
    PhysicalNamespace,
    RevisionContext,
)
from oce.domain.clock import Clock, SystemClock
from oce.domain.failures import Tempo
from oce.domain.names import physical_namespace
from oce.drivers.local.agent_home import AgentHomes
from oce.drivers.local.held import runtime_failure
from oce.drivers.local.rendering import RENDER_VERSION, requirements
from oce.drivers.local.routes import Owner, RouteDirectory, Target, gateway_status
from oce.drivers.local.staged import StagedWorkspace, workspace_setup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.compute import DeployContext
    from oce.contracts.credential_gateway import CredentialGatewayDriver
    from oce.contracts.drivers import SandboxAbilities
    from oce.contracts.sandbox import (
        CarriesTransport,
        HarnessEndpoint,
        ProvisionsHarness,
        RuntimeFailure,
    )
    from oce.contracts.stores import SecretDriver
    from oce.domain.resources import Agent, AgentRevision, Namespace
    from oce.domain.secret import SecretText
    from oce.drivers.local.settings import LocalComputeSettings

_TERMINAL: Final = frozenset(("HARNESS_EXITED", "SANDBOX_FAILED"))
"""Observations after which waiting cannot help (mission document 003)."""
_POLL_GROWTH: Final = 1.15
"""What became true is noticed late by half a pause on average, and a pause is about `1 - 1/growth` of the time waited: here 7 % late.
With 1.5 it would be 17 %, a tenth of a second more for a Harness that starts in 0.7 s (`python -m benchmarks deploy`)."""
_DEFAULT_PORTS: Final = {"ws": 80, "wss": 443, "http": 80, "https": 443}


class LocalCompute:
    """Compute for one machine; implements `contracts.compute.ComputeDriver`."""

    implementation = "local"
    render_version = RENDER_VERSION

    def __init__(
        self,
        driver_id: str,
        settings: LocalComputeSettings,
        *,
        sandbox: SandboxAbilities,
        credential_gateway: CredentialGatewayDriver,
        secret_driver: SecretDriver,
        clock: Clock | None = None,
    ) -> None:
        """Compose. Raises ValueError when the SandboxDriver cannot create a Harness or carries no transport to it."""
        if sandbox.provisions is None or sandbox.transport is None:
            raise ValueError(
                "local Compute needs a SandboxDriver that provisions and reaches a Harness"
            )
        self.id = driver_id
        self._settings = settings
        self._sandbox = sandbox
        self._provisions: ProvisionsHarness = sandbox.provisions
        self._transport: CarriesTransport = sandbox.transport
        self._credentials = credential_gateway
        self._homes = AgentHomes(settings.agents_dir, secret_driver)
        self._routes = RouteDirectory(settings.routes_dir, drain_seconds=settings.drain_seconds)
        self._clock = clock or SystemClock()

    def physical_namespace(self, namespace: Namespace) -> PhysicalNamespace:
        """Return the physical namespace: there is no cluster, so it names the provider's Workspace only."""
        return PhysicalNamespace(id=namespace.id, name=physical_namespace(namespace.id))

    def namespace_context(self, namespace: Namespace) -> NamespaceContext:
        """Return the context without cluster objects."""
        return NamespaceContext(namespace=self.physical_namespace(namespace))

    def admit(self, agent: Agent, execution_mode: str, harness_id: str) -> None:  # noqa: ARG002 # the contract passes the Agent
        """Admit a dedicated Codex Harness only. Raises RevisionUnsupported."""
        if execution_mode != "dedicated" or harness_id != "codex":
            raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED")

    async def preflight(self) -> Sequence[str]:
        """Return warnings; raise OSError when the directories cannot be written."""
        return await asyncio.to_thread(self._preflight)

    def _preflight(self) -> list[str]:
        for directory in (self._settings.agents_dir, self._settings.routes_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(f"{directory} is not writable")
        if not self._settings.gateway_control_socket.exists():
            return ["the Agent Gateway is not running yet; activation waits for it"]
        return []

    async def ensure_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """Let the SandboxDriver own or adopt its Workspace. Its refusals pass through."""
        if self._sandbox.namespaces is not None:
            await self._sandbox.namespaces.ensure_namespace(self.namespace_context(namespace))
        return NamespaceReadiness(namespace_id=namespace.id, complete=True)

    async def delete_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """Let the SandboxDriver remove its Workspace and prove it gone; nothing else of a Namespace is ours."""
        context = CleanupContext(namespace=self.physical_namespace(namespace))
        await self._sandbox.driver.cleanup(context)
        return NamespaceReadiness(namespace_id=namespace.id, complete=True)

    async def prepare_revision(
        self, revision: AgentRevision, context: DeployContext
    ) -> ComputeReadiness:
        """Walk to a serving candidate; waits in place for a few seconds before it answers `ready=False`."""
        self._require_ours(revision)
        namespace = self.physical_namespace(context.namespace)
        await context.step("storage")
        token = await self._homes.ensure(namespace, revision.agent_id)
        await context.step("gateway")
        await asyncio.to_thread(self._routes.ensure_fail_closed, _owner(context), token)
        await context.step("credentials")
        harness = await self._harness_context(revision, context, token)
        await context.step("sandbox")
        resource = await self._provisions.provision_harness(harness)
        if resource != self._provisions.harness_resource(_revision_context(harness)):
            raise DriverRefusal("INVALID_DRIVER_OBSERVATION", Tempo.PERMANENT)
        await context.step("endpoint")
        await self._endpoint(harness)
        await context.step("readiness")
        deadline = self._clock.monotonic() + self._settings.ready_wait_seconds
        serving = await self._await_serving(harness, context, token, deadline)
        if serving is not True:
            return ComputeReadiness(
                revision_id=revision.id, ready=False, runtime_failure=serving or None
            )
        await context.step("attachments")
        attached = await self._await_attachments(harness, deadline)
        return ComputeReadiness(revision_id=revision.id, ready=attached)

    async def activate_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Write the route and wait until the Agent Gateway has switched to it.

        Raises StillPending(AGENT_DRAIN_PENDING) while turns of the predecessor finish, TransientDependency(AGENT_GATEWAY_UNAVAILABLE)
        while the gateway does not answer.
        """
        self._require_ours(revision)
        namespace = self.physical_namespace(context.namespace)
        await context.step("activate")
        token = await self._homes.ensure(namespace, revision.agent_id)
        harness = await self._harness_context(revision, context, token)
        endpoint = await self._endpoint(harness)
        await context.step("activate")
        generation = await asyncio.to_thread(
            self._routes.publish,
            _owner(context),
            revision_id=revision.id,
            number=revision.revision,
            target=_target(endpoint),
            token=token,
        )
        await self._await_switch(revision, generation)

    async def retire_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Route nowhere if it was this revision, then remove its Sandbox with proof, found by name and not by record."""
        await context.step("withdraw-route")
        await asyncio.to_thread(self._routes.withdraw, revision.agent_id, revision.id)
        await context.step("remove-sandbox")
        namespace = self.physical_namespace(context.namespace)
        await self._sandbox.driver.cleanup(CleanupContext(namespace=namespace, revision=revision))

    async def withdraw_exposure(self, revision: AgentRevision, namespace: Namespace) -> None:
        """Hand it to the SandboxDriver; a Codex exposure is the transport and stays."""
        self._require_ours(revision)
        if revision.harness.id == "codex":
            return
        await self._transport.withdraw_harness_exposure(
            RevisionContext(namespace=self.physical_namespace(namespace), revision=revision)
        )

    async def delete_agent(self, context: DeployContext) -> None:
        """Remove the Agent's route, token and directories; every revision was retired before."""
        await context.step("remove-agent")
        agent_id = context.agent.id
        await asyncio.to_thread(self._routes.remove, agent_id)
        await self._homes.remove(agent_id)

    def _require_ours(self, revision: AgentRevision) -> None:
        if revision.compute_id != self.id or revision.compute_implementation != self.implementation:
            raise RevisionUnsupported("COMPUTE_DRIVER_MISMATCH")

    async def _harness_context(
        self, revision: AgentRevision, context: DeployContext, token: SecretText
    ) -> HarnessContext:
        """Issue the attachments and render the requirements; equal on every pass."""
        revision_context = RevisionContext(
            namespace=self.physical_namespace(context.namespace), revision=revision
        )
        attachments = await self._credentials.attach_for_revision(revision_context, context.sources)
        if [item.source_id for item in attachments] != [source.id for source in context.sources]:
            raise DriverRefusal("INVALID_DRIVER_OBSERVATION", Tempo.PERMANENT)
        workspace = context.workspace
        return HarnessContext(
            namespace=revision_context.namespace,
            revision=revision,
            private=None if workspace is None else StagedWorkspace(revision, workspace),
            requirements=requirements(
                revision,
                settings=self._settings,
                harness_home=self._sandbox.harness_home,
                token=token,
                sources=context.sources,
                attachments=attachments,
                setup=workspace_setup(revision),
            ),
        )

    async def _endpoint(self, harness: HarnessContext) -> HarnessEndpoint:
        endpoint = await self._transport.harness_endpoint(harness)
        if endpoint is None:
            raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED")
        return endpoint

    async def _await_serving(
        self, harness: HarnessContext, context: DeployContext, token: SecretText, deadline: float
    ) -> RuntimeFailure | bool:
        """Return True when serving, False when still starting at the deadline, or the held failure.

        A transport that does not answer is waited for like one that starts; if it is still silent at the deadline its refusal
        names the dependency.
        """
        status_context = HarnessStatusContext(
            namespace=harness.namespace,
            revision=harness.revision,
            requirements=harness.requirements,
            private=harness.private,
            transport_token=token,
        )
        pause = self._settings.first_poll_seconds
        while True:
            silent: TransientDependency | None = None
            try:
                status = await self._transport.harness_status(status_context)
            except TransientDependency as refusal:
                silent = refusal
            else:
                if status.state == "serving":
                    return True
                failure = runtime_failure(status.failure_document)
                if status.state == "failed" and failure is not None:
                    return failure
            await self._refuse_terminal(harness)
            if self._clock.monotonic() + pause >= deadline:
                if silent is not None:
                    raise silent
                return False
            await self._clock.sleep(pause)
            pause = min(pause * _POLL_GROWTH, self._settings.slowest_poll_seconds)
            await context.step("readiness")

    async def _refuse_terminal(self, harness: HarnessContext) -> None:
        """Raise as soon as the provider's own record says that this Sandbox will not serve."""
        if self._sandbox.observes is None:
            return
        observation = await self._sandbox.observes.observe_harness(_revision_context(harness))
        if observation.state is HarnessState.LOST and observation.code in _TERMINAL:
            raise RevisionUnsupported(observation.code)

    async def _await_attachments(self, harness: HarnessContext, deadline: float) -> bool:
        """Return whether every attachment is in force by the deadline; a refused one fails the revision."""
        context = _revision_context(harness)
        pause = self._settings.first_poll_seconds
        while True:
            found = [
                await self._credentials.attachment_status(context, attachment)
                for attachment in harness.requirements.credential_attachments
            ]
            if any(
                item not in {AttachmentStatus.READY, AttachmentStatus.PENDING} for item in found
            ):
                raise RevisionUnsupported("CREDENTIAL_ATTACHMENT_FAILED")
            if all(item is AttachmentStatus.READY for item in found):
                return True
            if self._clock.monotonic() + pause >= deadline:
                return False
            await self._clock.sleep(pause)
            pause = min(pause * _POLL_GROWTH, self._settings.slowest_poll_seconds)

    async def _await_switch(self, revision: AgentRevision, generation: int) -> None:
        deadline = self._clock.monotonic() + self._settings.ready_wait_seconds
        pause = self._settings.first_poll_seconds
        while True:
            pending: DriverRefusal = StillPending("AGENT_DRAIN_PENDING")
            try:
                status = await gateway_status(
                    self._settings.gateway_control_socket, revision.agent_id
                )
            except OSError:
                pending = TransientDependency("AGENT_GATEWAY_UNAVAILABLE")
            else:
                reached = status.generation >= generation and status.revision_id == revision.id
                if reached and not status.draining:
                    return
                if status.generation > generation:
                    raise DriverRefusal("ACTIVE_REVISION_CHANGED", Tempo.RETRY)
            if self._clock.monotonic() + pause >= deadline:
                raise pending
            await self._clock.sleep(pause)
            pause = min(pause * _POLL_GROWTH, self._settings.slowest_poll_seconds)


def _owner(context: DeployContext) -> Owner:
    return Owner(
        namespace_id=context.namespace.id,
        namespace_name=context.namespace.name,
        agent_id=context.agent.id,
        agent_name=context.agent.name,
    )


def _revision_context(harness: HarnessContext) -> RevisionContext:
    return RevisionContext(namespace=harness.namespace, revision=harness.revision)


def _target(endpoint: HarnessEndpoint) -> Target:
    """Return the route's target: the workload URL names the peer, the control URL is what this machine dials."""
    control = urlsplit(endpoint.control_url)
    if control.hostname is None or control.scheme not in _DEFAULT_PORTS:
        raise DriverRefusal("INVALID_DRIVER_OBSERVATION", Tempo.PERMANENT)
    host = f"[{control.hostname}]" if ":" in control.hostname else control.hostname
    port = control.port or _DEFAULT_PORTS[control.scheme]
    return Target(url=endpoint.url, connect=f"{host}:{port}", ca_bundle=endpoint.ca_bundle)
