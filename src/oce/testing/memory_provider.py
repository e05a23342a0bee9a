"""A Sandbox provider in memory: the SandboxDriver, the Credential Gateway and the Agent Gateway's control socket of a test.

It keeps the contract's promises (repeatable, adopt by name, cleanup by name) and nothing else, so that tests of Compute and of the
worker can count what exists afterwards. `interrupt` is called before and after every effect with its name and may raise, also a
BaseException: that is how a crash at any instant is played.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from oce.contracts.credential_gateway import AttachmentStatus, SourceStatus, SourceType
from oce.contracts.sandbox import (
    CredentialAttachment,
    Facet,
    HarnessEndpoint,
    HarnessObservation,
    HarnessState,
    HarnessStatus,
    SandboxResourceRef,
)
from oce.domain.names import credential_provider, sandbox_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    from oce.contracts.sandbox import (
        CleanupContext,
        HarnessContext,
        HarnessStatusContext,
        NamespaceContext,
        RevisionContext,
    )
    from oce.domain.resources import CredentialSource, Harness, Json
    from oce.domain.secret import SecretText


OPENAI: Final = SourceType(
    id="openai",
    secret_fields=("api_key",),
    required_config=(),
    optional_config=("base_url", "auth_header"),
    harness_login_mode="api_key",
    harness_provider="openai",
    environment_names=("OPENAI_API_KEY",),
)
"""The source type for a model that invented Credential Gateways offer."""


def model_rules(source: CredentialSource) -> dict[str, Json]:
    """Return the one rule that an invented Credential Gateway composes for a source."""
    endpoint = {
        "host": "api.openai.com",
        "ports": [443],
        "protocol": "rest",
        "enforcement": "enforce",
        "access": "read-write",
    }
    key = f"_provider_{source.id}"
    return {key: {"binaries": [{"path": "/opt/codex"}], "endpoints": [endpoint]}}


def uninterrupted(_point: str) -> None:
    """Let every effect happen."""


@dataclass(slots=True, kw_only=True)
class MemoryProvider:
    """What exists at the provider, and what every effect does next.

    `statuses` are consumed one by one by `harness_status`, the last one stays; an exception among them is raised.
    """

    sandboxes: dict[str, HarnessContext] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    workspaces: set[str] = field(default_factory=set)
    withdrawn: list[str] = field(default_factory=list)
    statuses: list[HarnessStatus | Exception] = field(
        default_factory=lambda: [HarnessStatus(state="serving")]
    )
    observation: HarnessObservation = field(
        default_factory=lambda: HarnessObservation(state=HarnessState.RUNNING)
    )
    attachments: list[AttachmentStatus] = field(default_factory=lambda: [AttachmentStatus.READY])
    interrupt: Callable[[str], None] = uninterrupted
    calls: list[str] = field(default_factory=list)

    def begin(self, effect: str) -> None:
        """Record an effect that is about to happen."""
        self.calls.append(effect)
        self.interrupt(f"before {effect}")

    def end(self, effect: str) -> None:
        """Report an effect that has happened."""
        self.interrupt(f"after {effect}")


class MemorySandboxDriver:
    """A SandboxDriver with every ability that local Compute uses."""

    implementation = "memory"
    harness_home = "/sandbox/.home"
    facets = (Facet.NETWORKING, Facet.FILESYSTEM, Facet.PROCESS)

    def __init__(self, provider: MemoryProvider, driver_id: str = "sandbox-memory") -> None:
        self.id = driver_id
        self.provider = provider

    async def ensure_namespace(self, context: NamespaceContext) -> None:
        """Own the Workspace."""
        self.provider.begin("ensure_namespace")
        self.provider.workspaces.add(context.namespace.name)
        self.provider.end("ensure_namespace")

    def validate_workspace_setup(self, harness: Harness, configuration: Json) -> None:
        """Accept everything."""

    async def cleanup(self, context: CleanupContext) -> None:
        """Forget the revision's Sandbox, or the Workspace."""
        self.provider.begin("cleanup")
        if context.revision is None:
            self.provider.workspaces.discard(context.namespace.name)
        else:
            self.provider.sandboxes.pop(context.revision.id, None)
        self.provider.end("cleanup")

    async def provision_harness(self, context: HarnessContext) -> SandboxResourceRef:
        """Create, or adopt an equal Sandbox; another one under the same name is a programming error of the caller."""
        self.provider.begin("provision_harness")
        found = self.provider.sandboxes.get(context.revision.id)
        if found is None:
            self.provider.created.append(context.revision.id)
            self.provider.sandboxes[context.revision.id] = context
        elif found.requirements != context.requirements:
            raise AssertionError("a repeated pass rendered another Sandbox")
        self.provider.end("provision_harness")
        return self.harness_resource(context)

    def harness_resource(self, context: RevisionContext) -> SandboxResourceRef:
        """Return the reference."""
        return SandboxResourceRef(
            namespace_name=context.namespace.name,
            resource_name=sandbox_name(context.revision.id),
            agent_id=context.revision.agent_id,
            revision_id=context.revision.id,
        )

    async def harness_endpoint(self, context: HarnessContext) -> HarnessEndpoint | None:
        """Return an invented transport."""
        host = sandbox_name(context.revision.id)
        return HarnessEndpoint(
            url=f"wss://{host}.example.test", control_url="wss://127.0.0.1:17670", ca_bundle="PEM"
        )

    async def harness_status(self, context: HarnessStatusContext) -> HarnessStatus:  # noqa: ARG002 # the contract's signature
        """Return the next scripted status."""
        scripted = self.provider.statuses
        found = scripted.pop(0) if len(scripted) > 1 else scripted[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def withdraw_harness_exposure(self, context: RevisionContext) -> None:
        """Withdraw the exposure of a native revision."""
        self.provider.begin("withdraw_harness_exposure")
        self.provider.withdrawn.append(context.revision.id)
        self.provider.end("withdraw_harness_exposure")

    async def observe_harness(self, context: RevisionContext) -> HarnessObservation:
        """Return the scripted record, or that the Sandbox is missing."""
        if context.revision.id not in self.provider.sandboxes:
            return HarnessObservation(state=HarnessState.LOST, code="SANDBOX_MISSING")
        return self.provider.observation


class MemoryCredentialGateway:
    """A Credential Gateway paired with the same provider."""

    implementation = "memory"

    def __init__(self, provider: MemoryProvider, driver_id: str = "credentials-memory") -> None:
        self.id = driver_id
        self.provider = provider

    def source_types(self) -> Sequence[SourceType]:
        """Return the one type."""
        return (OPENAI,)

    def validate_source(self, source_type: str, config: Mapping[str, str]) -> None:
        """Accept everything."""

    def network_rules(self, source: CredentialSource) -> Mapping[str, Json]:
        """Return one rule for the model's endpoint."""
        return model_rules(source)

    async def register_source(
        self,
        context: NamespaceContext,  # noqa: ARG002 # the contract's signature
        source: CredentialSource,  # noqa: ARG002 # as above
        secrets: Mapping[str, SecretText],  # noqa: ARG002 # as above
    ) -> SourceStatus:
        """Take it."""
        return SourceStatus(state="ready")

    async def update_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Take it."""
        return await self.register_source(context, source, secrets)

    async def source_status(
        self,
        context: NamespaceContext,  # noqa: ARG002 # the contract's signature
        source: CredentialSource,  # noqa: ARG002 # as above
    ) -> SourceStatus:
        """Return ready."""
        return SourceStatus(state="ready")

    async def remove_source(self, context: NamespaceContext, source: CredentialSource) -> None:
        """Nothing is kept."""

    async def attach_for_revision(
        self,
        context: RevisionContext,  # noqa: ARG002 # the contract's signature
        sources: Sequence[CredentialSource],
    ) -> tuple[CredentialAttachment, ...]:
        """Issue one attachment per source."""
        self.provider.begin("attach_for_revision")
        issued = tuple(
            CredentialAttachment(source_id=source.id, ref=credential_provider(source.id))
            for source in sources
        )
        self.provider.end("attach_for_revision")
        return issued

    async def attachment_status(
        self,
        context: RevisionContext,  # noqa: ARG002 # the contract's signature
        attachment: CredentialAttachment,  # noqa: ARG002 # as above
    ) -> AttachmentStatus:
        """Return the next scripted status."""
        scripted = self.provider.attachments
        return scripted.pop(0) if len(scripted) > 1 else scripted[0]

    async def withdraw(
        self,
        context: RevisionContext,  # noqa: ARG002 # the contract's signature
        attachment: CredentialAttachment,  # noqa: ARG002 # as above
    ) -> Literal["revoked", "pending", "absent"]:
        """Nothing is attached any more."""
        return "absent"


class MemoryAgentGateway:
    """The control socket of an Agent Gateway that switches at once; it reads the real route documents.

    `drains` answers that many times that turns of the predecessor are still running.
    """

    def __init__(self, socket: Path, routes: Path) -> None:
        self._socket = socket
        self._routes = routes
        self._server: asyncio.Server | None = None
        self.drains = 0

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._answer, str(self._socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._socket.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        path = self._routes / f"{request['agentId']}.json"
        draining, self.drains = self.drains > 0, max(0, self.drains - 1)
        reply: dict[str, object] = {"generation": 0, "revisionId": None, "draining": draining}
        with contextlib.suppress(FileNotFoundError):
            route = json.loads(path.read_bytes())
            reply |= {"generation": route["generation"], "revisionId": route["revisionId"]}
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
