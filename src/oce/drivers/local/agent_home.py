"""An Agent's place on this machine: its directories and its transport token.

The workspace and the Codex threads outlive revisions; so does the token, which is made once. Its raw value stays in the Secret store
and the route document; this directory keeps only the locator that finds it again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import NotVisible
from oce.domain.resources import SecretLocator
from oce.domain.secret import SecretText
from oce.drivers.local.files import make_private, remove_tree, write_atomic
from oce.drivers.local.rendering import (
    sessions_sub_path,
    transport_secret_id,
    workspace_sub_path,
)

if TYPE_CHECKING:
    from pathlib import Path

    from oce.contracts.sandbox import PhysicalNamespace
    from oce.contracts.stores import SecretDriver

_TOKEN_BYTES: Final = 32
_PASSABLE: Final = 0o711
"""A Sandbox's own uid (root mode) must reach its mounts below this directory, and may list nothing of it."""


class AgentHomes:
    """Directories and tokens of every Agent below one root."""

    def __init__(self, root: Path, secret_driver: SecretDriver) -> None:
        self._root = root
        self._secrets = secret_driver

    async def ensure(self, namespace: PhysicalNamespace, agent_id: str) -> SecretText:
        """Make the directories and the token where they are missing; return the token."""
        await asyncio.to_thread(self._make_directories, agent_id)
        return await self.token(agent_id) or await self._make_token(namespace, agent_id)

    async def token(self, agent_id: str) -> SecretText | None:
        """Return the Agent's transport token, or None when there is none."""
        locator = await asyncio.to_thread(self._locator, agent_id)
        if locator is None:
            return None
        try:
            return await self._secrets.resolve(locator)
        except NotVisible:
            return None

    async def remove(self, agent_id: str) -> None:
        """Remove token and directories; absent is fine. Only after every Sandbox of the Agent is gone."""
        locator = await asyncio.to_thread(self._locator, agent_id)
        if locator is not None:
            await self._secrets.delete(locator)
        await asyncio.to_thread(remove_tree, self._root / agent_id)

    def _make_directories(self, agent_id: str) -> None:
        home = self._root / agent_id
        make_private(home)
        home.chmod(_PASSABLE)
        for below in (workspace_sub_path(agent_id), sessions_sub_path(agent_id)):
            make_private(self._root / below)

    async def _make_token(self, namespace: PhysicalNamespace, agent_id: str) -> SecretText:
        token = SecretText(secrets.token_urlsafe(_TOKEN_BYTES))
        locator = await self._secrets.create(namespace, transport_secret_id(agent_id), token)
        content = json.dumps(asdict(locator)).encode()
        await asyncio.to_thread(write_atomic, self._locator_file(agent_id), content)
        return token

    def _locator(self, agent_id: str) -> SecretLocator | None:
        try:
            return SecretLocator(**json.loads(self._locator_file(agent_id).read_bytes()))
        except FileNotFoundError:
            return None

    def _locator_file(self, agent_id: str) -> Path:
        return self._root / agent_id / "transport.json"
