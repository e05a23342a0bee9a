"""What the gateway tells the egress process about one Sandbox, and what the egress process reports back.

Plain values that both processes share. The egress process owns listeners, TLS, policy decisions and credential values; the
gateway owns records. Credential values cross once, in `put_credentials`, and are never read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from oce.policy.model import NetworkPolicy
    from oce.sandboxd.place import EgressDescriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEndpoint:
    """Where a credential may be used: exact host, port and canonical path glob (`/v1/**`; empty means any path)."""

    host: str
    port: int
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialBinding:
    """One placeholder that the Sandbox holds, and where the egress process may replace it.

    `provider_id` and `credential_key` name the value in the vault; `placeholder` is the exact text inside the Sandbox
    (`openshell:resolve:env:OPENAI_API_KEY`). `binaries` narrows the callers; empty means that the network policy alone decides.
    """

    provider_id: str
    provider_name: str
    credential_key: str
    placeholder: str
    endpoints: Sequence[BoundEndpoint]
    binaries: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEgress:
    """The complete egress configuration of one Sandbox at one generation (higher replaces lower)."""

    sandbox_id: str
    workspace: str
    sandbox_name: str
    generation: int
    policy: NetworkPolicy
    bindings: Sequence[CredentialBinding]
    mounts: Mapping[str, str]
    """In-Sandbox path prefix to host path prefix, so that a rule's binary can be checked by device and inode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One allow or deny decision, as a log line with its parts."""

    sandbox_id: str
    time: float
    allowed: bool
    activity: str
    """`NET:OPEN`, `HTTP:GET`, `DNS:QUERY`, …"""
    host: str
    port: int
    binary: str
    pid: int
    rule: str
    """Name of the deciding rule, `-` if none."""
    reason: str
    method: str = ""
    path: str = ""
    engine: str = "opa"
    severity: str = "INFO"


class EgressClient(Protocol):
    """The gateway's hold on the egress process. Every method raises ConnectionError while that process is away."""

    async def certificate(self, sandbox_id: str) -> bytes:
        """Return (making it on first use) the PEM certificate of the Sandbox's own CA; its key never leaves the process."""

    async def install(self, sandbox: SandboxEgress, descriptors: EgressDescriptors) -> None:
        """Serve a Sandbox's namespace; takes ownership of the descriptors; returns when the generation is in force."""

    async def update(self, sandbox: SandboxEgress) -> None:
        """Replace policy and bindings of an installed Sandbox; returns when the generation is in force."""

    async def remove(self, sandbox_id: str) -> None:
        """Close a Sandbox's listeners and connections and forget its CA; absent is fine."""

    async def installed(self) -> Mapping[str, int]:
        """Return sandbox id to generation for everything served now."""

    async def put_credentials(
        self, provider_id: str, version: int, values: Mapping[str, str]
    ) -> None:
        """Store a provider's values (encrypted at rest); a lower version than the stored one is ignored."""

    async def delete_credentials(self, provider_id: str) -> None:
        """Forget a provider's values; absent is fine."""

    async def credential_versions(self) -> Mapping[str, int]:
        """Return provider id to stored version (no values)."""

    def decisions(self) -> AsyncIterator[Decision]:
        """Yield decisions as they are made, from subscription on; bounded, oldest dropped."""


class EgressError(Exception):
    """The egress process answered and refused; the sentence names no secret.

    EgressError
    └── NotInstalledError   `update` of a Sandbox that this process does not serve (it was restarted): install it again
    """


class NotInstalledError(EgressError):
    """The Sandbox is not served by the running egress process."""
