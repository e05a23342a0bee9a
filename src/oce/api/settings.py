"""What the environment tells an API process. Secrets come from files; no variable holds one."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT_MAX: Final = 65_535
_TOKEN_MIN: Final = 32


class ApiSettingsRefused(Exception):  # noqa: N818 # a refusal is the answer of a judgement
    """A variable is missing or not acceptable; names the variable, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """One API process: the public listener, the private one, and what they serve.

    Variables: OCC_CONFIG_PATH, OCC_DATABASE_URL (or OCC_DATABASE_URL_FILE), OCC_HOST, OCC_PORT, OCC_TLS_CERTIFICATE, OCC_TLS_KEY,
    OCC_PRIVATE_HOST, OCC_PRIVATE_PORT, OCC_INTERNAL_TOKEN_FILE, OCC_LOG_LEVEL, OCC_DATABASE_POOL_SIZE.
    """

    config_path: Path
    database_url: str
    pool_size: int
    host: str
    port: int
    certificate: Path | None
    certificate_key: Path | None
    private_host: str
    private_port: int
    internal_token: SecretText
    log_level: str


def from_environment(environment: Mapping[str, str]) -> ApiSettings:
    """Read and check the variables. Raises ApiSettingsRefused."""
    host = environment.get("OCC_HOST", "127.0.0.1")
    certificate = _path(environment, "OCC_TLS_CERTIFICATE")
    key = _path(environment, "OCC_TLS_KEY")
    if (certificate is None) != (key is None):
        raise ApiSettingsRefused("OCC_TLS_CERTIFICATE and OCC_TLS_KEY go together")
    if certificate is None and not _loopback(host):
        raise ApiSettingsRefused(
            "OCC_TLS_CERTIFICATE is required unless OCC_HOST is a loopback address"
        )
    private_host = environment.get("OCC_PRIVATE_HOST", "127.0.0.1")
    if _wildcard(private_host):
        raise ApiSettingsRefused(
            "OCC_PRIVATE_HOST must be a loopback or one explicit address, not every address"
        )
    level = environment.get("OCC_LOG_LEVEL", "info")
    if level not in {"debug", "info", "warn", "error"}:
        raise ApiSettingsRefused("OCC_LOG_LEVEL must be debug, info, warn or error")
    return ApiSettings(
        config_path=_required_path(environment, "OCC_CONFIG_PATH"),
        database_url=_database_url(environment),
        pool_size=_number(environment, "OCC_DATABASE_POOL_SIZE", 10, 1000),
        host=host,
        port=_number(environment, "OCC_PORT", 8443, _PORT_MAX),
        certificate=certificate,
        certificate_key=key,
        private_host=private_host,
        private_port=_number(environment, "OCC_PRIVATE_PORT", 9464, _PORT_MAX),
        internal_token=_token(_required_path(environment, "OCC_INTERNAL_TOKEN_FILE")),
        log_level=level,
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    if not text:
        return None
    if not Path(text).is_absolute():
        raise ApiSettingsRefused(f"{name} must be an absolute path")
    return Path(text)


def _required_path(environment: Mapping[str, str], name: str) -> Path:
    path = _path(environment, name)
    if path is None:
        raise ApiSettingsRefused(f"{name} is required")
    return path


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ApiSettingsRefused(f"{name} cannot be read: {type(error).__name__}") from None


def _database_url(environment: Mapping[str, str]) -> str:
    path = _path(environment, "OCC_DATABASE_URL_FILE")
    url = environment.get("OCC_DATABASE_URL", "")
    if path is not None and url:
        raise ApiSettingsRefused("give either OCC_DATABASE_URL or OCC_DATABASE_URL_FILE")
    found = url if path is None else _read(path, "OCC_DATABASE_URL_FILE")
    if not found:
        raise ApiSettingsRefused("OCC_DATABASE_URL is required")
    return found


def _token(path: Path) -> SecretText:
    token = _read(path, "OCC_INTERNAL_TOKEN_FILE")
    if len(token) < _TOKEN_MIN:
        raise ApiSettingsRefused(f"OCC_INTERNAL_TOKEN_FILE holds less than {_TOKEN_MIN} characters")
    return SecretText(token)


def _number(environment: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ApiSettingsRefused(f"{name} must be a number from 1 to {most}")
    return int(text)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
