"""ConfigurationDriver of one machine: one JSON file per Configuration and generation.

A generation is written once and never changes. Documents hold no secret values (admission refuses them), so they are plain files.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import NotVisible, OwnershipConflict
from oce.drivers.local.files import create_exclusive, make_private, remove_tree

if TYPE_CHECKING:
    from pathlib import Path

    from oce.contracts.sandbox import PhysicalNamespace
    from oce.domain.resources import Json

_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")


class LocalConfigurationDriver:
    """Documents under `directory/<physical namespace>/<configuration id>/<generation>.json`."""

    implementation = "local-files"

    def __init__(self, directory: Path, *, driver_id: str = "configuration-local") -> None:
        self.id = driver_id
        self._directory = directory

    async def write(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int, values: Json
    ) -> None:
        """Store one generation. Raises OwnershipConflict when it exists with another document."""
        folder = self._folder(namespace, configuration_id)
        await asyncio.to_thread(_write, folder, generation, values)

    async def read(
        self, namespace: PhysicalNamespace, configuration_id: str, generation: int
    ) -> Json:
        """Return the document. Raises NotVisible."""
        folder = self._folder(namespace, configuration_id)
        return await asyncio.to_thread(_read, folder, generation)

    async def delete(self, namespace: PhysicalNamespace, configuration_id: str) -> None:
        """Forget every generation; absent is fine."""
        await asyncio.to_thread(remove_tree, self._folder(namespace, configuration_id))

    def _folder(self, namespace: PhysicalNamespace, configuration_id: str) -> Path:
        if not _SAFE.fullmatch(configuration_id) or not _SAFE.fullmatch(namespace.name):
            raise NotVisible("no such Configuration")
        return self._directory / namespace.name / configuration_id


def _write(folder: Path, generation: int, values: Json) -> None:
    make_private(folder)
    content = json.dumps(values, ensure_ascii=False, sort_keys=True).encode()
    if create_exclusive(folder / f"{generation}.json", content):
        return
    if _read(folder, generation) != values:
        raise OwnershipConflict("Configuration", f"generation {generation}")


def _read(folder: Path, generation: int) -> Json:
    try:
        return json.loads((folder / f"{generation}.json").read_bytes())
    except FileNotFoundError as error:
        raise NotVisible(f"generation {generation} of {folder.name} is not stored") from error
