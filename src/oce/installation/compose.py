"""Instantiate the Drivers that a startup YAML selects. The only place that does.

Composition opens no connection: a Driver connects when it is first used. What this release does not run is refused here by name,
never replaced by something else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oce.contracts.drivers import Drivers, abilities_of
from oce.contracts.refusals import ConfigurationRefused
from oce.core.access.native import NativeIam
from oce.core.platform import Settings as PlatformSettings
from oce.domain.clock import SystemClock
from oce.drivers.local.compute import LocalCompute
from oce.drivers.local.configuration import LocalConfigurationDriver
from oce.drivers.local.secrets import LocalSecretDriver
from oce.drivers.openshell.backend import parse_backend
from oce.drivers.openshell.credentials import OpenShellCredentialGateway, parse_gateway_settings
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import KubernetesPlace, Settings, parse_settings
from oce.drivers.openshell.wire import Gateway
from oce.installation.document import read_document
from oce.installation.errors import StartupRefused
from oce.installation.local import absolute, compute_settings
from oce.installation.rules import check_composition, implementation
from oce.installation.schema import Startup, closed, parse_startup

if TYPE_CHECKING:
    from pathlib import Path

    from oce.store.database import Database

_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+){1,3}([-+.][0-9A-Za-z.-]+)?")


def load(path: Path) -> Startup:
    """Read, parse and judge a startup YAML. Raises StartupRefused."""
    startup = parse_startup(read_document(path))
    check_composition(startup)
    return startup


def settings_of(startup: Startup) -> PlatformSettings:
    """Return what use cases read from the startup YAML. Raises StartupRefused."""
    backends = tuple((backend.id, backend.type) for backend in startup.backends)
    version = startup.drivers["compute"].configuration.get("codexVersion")
    if version is None:
        return PlatformSettings(backends=backends)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise StartupRefused(
            "drivers.compute.configuration.codexVersion", "must be a version such as 1.2.3"
        )
    return PlatformSettings(harness_versions={"codex": version}, backends=backends)


def compose(startup: Startup, database: Database) -> Drivers:
    """Return the Drivers. Raises StartupRefused with the path of what cannot be composed."""
    for capability, selection in startup.drivers.items():
        if selection.package is not None:
            raise StartupRefused(
                f"drivers.{capability}.package",
                "installed Driver packages are not loaded by this release",
            )
    if implementation("compute", startup.drivers["compute"]) == "kubernetes":
        raise StartupRefused(
            "drivers.compute.implementation",
            "Kubernetes Compute is not part of this release; select `local`",
        )
    try:
        return _compose_local(startup, database)
    except ConfigurationRefused as refused:
        detail = refused.details[0]
        raise StartupRefused(_dotted(detail.path), detail.note or detail.code) from refused


def _compose_local(startup: Startup, database: Database) -> Drivers:
    clock = SystemClock()
    settings, gateway = _openshell(startup)
    sandbox_selection = startup.drivers["sandbox"]
    credentials_selection = startup.drivers["credential_gateway"]
    sandbox = abilities_of(OpenShellSandbox(sandbox_selection.id, settings, gateway, clock))
    credentials = OpenShellCredentialGateway(
        credentials_selection.id,
        parse_gateway_settings(
            credentials_selection.configuration, path="/drivers/credential_gateway/configuration"
        ),
        gateway,
        sandbox_selection.id,
        clock=clock,
        sandbox_name_prefix=settings.name_prefix,
    )
    secret = _secret_driver(startup)
    compute = startup.drivers["compute"]
    return Drivers(
        compute=LocalCompute(
            compute.id,
            compute_settings(
                compute.configuration, "drivers.compute.configuration", startup.log_level
            ),
            sandbox=sandbox,
            credential_gateway=credentials,
            secret_driver=secret,
            clock=clock,
        ),
        sandbox=sandbox,
        credential_gateway=credentials,
        configuration=_configuration_driver(startup),
        secret=secret,
        iam=NativeIam(database),
    )


def _openshell(startup: Startup) -> tuple[Settings, Gateway]:
    settings = parse_settings(
        startup.drivers["sandbox"].configuration, path="/drivers/sandbox/configuration"
    )
    if isinstance(settings.place, KubernetesPlace):
        raise StartupRefused(
            "drivers.sandbox.configuration.kubernetes",
            "local Compute needs the `local` block of the OpenShell Sandbox",
        )
    backend = startup.backends[0]
    return settings, Gateway(
        parse_backend(dict(backend.configuration), dict(backend.drivers), path="/backend/0")
    )


def _secret_driver(startup: Startup) -> LocalSecretDriver:
    selection, path = startup.drivers["secret"], "drivers.secret.configuration"
    closed(
        selection.configuration, path, ("directory", "keyPath"), required=("directory", "keyPath")
    )
    return LocalSecretDriver(
        absolute(selection.configuration, "directory", path),
        absolute(selection.configuration, "keyPath", path),
        driver_id=selection.id,
    )


def _configuration_driver(startup: Startup) -> LocalConfigurationDriver:
    selection, path = startup.drivers["configuration"], "drivers.configuration.configuration"
    closed(selection.configuration, path, ("directory",), required=("directory",))
    return LocalConfigurationDriver(
        absolute(selection.configuration, "directory", path), driver_id=selection.id
    )


def _dotted(pointer: str) -> str:
    """Return a JSON Pointer the way startup errors name keys."""
    return pointer.strip("/").replace("/", ".")
