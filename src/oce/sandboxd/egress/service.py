"""What the egress process does for its one client, apart from how it is asked (`control`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from oce.sandboxd.egress.authority import Authority, authority_file
from oce.sandboxd.egress.decisions import DecisionHub
from oce.sandboxd.egress.model import NotInstalledError
from oce.sandboxd.egress.sandbox import ServedSandbox
from oce.sandboxd.egress.upstream import Dialer, system_resolver
from oce.sandboxd.egress.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oce.sandboxd.egress.config import EgressConfig
    from oce.sandboxd.egress.model import SandboxEgress
    from oce.sandboxd.egress.upstream import Resolver
    from oce.sandboxd.place import EgressDescriptors


class EgressService:
    """All served Sandboxes, their authorities and the vault. `directory` is private to this process (0700)."""

    def __init__(
        self, directory: Path, config: EgressConfig, resolver: Resolver = system_resolver
    ) -> None:
        self._authorities_directory = directory / "authorities"
        self._authorities_directory.mkdir(mode=0o700, exist_ok=True)
        self._config = config
        self._vault = Vault(directory)
        self._dialer = Dialer(config, resolver)
        self._authorities: dict[str, Authority] = {}
        self._sandboxes: dict[str, ServedSandbox] = {}
        self.hub = DecisionHub()

    def certificate(self, sandbox_id: str) -> bytes:
        """Return the Sandbox's CA certificate, making the CA on first use. Raises ValueError for an unusable id."""
        return self._authority(sandbox_id).certificate

    def install(self, sandbox: SandboxEgress, descriptors: EgressDescriptors) -> None:
        """Serve a Sandbox, or an already served one on fresh descriptors; owns the descriptors from now on."""
        served = self._sandboxes.get(sandbox.sandbox_id)
        if served is not None:
            served.replace_descriptors(descriptors)
            served.update(sandbox)
            return
        self._sandboxes[sandbox.sandbox_id] = ServedSandbox(
            sandbox,
            descriptors,
            authority=self._authority(sandbox.sandbox_id),
            vault=self._vault,
            dialer=self._dialer,
            hub=self.hub,
            max_connections=self._config.max_connections,
        )

    def update(self, sandbox: SandboxEgress) -> None:
        """Put a newer generation in force. Raises NotInstalledError."""
        served = self._sandboxes.get(sandbox.sandbox_id)
        if served is None:
            raise NotInstalledError("the Sandbox is not served by this egress process")
        served.update(sandbox)

    async def remove(self, sandbox_id: str) -> None:
        """Stop serving a Sandbox and forget its CA; absent is fine."""
        served = self._sandboxes.pop(sandbox_id, None)
        if served is not None:
            await served.close()
        self._authorities.pop(sandbox_id, None)
        authority_file(self._authorities_directory, sandbox_id).unlink(missing_ok=True)

    def installed(self) -> Mapping[str, int]:
        """Return sandbox id to generation."""
        return {key: served.config.generation for key, served in self._sandboxes.items()}

    def put_credentials(self, provider_id: str, version: int, values: Mapping[str, str]) -> None:
        """Store a provider's values."""
        self._vault.put(provider_id, version, values)

    def delete_credentials(self, provider_id: str) -> None:
        """Forget a provider's values."""
        self._vault.delete(provider_id)

    def credential_versions(self) -> Mapping[str, int]:
        """Return provider id to stored version."""
        return self._vault.versions()

    async def close(self) -> None:
        """Stop serving; authorities and values stay on disk for the next process."""
        for served in self._sandboxes.values():
            await served.close()
        self._sandboxes.clear()

    def _authority(self, sandbox_id: str) -> Authority:
        authority = self._authorities.get(sandbox_id)
        if authority is None:
            authority = Authority(self._authorities_directory, sandbox_id, time.monotonic)
            self._authorities[sandbox_id] = authority
        return authority
