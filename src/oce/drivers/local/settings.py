"""What the startup YAML tells local Compute. Frozen; `oce.installation` builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_CODEX_BINARY: Final = "/opt/oce/codex/bin/codex"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalComputeSettings:
    """Paths on the host, paths inside a Sandbox, and waits in seconds.

    `agents_dir` is what sandboxd's operator mount source `agents_claim` points at; `routes_dir` is where the Agent Gateway reads;
    `gateway_control_socket` is its control socket. `harness_command` is the whole command inside the Sandbox, interpreter first.
    """

    agents_dir: Path
    routes_dir: Path
    gateway_control_socket: Path
    harness_command: tuple[str, ...]
    harness_image: str = "host"
    codex_binary: str = DEFAULT_CODEX_BINARY
    agents_claim: str = "agents"
    workspace_path: str = "/sandbox/enterprise"
    sessions_path: str = "/sandbox/.openclaw-sessions"
    app_server_port: int = 18790
    log_level: str = "info"
    drain_seconds: int = 30
    ready_wait_seconds: float = 5.0
    """How long a pass waits in place before it is deferred (design §6)."""
    first_poll_seconds: float = 0.02
    slowest_poll_seconds: float = 0.25
