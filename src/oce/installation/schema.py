"""The closed shape of the startup YAML (reference/control-plane.md §10).

Parses plain values into frozen selections and refuses unknown keys by path. A Driver's own `configuration` block stays a plain mapping
here; the Driver's package judges it, because only it knows its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oce.installation.errors import StartupRefused

CAPABILITIES: Final = ("configuration", "iam", "compute", "secret", "sandbox", "credential_gateway")
REQUIRED_CAPABILITIES: Final = ("configuration", "iam", "compute", "secret")
LATER_CAPABILITIES: Final = ("credential_refresh", "plugin", "service_account", "repo", "channel")
PACKAGE_CAPABILITIES: Final = ("configuration", "iam", "compute", "sandbox")
LOG_LEVELS: Final = ("debug", "info", "warn", "error")
ID_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One selected Driver. `implementation` chooses among bundled ones; `package` names an installed one."""

    id: str
    implementation: str | None
    package: str | None
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSelection:
    """A connection that several Drivers share."""

    id: str
    type: str
    configuration: Mapping[str, Any]
    drivers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """The parsed file."""

    cluster: str | None
    drivers: Mapping[str, Selection]
    backends: tuple[BackendSelection, ...]
    log_level: str


def parse_startup(document: Mapping[str, Any]) -> Startup:
    """Return the parsed file. Raises StartupRefused with the path of the first wrong key."""
    if "integrations" in document:
        raise StartupRefused("integrations", "this block is retired")
    closed(document, "", ("occ", "drivers", "backend", "logging"), required=("drivers",))
    occ = mapping(document.get("occ", {}), "occ")
    closed(occ, "occ", ("cluster",))
    logging = mapping(document.get("logging", {}), "logging")
    closed(logging, "logging", ("level",))
    level = logging.get("level", "info")
    if level not in LOG_LEVELS:
        raise StartupRefused("logging.level", f"must be one of {', '.join(LOG_LEVELS)}")
    cluster = text(occ["cluster"], "occ.cluster") if "cluster" in occ else None
    return Startup(
        cluster=cluster,
        drivers=_drivers(document["drivers"]),
        backends=_backends(document.get("backend", [])),
        log_level=level,
    )


def _drivers(value: Any) -> dict[str, Selection]:  # noqa: ANN401 - any YAML value
    block = mapping(value, "drivers")
    for name in block:
        if name in LATER_CAPABILITIES:
            raise StartupRefused(
                f"drivers.{name}", "this capability is not implemented in this release"
            )
    closed(block, "drivers", CAPABILITIES, required=REQUIRED_CAPABILITIES)
    return {name: _selection(name, entry) for name, entry in block.items()}


def _selection(capability: str, value: Any) -> Selection:  # noqa: ANN401 - any YAML value
    path = f"drivers.{capability}"
    entry = mapping(value, path)
    closed(
        entry,
        path,
        ("id", "implementation", "package", "configuration"),
        required=("id", "configuration"),
    )
    package = text(entry["package"], f"{path}.package") if "package" in entry else None
    implementation = (
        text(entry["implementation"], f"{path}.implementation")
        if "implementation" in entry
        else None
    )
    if package is not None and capability not in PACKAGE_CAPABILITIES:
        raise StartupRefused(
            f"{path}.package", "only a bundled Driver can be selected for this capability"
        )
    if package is not None and implementation is not None:
        raise StartupRefused(
            f"{path}.implementation",
            "an installed package and a bundled implementation exclude each other",
        )
    return Selection(
        id=text(entry["id"], f"{path}.id"),
        implementation=implementation,
        package=package,
        configuration=mapping(entry["configuration"], f"{path}.configuration"),
    )


def _backends(value: Any) -> tuple[BackendSelection, ...]:  # noqa: ANN401 - any YAML value
    if not isinstance(value, list):
        raise StartupRefused("backend", "must be a list")
    backends = tuple(_backend(f"backend[{index}]", entry) for index, entry in enumerate(value))
    for attribute in ("id", "type"):
        seen: set[str] = set()
        for index, backend in enumerate(backends):
            key = getattr(backend, attribute)
            if key in seen:
                raise StartupRefused(f"backend[{index}].{attribute}", "is used by two Backends")
            seen.add(key)
    return backends


def _backend(path: str, value: Any) -> BackendSelection:  # noqa: ANN401 - any YAML value
    entry = mapping(value, path)
    closed(
        entry,
        path,
        ("id", "type", "configuration", "drivers"),
        required=("id", "type", "configuration", "drivers"),
    )
    kind = text(entry["type"], f"{path}.type")
    if kind != "openshell":
        raise StartupRefused(
            f"{path}.type", "only `openshell` Backends are implemented in this release"
        )
    members = mapping(entry["drivers"], f"{path}.drivers")
    closed(
        members,
        f"{path}.drivers",
        ("sandbox", "credential_gateway"),
        required=("sandbox", "credential_gateway"),
    )
    drivers = {name: text(member, f"{path}.drivers.{name}") for name, member in members.items()}
    return BackendSelection(
        id=text(entry["id"], f"{path}.id"),
        type=kind,
        configuration=mapping(entry["configuration"], f"{path}.configuration"),
        drivers=drivers,
    )


def closed(
    value: Mapping[str, Any], path: str, allowed: tuple[str, ...], required: tuple[str, ...] = ()
) -> None:
    """Refuse unknown keys and missing required ones."""
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in allowed:
            raise StartupRefused(
                f"{prefix}{name}", f"unknown key; known here: {', '.join(allowed)}"
            )
    for name in required:
        if name not in value:
            raise StartupRefused(f"{prefix}{name}", "is required")


def mapping(value: Any, path: str) -> Mapping[str, Any]:  # noqa: ANN401 - any YAML value
    """Return a mapping or refuse."""
    if not isinstance(value, Mapping):
        raise StartupRefused(path, "must be a mapping")
    return value


def text(value: Any, path: str) -> str:  # noqa: ANN401 - any YAML value
    """Return a non-empty text of at most 200 characters or refuse."""
    if not isinstance(value, str) or not value.strip() or len(value) > ID_MAX:
        raise StartupRefused(path, "must be a non-empty text of at most 200 characters")
    return value
