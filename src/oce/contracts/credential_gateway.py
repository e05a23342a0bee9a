"""CredentialGatewayDriver: lets a Harness use a credential without holding it (reference/sandbox-openshell.md §17).

It is paired with exactly one SandboxDriver through a Backend: only that Driver can consume its attachments. Secret values reach
`register_source` and `update_source` once and are never read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.contracts.sandbox import CredentialAttachment, NamespaceContext, RevisionContext
    from oce.domain.resources import CredentialSource, Json
    from oce.domain.secret import SecretText


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """A type of credential source that the gateway offers."""

    id: str
    secret_fields: tuple[str, ...]
    required_config: tuple[str, ...]
    optional_config: tuple[str, ...]
    harness_login_mode: Literal["api_key", "codex_pat", "chatgptAuthTokens"] | None
    harness_provider: str | None
    environment_names: tuple[str, ...]
    rotation: Literal["none", "refresh"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The gateway's live view of a source."""

    state: Literal["ready", "pending", "failed", "absent"]
    reason: str = ""


class AttachmentStatus(StrEnum):
    """Live view of one attachment; only all-ready completes a revision."""

    READY = "ready"
    PENDING = "pending"
    WITHHELD = "withheld"
    REVOKED = "revoked"
    FAILED = "failed"
    ABSENT = "absent"


class CredentialGatewayDriver(Protocol):
    """The required members; every asynchronous one is safe to repeat."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    def source_types(self) -> Sequence[SourceType]:
        """Return the catalogue; pure."""

    def validate_source(self, source_type: str, config: Mapping[str, str]) -> None:
        """Raise ConfigurationRefused with `/config/<field>` details, before any Secret is read."""

    def network_rules(self, source: CredentialSource) -> Mapping[str, Json]:
        """Return the rules that attaching this source adds to a Sandbox's policy, by key, as `oce.policy.codec` spells them; pure.

        For explanations only (ours): what is enforced is what the provider composes.
        """

    async def register_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Make the provider and its profile."""

    async def update_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Replace the values of a static source."""

    async def source_status(
        self, context: NamespaceContext, source: CredentialSource
    ) -> SourceStatus:
        """Read the live view."""

    async def remove_source(self, context: NamespaceContext, source: CredentialSource) -> None:
        """Remove what is ours; resolves only when it is proved gone."""

    async def attach_for_revision(
        self, context: RevisionContext, sources: Sequence[CredentialSource]
    ) -> tuple[CredentialAttachment, ...]:
        """Issue one attachment per source. Raises CredentialSourceRefused."""

    async def attachment_status(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> AttachmentStatus:
        """Read whether the attachment is in force in the revision's Sandbox."""

    async def withdraw(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> Literal["revoked", "pending", "absent"]:
        """Detach from the running Sandbox; `revoked` only on evidence, `absent` only on proof."""
