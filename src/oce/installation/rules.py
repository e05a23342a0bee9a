"""Which Drivers compose with which (reference/control-plane.md §10.2; design §6). Pure; every refusal is fatal at startup.

The bundled OpenShell Sandbox composes with the bundled Kubernetes Compute, and, ours, with the bundled local Compute. Installed
Sandbox packages compose with Kubernetes Compute only and cannot pair with a Credential Gateway. An installed Compute takes no Sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oce.installation.errors import StartupRefused

if TYPE_CHECKING:
    from oce.installation.schema import BackendSelection, Selection, Startup

BUNDLED: Final = {
    "configuration": ("kubernetes", "local"),
    "iam": ("native",),
    "compute": ("kubernetes", "local"),
    "secret": ("kubernetes", "local"),
    "sandbox": ("openshell",),
    "credential_gateway": ("openshell",),
}
"""Implementations per capability; the first is what a file without `implementation` means, as upstream's files do."""


def implementation(capability: str, selection: Selection) -> str:
    """Return the bundled implementation a selection means, or `package`."""
    if selection.package is not None:
        return "package"
    return selection.implementation or BUNDLED[capability][0]


def check_composition(startup: Startup) -> None:
    """Refuse a combination that cannot fail closed. Raises StartupRefused naming the key to change."""
    chosen = {name: implementation(name, selection) for name, selection in startup.drivers.items()}
    for name, choice in chosen.items():
        if choice != "package" and choice not in BUNDLED[name]:
            raise StartupRefused(
                f"drivers.{name}.implementation", f"must be one of {', '.join(BUNDLED[name])}"
            )
    _check_iam(startup, chosen)
    _check_sandbox(startup, chosen)
    _check_gateway(startup, chosen)
    _check_stores(chosen)


def _check_iam(startup: Startup, chosen: dict[str, str]) -> None:
    if chosen["iam"] == "native" and startup.drivers["iam"].configuration:
        raise StartupRefused("drivers.iam.configuration", "native IAM takes no configuration")


def _check_sandbox(startup: Startup, chosen: dict[str, str]) -> None:
    sandbox, compute = chosen.get("sandbox"), chosen["compute"]
    if sandbox is None:
        if compute == "local":
            raise StartupRefused(
                "drivers.sandbox",
                "local Compute runs no Harness without a Sandbox; select the bundled OpenShell Sandbox",
            )
        return
    if compute == "package":
        raise StartupRefused(
            "drivers.sandbox", "a Sandbox does not compose with an installed Compute package"
        )
    if sandbox == "package" and compute != "kubernetes":
        raise StartupRefused(
            "drivers.sandbox.package",
            "an installed Sandbox package composes with Kubernetes Compute only",
        )
    if sandbox == "package" and "credential_gateway" in chosen:
        raise StartupRefused(
            "drivers.credential_gateway",
            "an installed Sandbox package cannot pair with a Credential Gateway",
        )
    if sandbox == "openshell":
        backend = _openshell_backend(startup, "drivers.sandbox")
        if backend.drivers["sandbox"] != startup.drivers["sandbox"].id:
            raise StartupRefused("backend[].drivers.sandbox", "must be the id of drivers.sandbox")
        if "credential_gateway" not in startup.drivers:
            raise StartupRefused(
                "drivers.credential_gateway",
                "the openshell Backend needs its Credential Gateway member selected too",
            )


def _check_gateway(startup: Startup, chosen: dict[str, str]) -> None:
    if "credential_gateway" not in chosen:
        if startup.backends:
            raise StartupRefused(
                "backend", "an openshell Backend needs both of its members selected"
            )
        return
    if chosen.get("sandbox") != "openshell":
        raise StartupRefused(
            "drivers.credential_gateway",
            "the OpenShell Credential Gateway needs the OpenShell Sandbox it is paired with",
        )
    backend = _openshell_backend(startup, "drivers.credential_gateway")
    if backend.drivers["credential_gateway"] != startup.drivers["credential_gateway"].id:
        raise StartupRefused(
            "backend[].drivers.credential_gateway", "must be the id of drivers.credential_gateway"
        )


def _check_stores(chosen: dict[str, str]) -> None:
    for name in ("secret", "configuration"):
        pair = {chosen["compute"], chosen[name]}
        if pair == {"local", "kubernetes"}:
            raise StartupRefused(
                f"drivers.{name}.implementation",
                "local and Kubernetes Drivers do not mix: Compute, Secret and Configuration run in one place",
            )


def _openshell_backend(startup: Startup, path: str) -> BackendSelection:
    for backend in startup.backends:
        if backend.type == "openshell":
            return backend
    raise StartupRefused(path, "needs an `openshell` Backend that names it")
