"""The Agent Gateway's configuration file (TOML): a closed set of keys, checked once at start."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class ConfigurationError(Exception):
    """The file is unusable; the message names the key, never a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Every setting. Paths are absolute; times are seconds."""

    listen: str
    tls_cert: Path
    tls_key: Path
    routes_dir: Path
    control_socket: Path
    api_url: str
    api_token_file: Path
    api_ca_file: Path | None = None
    ready_file: Path | None = None
    remember_yes_seconds: float = 30.0
    remember_yes_outage_seconds: float = 900.0
    remember_no_seconds: float = 1.0
    drain_seconds: float = 30.0
    turn_seconds: float = 600.0
    start_seconds: float = 10.0
    """How long a new connection waits for a Harness that starts."""
    max_connections: int = 4096
    max_body_bytes: int = 262_144

    @property
    def address(self) -> tuple[str, int]:
        """``listen`` as host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


_PATHS = frozenset(
    {
        "tls_cert",
        "tls_key",
        "routes_dir",
        "control_socket",
        "api_token_file",
        "api_ca_file",
        "ready_file",
    }
)
_NUMBERS = frozenset(
    {
        "remember_yes_seconds",
        "remember_yes_outage_seconds",
        "remember_no_seconds",
        "drain_seconds",
        "turn_seconds",
        "start_seconds",
    }
)
_COUNTS = frozenset({"max_connections", "max_body_bytes"})


def load(path: Path) -> GatewayConfig:
    """Read and check the file. Raises ConfigurationError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: not a readable TOML file") from error
    return parse(document)


def parse(document: dict[str, Any]) -> GatewayConfig:
    """Check a parsed document. Raises ConfigurationError."""
    known = {each.name: each for each in fields(GatewayConfig)}
    for key in document:
        if key not in known:
            raise ConfigurationError(f"{key}: unknown key")
    values = {key: _value(key, value) for key, value in document.items()}
    try:
        config = GatewayConfig(**values)
    except TypeError as error:
        missing = sorted(
            {"listen", "api_url", *_PATHS} - set(document) - {"api_ca_file", "ready_file"}
        )
        raise ConfigurationError(f"{', '.join(missing)}: missing") from error
    _check(config)
    return config


def _value(key: str, value: object) -> Any:  # noqa: ANN401 - one of the field types
    if key in _PATHS:
        if not isinstance(value, str) or not value.startswith("/"):
            raise ConfigurationError(f"{key}: an absolute path is needed")
        return Path(value)
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigurationError(f"{key}: a number of seconds is needed")
        return float(value)
    if key in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{key}: a positive integer is needed")
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"{key}: text is needed")
    return value


def _check(config: GatewayConfig) -> None:
    host, _, port = config.listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigurationError("listen: HOST:PORT is needed")
    url = urlsplit(config.api_url)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.username:
        raise ConfigurationError("api_url: an http or https URL without credentials is needed")
    if url.scheme == "http" and url.hostname not in {"127.0.0.1", "::1", "localhost"}:
        raise ConfigurationError("api_url: https is needed outside loopback")
