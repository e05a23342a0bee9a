"""Parse the configuration blocks of the Drivers that run on one machine. Closed; errors name the path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oce.drivers.local.settings import DEFAULT_CODEX_BINARY, LocalComputeSettings
from oce.installation.errors import StartupRefused
from oce.installation.schema import closed

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPUTE_KEYS: Final = (
    "agentsDirectory",
    "routesDirectory",
    "gatewayControlSocket",
    "harnessCommand",
    "harnessImage",
    "codexBinary",
    "agentsClaim",
    "codexVersion",
    "drainSeconds",
)
_DRAIN_MAX: Final = 3600


def compute_settings(
    configuration: Mapping[str, Any], path: str, log_level: str
) -> LocalComputeSettings:
    """Return local Compute's settings. Raises StartupRefused."""
    closed(configuration, path, _COMPUTE_KEYS, required=_COMPUTE_KEYS[:4])
    command = configuration["harnessCommand"]
    if (
        not isinstance(command, list)
        or not command
        or not all(isinstance(word, str) and word for word in command)
    ):
        raise StartupRefused(f"{path}.harnessCommand", "must be a non-empty list of texts")
    drain = configuration.get("drainSeconds", 30)
    if not isinstance(drain, int) or isinstance(drain, bool) or not 0 <= drain <= _DRAIN_MAX:
        raise StartupRefused(f"{path}.drainSeconds", f"must be 0 to {_DRAIN_MAX} seconds")
    return LocalComputeSettings(
        agents_dir=absolute(configuration, "agentsDirectory", path),
        routes_dir=absolute(configuration, "routesDirectory", path),
        gateway_control_socket=absolute(configuration, "gatewayControlSocket", path),
        harness_command=tuple(command),
        harness_image=_text(configuration, "harnessImage", path, "host"),
        codex_binary=_text(configuration, "codexBinary", path, DEFAULT_CODEX_BINARY),
        agents_claim=_text(configuration, "agentsClaim", path, "agents"),
        drain_seconds=drain,
        log_level=log_level,
    )


def absolute(configuration: Mapping[str, Any], key: str, path: str) -> Path:
    """Return an absolute path of a block. Raises StartupRefused."""
    value = configuration.get(key)
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise StartupRefused(f"{path}.{key}", "must be an absolute path")
    return Path(value)


def _text(configuration: Mapping[str, Any], key: str, path: str, default: str) -> str:
    value = configuration.get(key, default)
    if not isinstance(value, str) or not value:
        raise StartupRefused(f"{path}.{key}", "must be a non-empty text")
    return value
