"""The operator's own file of a state directory: `operator.toml`. `occ up` reads it at each start and never writes it.

It holds what only the owner of the machine may decide and no API can set: a model endpoint that is reached somewhere else (sandboxd's
upstream override), and that a directory is a throw-away one. Everything else of a machine follows from its state directory. Closed: an
unknown key is refused with its name.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oce.dev.state import StateError

if TYPE_CHECKING:
    from pathlib import Path

_UPSTREAM_KEYS: Final = ("host", "port", "connect", "ca_file")
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class UpstreamOverride:
    """One endpoint's exact name and port, the address where it is reached instead, and the CA its server must prove itself with."""

    host: str
    port: int
    connect: str
    ca_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What `operator.toml` says; the defaults when there is none."""

    durable: bool = True
    """False: PostgreSQL does not wait for the disk. For throw-away directories alone: a power cut loses data."""
    upstreams: tuple[UpstreamOverride, ...] = ()


def read(path: Path) -> OperatorSettings:
    """Read the file; absent is fine. Raises StateError naming the key that is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return OperatorSettings()
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    _closed(path, "", document, ("durable", "upstream"))
    durable = document.get("durable", True)
    if not isinstance(durable, bool):
        raise StateError(f"{path}: `durable` must be true or false")
    found = document.get("upstream", [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise StateError(f"{path}: `upstream` is a list of tables: [[upstream]]")
    upstreams = tuple(_upstream(path, number, item) for number, item in enumerate(found))
    return OperatorSettings(durable=durable, upstreams=upstreams)


def _upstream(path: Path, number: int, table: dict[str, Any]) -> UpstreamOverride:
    where = f"upstream[{number}]."
    _closed(path, where, table, _UPSTREAM_KEYS)
    for key in _UPSTREAM_KEYS:
        if key not in table:
            raise StateError(f"{path}: `{where}{key}` is missing")
        wanted = int if key == "port" else str
        if not isinstance(table[key], wanted) or isinstance(table[key], bool) or not table[key]:
            raise StateError(f"{path}: `{where}{key}` must be a {wanted.__name__}")
    if not 0 < table["port"] <= _PORT_MAX:
        raise StateError(f"{path}: `{where}port` must be 1 to {_PORT_MAX}")
    return UpstreamOverride(**table)


def _closed(path: Path, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise StateError(
                f"{path}: `{where}{key}` is not known; known are {', '.join(f'`{one}`' for one in known)}"
            )
