"""The Drivers of one Installation, and what the selected SandboxDriver can do.

`installation` builds this once at startup; everybody else receives it. Optional abilities are looked up here, so that a pass reads a
field instead of asking an object what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from oce.contracts.sandbox import (
    AdmitsNetworkPolicy,
    AppliesNetworkPolicy,
    CarriesTransport,
    ConfiguresAgent,
    EnrollsHarness,
    EnsuresNamespace,
    Facet,
    HasHarnessHome,
    NamesNodePeers,
    ObservesHarness,
    ProvisionsHarness,
    ReadsSandboxLogs,
    RecommendsPolicy,
    SandboxDriver,
    ValidatesWorkspaceSetup,
)

if TYPE_CHECKING:
    from oce.contracts.compute import ComputeDriver
    from oce.contracts.credential_gateway import CredentialGatewayDriver
    from oce.contracts.iam import IamDriver
    from oce.contracts.stores import ConfigurationDriver, SecretDriver

DEFAULT_HARNESS_HOME = "/home/node"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAbilities:
    """Each optional ability of the selected SandboxDriver, or None."""

    driver: SandboxDriver
    harness_home: str
    configures: ConfiguresAgent | None
    workspace_setup: ValidatesWorkspaceSetup | None
    namespaces: EnsuresNamespace | None
    provisions: ProvisionsHarness | None
    node_peers: NamesNodePeers | None
    logs: ReadsSandboxLogs | None
    transport: CarriesTransport | None
    enrolls: EnrollsHarness | None
    observes: ObservesHarness | None
    policies: AdmitsNetworkPolicy | None
    live_policies: AppliesNetworkPolicy | None
    recommendations: RecommendsPolicy | None


_A = TypeVar("_A")


def _ability(driver: SandboxDriver, protocol: type[_A]) -> _A | None:
    return driver if isinstance(driver, protocol) else None


def abilities_of(driver: SandboxDriver) -> SandboxAbilities:
    """Inspect a SandboxDriver once.

    Raises ValueError for empty, repeated or unknown facets, and for a HOME that is no normalized absolute path (mission document 003).
    """
    facets = tuple(driver.facets)
    known = not set(facets) - set(Facet)
    if not facets or len(set(facets)) != len(facets) or not known:
        names = ", ".join(Facet)
        raise ValueError(f"a SandboxDriver declares at least one of {names}, each once")
    home = driver.harness_home if isinstance(driver, HasHarnessHome) else DEFAULT_HARNESS_HOME
    if not home.startswith("/") or {"", ".", ".."} & set(home.split("/")[1:]):
        raise ValueError("harness_home is a normalized absolute path")
    return SandboxAbilities(
        driver=driver,
        harness_home=home,
        configures=_ability(driver, ConfiguresAgent),  # type: ignore[type-abstract] # a Protocol used as its own run-time check
        workspace_setup=_ability(driver, ValidatesWorkspaceSetup),  # type: ignore[type-abstract] # as above
        namespaces=_ability(driver, EnsuresNamespace),  # type: ignore[type-abstract] # as above
        provisions=_ability(driver, ProvisionsHarness),  # type: ignore[type-abstract] # as above
        node_peers=_ability(driver, NamesNodePeers),  # type: ignore[type-abstract] # as above
        logs=_ability(driver, ReadsSandboxLogs),  # type: ignore[type-abstract] # as above
        transport=_ability(driver, CarriesTransport),  # type: ignore[type-abstract] # as above
        enrolls=_ability(driver, EnrollsHarness),  # type: ignore[type-abstract] # as above
        observes=_ability(driver, ObservesHarness),  # type: ignore[type-abstract] # as above
        policies=_ability(driver, AdmitsNetworkPolicy),  # type: ignore[type-abstract] # as above
        live_policies=_ability(driver, AppliesNetworkPolicy),  # type: ignore[type-abstract] # as above
        recommendations=_ability(driver, RecommendsPolicy),  # type: ignore[type-abstract] # as above
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """The composed Drivers. `sandbox` None means Compute runs the Harness itself (no local Compute does)."""

    compute: ComputeDriver
    sandbox: SandboxAbilities | None
    credential_gateway: CredentialGatewayDriver | None
    configuration: ConfigurationDriver
    secret: SecretDriver
    iam: IamDriver
