"""Roles, keys and bindings as an administrator gives them out, and what their holders can and cannot do."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Machine, Shell, agent_document, serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]


def _holder(shell: Shell, machine: Machine, name: str, role: str, *, installation: bool = True) -> Shell:
    """Return the terminal of somebody who holds one built-in role."""
    principal = shell.json("service-principal", "create", name)["id"]
    scope = () if installation else ("--namespace", "default")
    shell.occ("binding", "create", "--subject", principal, "--role", role, *scope)
    key = shell.folder / f"{name}.json"
    shell.occ("key", "create", "--principal", principal, "--name", name, "--out", str(key))
    assert key.stat().st_mode & 0o777 == 0o600
    return Shell({**shell.environment, "OCC_SERVICE_KEY_FILE": str(key)}, shell.folder)
