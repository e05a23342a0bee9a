"""What an Agent's draft names: found as ids, asked for permission, checked, and held while it is stored.

References are looked up first and refused later, so that nobody learns from a missing name what a permission would have hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.contracts.iam import AccessRequest
from oce.contracts.refusals import Detail
from oce.core import checks, scope
from oce.core.access import guard
from oce.core.agents import rules
from oce.core.errors import Conflict, Dependency, NotFound
from oce.domain.resources import SourceState
from oce.store import configurations, credential_sources, secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Agent, HarnessAuth, Namespace
    from oce.store.configurations import ConfigurationRecord
    from oce.store.database import Reader, Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """References of a draft as ids; what does not exist keeps its text, and is refused after the permission was asked for."""

    configuration: ConfigurationRecord | None
    configuration_ref: str
    harness_auth: HarnessAuth | None
    credential_sources: tuple[str, ...]
    problems: tuple[Detail, ...]


async def resolve(
    reader: Reader,
    owner: Namespace,
    configuration_ref: str,
    auth: HarnessAuth | None,
    sources: tuple[str, ...],
) -> Resolved:
    """Turn names into ids; what does not exist is a problem of the result."""
    problems: list[Detail] = []
    configuration = await scope.find_in(reader, scope.CONFIGURATIONS, owner.id, configuration_ref)
    if configuration is None:
        problems.append(Detail("/configurationId", "INVALID_VALUE", "no such Configuration here"))
    ids: list[str] = []
    for index, ref in enumerate(sources):
        source = await scope.find_in(reader, scope.SOURCES, owner.id, ref)
        if source is None:
            problems.append(
                Detail(f"/credentialSources/{index}", "INVALID_VALUE", "no such source here")
            )
        ids.append(source.id if source else ref)
    if auth is not None and auth.source_id is not None:
        by_source = auth.method == rules.SOURCE_METHOD
        named = (
            await scope.find_in(reader, scope.SOURCES, owner.id, auth.source_id)
            if by_source
            else await scope.find_in(reader, scope.SECRETS, owner.id, auth.source_id)
        )
        if named is None:
            problems.append(
                Detail(
                    "/harnessAuth/sourceId" if by_source else "/harnessAuth/source",
                    "INVALID_VALUE",
                    "no such source here" if by_source else "no such Secret here",
                )
            )
        else:
            auth = replace(auth, source_id=named.id)
    return Resolved(
        configuration=configuration,
        configuration_ref=configuration_ref,
        harness_auth=auth,
        credential_sources=tuple(ids),
        problems=tuple(problems),
    )


def checked(mode: str, resolved: Resolved) -> ConfigurationRecord:
    """Return the draft's Configuration when everything about the draft is right. Raises InvalidRequest, NotFound."""
    checks.refuse(resolved.problems)
    checks.refuse(rules.draft_problems(mode, resolved.harness_auth, resolved.credential_sources))
    if resolved.configuration is None:
        raise NotFound
    return resolved.configuration


async def require_references(
    platform: Platform,
    actor: Actor,
    owner: Namespace,
    resolved: Resolved,
    current: Iterable[tuple[str, str]],
) -> None:
    """Require `configuration:read`, and `operate` on everything the draft names or named (reference/control-plane.md §4.4)."""
    configuration = resolved.configuration
    wanted = set(current)
    wanted |= {("credential_source", source_id) for source_id in resolved.credential_sources}
    if configuration is not None:
        wanted |= {("secret", secret_id) for secret_id in configuration.secret_bindings.values()}
    auth = resolved.harness_auth
    if auth is not None and auth.source_id is not None:
        by_source = auth.method == rules.SOURCE_METHOD
        wanted.add(("credential_source" if by_source else "secret", auth.source_id))

    def ask(action: str, kind: str, resource_id: str) -> AccessRequest:
        return AccessRequest(
            principal_id=actor.principal_id,
            action=action,
            resource_kind=kind,
            resource_id=resource_id,
            namespace_id=owner.id,
        )

    configuration_id = configuration.id if configuration else resolved.configuration_ref
    await guard.require_all(
        platform,
        actor,
        [
            ask("read", "configuration", configuration_id),
            *(ask("operate", kind, resource_id) for kind, resource_id in sorted(wanted)),
        ],
    )


def wanted(agent: Agent, held: ConfigurationRecord) -> frozenset[tuple[str, str]]:
    """Return the (kind, id) that the draft and its Configuration need to `operate`."""
    return rules.references(agent, tuple(held.secret_bindings.values()))


async def hold(tx: Tx, platform: Platform, agent: Agent) -> ConfigurationRecord:
    """Keep what the draft names from being deleted, and refuse what cannot be named any more."""
    configuration = await configurations.hold(tx, agent.namespace_id, agent.configuration_id)
    if configuration is None or configuration.state == "deleting":
        raise Conflict("The Configuration is being deleted.")
    gateway = platform.drivers.credential_gateway
    for kind, resource_id in sorted(wanted(agent, configuration)):
        if kind == "secret":
            secret = await secrets.hold(tx, agent.namespace_id, resource_id)
            if secret is None or secret.state != "ready":
                raise Conflict(f"The Secret {resource_id} is not usable.")
            continue
        source = await credential_sources.hold(tx, agent.namespace_id, resource_id)
        if source is None or source.state is not SourceState.READY:
            raise Conflict(f"The credential source {resource_id} is not ready.")
        if gateway is None:
            raise Conflict(code="CREDENTIAL_GATEWAY_NOT_CONFIGURED")
        if source.driver_id != gateway.id:
            raise Dependency(
                "The source is registered with another Credential Gateway. Select it again in the startup YAML."
            )
    return configuration


def check_initial_files(platform: Platform, execution_mode: str, files: Mapping[str, str]) -> None:
    """Refuse files that no selected Driver would ever bring into a workspace (mission document 003)."""
    if not files:
        return
    checks.refuse(rules.initial_file_problems(files))
    sandbox = platform.drivers.sandbox
    if execution_mode != "dedicated" or sandbox is None or sandbox.workspace_setup is None:
        raise Conflict(code="WORKSPACE_SETUP_UNSUPPORTED")
