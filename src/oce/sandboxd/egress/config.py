"""What the operator tells the egress process: roots it trusts, and upstreams or ranges opened on purpose.

Read once at start from the `[egress]` table of sandboxd's own TOML file. No RPC can set any of it: this is the only way to a
loopback or private upstream.

    [egress]
    ca_file = "/etc/corporate-roots.pem"      # trusted besides the system's roots
    private_networks = ["10.20.0.0/16"]       # may be dialled where a policy's allowed_ips say so too
    max_connections = 512                     # open at once, per Sandbox

    [[egress.upstream]]                       # exactly this name and port is dialled there
    host = "api.openai.com"
    port = 443
    connect = "127.0.0.1:8443"
    ca_file = "/path/stub-ca.pem"             # the only root trusted for it; left out: the usual roots
"""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oce.policy.match import is_glob, normal_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.policy.addresses import Network

DEFAULT_MAX_CONNECTIONS = 512
MAX_PORT = 65535


class ConfigError(Exception):
    """The `[egress]` table cannot be used; names the key."""


@dataclass(frozen=True, slots=True)
class Override:
    """Where one exact name and port is dialled instead, and which root vouches for it (None: the usual roots)."""

    address: str
    port: int
    ca_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressConfig:
    """The whole operator configuration of egress."""

    ca_file: Path | None = None
    private_networks: tuple[Network, ...] = ()
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    upstreams: Mapping[tuple[str, int], Override]


def load_config(path: Path | None) -> EgressConfig:
    """Read the file; no file means no overrides. Raises ConfigError."""
    if path is None:
        return EgressConfig(upstreams={})
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration cannot be read: {error}") from error
    return parse_config(_table(document.get("egress", {}), "egress"))


def parse_config(table: Mapping[str, object]) -> EgressConfig:
    """Parse the `[egress]` table; unknown keys are refused. Raises ConfigError."""
    _known(table, {"ca_file", "private_networks", "max_connections", "upstream"}, "egress")
    upstreams: dict[tuple[str, int], Override] = {}
    for n, item in enumerate(_list(table.get("upstream", []), "egress.upstream")):
        where = f"egress.upstream[{n}]"
        key, override = _override(_table(item, where), where)
        if key in upstreams:
            raise ConfigError(f"{where}: {key[0]}:{key[1]} appears twice")
        upstreams[key] = override
    return EgressConfig(
        ca_file=_file(table, "egress"),
        private_networks=_networks(table),
        max_connections=_number(
            table.get("max_connections", DEFAULT_MAX_CONNECTIONS), "egress.max_connections"
        ),
        upstreams=upstreams,
    )


def _override(table: Mapping[str, object], where: str) -> tuple[tuple[str, int], Override]:
    _known(table, {"host", "port", "connect", "ca_file"}, where)
    host = normal_host(_text(table.get("host"), f"{where}.host"))
    if not host or is_glob(host):
        raise ConfigError(f"{where}.host: is not one exact name")
    address, _, port = _text(table.get("connect"), f"{where}.connect").rpartition(":")
    try:
        literal = str(ipaddress.ip_address(address.strip("[]")))
    except ValueError:
        raise ConfigError(f"{where}.connect: is not ADDRESS:PORT") from None
    if not port.isdecimal():
        raise ConfigError(f"{where}.connect: is not ADDRESS:PORT")
    key = (host, _number(table.get("port"), f"{where}.port"))
    return key, Override(literal, _number(int(port), f"{where}.connect"), _file(table, where))


def _networks(table: Mapping[str, object]) -> tuple[Network, ...]:
    where = "egress.private_networks"
    try:
        return tuple(
            ipaddress.ip_network(_text(item, where))
            for item in _list(table.get("private_networks", []), where)
        )
    except ValueError:
        raise ConfigError(f"{where}: has something that is not a CIDR range") from None


def _file(table: Mapping[str, object], where: str) -> Path | None:
    if "ca_file" not in table:
        return None
    return Path(_text(table["ca_file"], f"{where}.ca_file"))


def _known(table: Mapping[str, object], keys: set[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{where}.{key}: is not a known key")


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: is not a table")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: is not a list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: is not text")
    return value


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PORT:
        raise ConfigError(f"{where}: is not a number in 1..{MAX_PORT}")
    return value
