"""SecretDriver and ConfigurationDriver: where secret values and configuration documents live.

Both hold bytes for the control plane and own no platform resource. A Secret's value is written, replaced and resolved; nothing
lists values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oce.contracts.sandbox import PhysicalNamespace
    from oce.domain.resources import Json, SecretLocator
    from oce.domain.secret import SecretText


class SecretDriver(Protocol):
    """Stores secret values at rest."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    async def create(
        self, namespace: PhysicalNamespace, secret_id: str, value: SecretText
    ) -> SecretLocator:
        """Store a new value under a deterministic name; repeating it with the same id replaces the value."""

    async def update(self, locator: SecretLocator, value: SecretText) -> None:
        """Replace the value. Raises NotVisible when it is gone."""

    async def resolve(self, locator: SecretLocator) -> SecretText:
        """Return the value. Raises NotVisible when it is gone."""

    async def delete(self, locator: SecretLocator) -> None:
        """Forget the value; absent is fine."""


class ConfigurationDriver(Protocol):
    """Stores configuration documents by id and generation."""

    @property
    def id(self) -> str:
        """Id of the selected Driver."""

    @property
    def implementation(self) -> str:
        """Name of the Driver's program."""

    async def write(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int, values: Json
    ) -> None:
        """Store one generation; repeating it is fine, another document under the same generation is a conflict."""

    async def read(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int
    ) -> Json:
        """Return the document. Raises NotVisible."""

    async def delete(self, namespace: PhysicalNamespace, configuration_id: str) -> None:
        """Forget every generation; absent is fine."""
