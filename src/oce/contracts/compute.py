"""ComputeDriver: prepares, activates and retires (reference/kubernetes-compute.md §1).

Compute owns an Agent's directories or volumes, its transport token, the Agent Gateway's route, readiness and activation. It derives
`HarnessWorkloadRequirements` and hands them to the SandboxDriver; it never decides who may deploy. Every member is safe to repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oce.contracts.sandbox import NamespaceContext, PhysicalNamespace, RuntimeFailure
    from oce.domain.resources import Agent, AgentRevision, CredentialSource, Namespace
    from oce.domain.secret import SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceReadiness:
    """Answer of the namespace members. `complete` means ensured, or observed gone."""

    namespace_id: str
    complete: bool
    permanent: bool = False
    """With `complete` false: a retry cannot help."""
    reason: str = ""
    """≤ 256 characters of letters, digits, space and `. _ : / @ -`; logged only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployContext:
    """What a pass resolved for Compute. `step` reports progress and renews the claim: call it before every external effect.

    `step(name)` raises when the claim is lost; the effect must then not be started.
    """

    namespace: Namespace
    agent: Agent
    sources: Sequence[CredentialSource]
    step: Callable[[str], Awaitable[None]]
    workspace: SecretText | None = None
    """The private JSON document of the revision's initial workspace files, which Compute stages for the Sandbox.

    It names its owner (`id`, `namespaceId`, `agentId`) and holds `files` by name. Once they are in place there are none: what the Agent
    made of them since is its own, and only whose workspace it is gets verified.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeReadiness:
    """Answer of `prepare_revision`. Not ready and nothing else: look again. A held failure fails the revision at once."""

    revision_id: str
    ready: bool
    runtime_failure: RuntimeFailure | None = None
    pending_code: str = "REVISION_INCOMPLETE"


class ComputeDriver(Protocol):
    """The required members."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    @property
    def render_version(self) -> int:
        """Version of the rules by which it derives requirements; a revision freezes it and is always prepared under it."""

    def physical_namespace(self, namespace: Namespace) -> PhysicalNamespace:
        """Return the physical namespace; pure."""

    def namespace_context(self, namespace: Namespace) -> NamespaceContext:
        """Return the context in which the SandboxDriver is called outside a pass (logs, observation); pure."""

    def admit(self, agent: Agent, execution_mode: str, harness_id: str) -> None:
        """Refuse a topology this Compute cannot run; synchronous. Raises RevisionUnsupported."""

    async def preflight(self) -> Sequence[str]:
        """Return warnings found at startup; raise for what makes every deploy fail."""

    async def ensure_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """Prepare isolation, then the SandboxDriver's part."""

    async def delete_namespace(self, namespace: Namespace) -> NamespaceReadiness:
        """SandboxDriver's namespace cleanup first, then our own; complete only when observed gone."""

    async def prepare_revision(
        self, revision: AgentRevision, context: DeployContext
    ) -> ComputeReadiness:
        """Walk to a serving candidate beside the predecessor; bounded; called until ready, failed or superseded."""

    async def activate_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Switch the route: drain the predecessor's turns, then the candidate. Raises StillPending(AGENT_DRAIN_PENDING)."""

    async def retire_revision(self, revision: AgentRevision, context: DeployContext) -> None:
        """Take the route away if it is this revision's, then remove everything that it could have created and no other uses.

        For a stop, a predecessor and a failed candidate alike; resolves only after its processes are proved gone.
        """

    async def withdraw_exposure(self, revision: AgentRevision, namespace: Namespace) -> None:
        """Outside a pass: let the SandboxDriver remove the inbound exposure of a native worker that serves or failed for good.

        Such a worker dials out; its exposure only showed a held failure before its node enrolled. Resolves only on proof, and the
        SandboxDriver's refusals pass through. A Harness that is reached through its exposure keeps it.
        """

    async def delete_agent(self, context: DeployContext) -> None:
        """After every revision was retired: remove the Agent's directories, token and route."""
