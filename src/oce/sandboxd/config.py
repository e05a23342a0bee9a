"""Configuration of one gateway: a small closed TOML document that only the operator writes.

What stands here no RPC can change: which host folders Sandboxes may mount, and which upstream may be redirected to a private
address. An unknown key is refused with its full name; a value is never repeated in an error.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oce.sandboxd.egress import config as egress_config
from oce.sandboxd.egress.config import parse_config as parse_egress

_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,62})")
_VERSION = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.-]+)?")
_MAX_PORT = 65535


class ConfigError(Exception):
    """A configuration that is not accepted; the sentence names the key."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key


@dataclass(frozen=True, slots=True)
class ReadOnlyMount:
    """A host folder shown read-only in every Sandbox."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything the gateway is told at start."""

    state_dir: Path
    listen_host: str = "127.0.0.1"
    listen_port: int = 17670
    reported_version: str = "0.1.5"
    service_domain: str = "openshell.localhost"
    bwrap: Path | None = None
    python: Path | None = None
    read_only: tuple[ReadOnlyMount, ...] = ()
    mount_sources: dict[str, Path]

    @property
    def listen(self) -> str:
        """`host:port`."""
        host = f"[{self.listen_host}]" if ":" in self.listen_host else self.listen_host
        return f"{host}:{self.listen_port}"


class _Table:
    """A TOML table whose keys must all be taken."""

    def __init__(self, found: object, where: str) -> None:
        if not isinstance(found, dict):
            raise ConfigError(where, "must be a table")
        self._left: dict[str, Any] = dict(found)
        self._where = where

    def name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def text(self, key: str, default: str | None = None) -> str:
        value = self._left.pop(key, default)
        if value is None:
            raise ConfigError(self.name(key), "is required")
        if not isinstance(value, str) or not value or "\0" in value:
            raise ConfigError(self.name(key), "must be a nonempty string")
        return value

    def optional(self, key: str) -> str | None:
        return self.text(key) if key in self._left else None

    def flag(self, key: str) -> bool:
        value = self._left.pop(key, False)
        if not isinstance(value, bool):
            raise ConfigError(self.name(key), "must be true or false")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self._left.pop(key, {}), self.name(key))

    def plain(self, key: str) -> dict[str, Any]:
        value = self._left.pop(key, {})
        if not isinstance(value, dict):
            raise ConfigError(self.name(key), "must be a table")
        return value

    def tables(self, key: str) -> list[_Table]:
        found = self._left.pop(key, [])
        if not isinstance(found, list):
            raise ConfigError(self.name(key), "must be an array of tables")
        return [_Table(item, f"{self.name(key)}[{index}]") for index, item in enumerate(found)]

    def end(self) -> None:
        for key in self._left:
            raise ConfigError(self.name(key), "is not a known key")


def load_config(
    path: Path | None, *, state_dir: str | None = None, listen: str | None = None
) -> GatewayConfig:
    """Read and check the document; flags win over it. Raises ConfigError, OSError."""
    document: dict[str, Any] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), f"is not TOML: {error}") from error
    return parse_config(document, state_dir=state_dir, listen=listen)


def parse_config(
    document: dict[str, Any], *, state_dir: str | None = None, listen: str | None = None
) -> GatewayConfig:
    """Check a parsed document. Raises ConfigError."""
    root = _Table(document, "")
    gateway = root.table("gateway")
    written_listen = gateway.text("listen", "127.0.0.1:17670")
    remote = gateway.flag("allow_non_loopback_listen")
    host, port = _address(listen or written_listen, "gateway.listen")
    if not remote and not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            "gateway.listen", "is not a loopback address; set gateway.allow_non_loopback_listen"
        )
    written_state = gateway.optional("state_dir")
    state = state_dir or written_state
    if state is None:
        raise ConfigError("gateway.state_dir", "is required (or --state-dir)")
    version = gateway.text("reported_version", "0.1.5")
    if not _VERSION.fullmatch(version):
        raise ConfigError("gateway.reported_version", "must be a semantic version")
    domain = gateway.text("service_domain", "openshell.localhost")
    if not _HOST.fullmatch(domain):
        raise ConfigError("gateway.service_domain", "must be a lowercase DNS name")
    gateway.end()
    confinement = root.table("confinement")
    bwrap, python = confinement.optional("bwrap"), confinement.optional("python")
    read_only = tuple(_read_only(table) for table in confinement.tables("read_only"))
    confinement.end()
    sources = dict(_source(table) for table in root.tables("mount_sources"))
    _check_egress(root)
    root.end()
    return GatewayConfig(
        state_dir=Path(state).absolute(),
        listen_host=host,
        listen_port=port,
        reported_version=version,
        service_domain=domain,
        bwrap=None if bwrap is None else Path(bwrap),
        python=None if python is None else Path(python),
        read_only=read_only,
        mount_sources=sources,
    )


def _address(text: str, key: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not colon or not 0 <= number <= _MAX_PORT:
        raise ConfigError(key, "must be IP:PORT")
    return host, number


def _absolute(table: _Table, key: str) -> Path:
    path = Path(table.text(key))
    if not path.is_absolute() or ".." in path.parts:
        raise ConfigError(table.name(key), "must be an absolute path without '..'")
    return path


def _read_only(table: _Table) -> ReadOnlyMount:
    mount = ReadOnlyMount(_absolute(table, "source"), str(_absolute(table, "target")))
    table.end()
    return mount


def _source(table: _Table) -> tuple[str, Path]:
    name = table.text("id")
    if not _ID.fullmatch(name):
        raise ConfigError(table.name("id"), "must be lowercase letters, digits and '-'")
    source = (name, _absolute(table, "path"))
    table.end()
    return source


def _check_egress(root: _Table) -> None:
    """Check the table that the egress process reads itself: a mistake is better known before anything starts."""
    try:
        parse_egress(root.plain("egress"))
    except egress_config.ConfigError as error:
        key, _, problem = str(error).partition(": ")
        raise ConfigError(key, problem) from error
