"""The effects of provisioning: profile, provider, Sandbox; each create, adopt or refuse. Repeatable at any point.

A create that failed or timed out may still complete remotely, so nothing is deleted here: the next pass reads first, and the
revision's cleanup finds everything by name and label. The Sandbox's identity is decided before it is sent: the revision's UUID,
then the fifteen derived ids, and only a refused *replay* moves on to the next (mission document 000).
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import DriverRefusal, OwnershipConflict, RevisionUnsupported
from oce.domain import names
from oce.domain.failures import Tempo
from oce.domain.secret import SecretText
from oce.drivers.openshell import adoption, node_setup, profiles
from oce.drivers.openshell.absence import read_proved
from oce.drivers.openshell.failures import Category, GatewayFailure
from oce.drivers.openshell.observation import require_live
from oce.drivers.openshell.transport import service_url

if TYPE_CHECKING:
    from oce.drivers.openshell.node_setup import NodeSetup
    from oce.drivers.openshell.records import CreatedSandbox, ProviderRecord, SandboxRecord
    from oce.drivers.openshell.rendering import Rendering
    from oce.drivers.openshell.wire import Gateway

OLDEST: Final = (0, 1, 3)
"""First gateway with restart policy, bearer passthrough and profile files (reference/openshell-gateway.md §0)."""
_SETUP_KEY: Final = "node_setup_json"
_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def require_version(version: str) -> None:
    """Refuse a gateway that would drop what we ask for. Raises RevisionUnsupported(SANDBOX_GATEWAY_TOO_OLD)."""
    match = _VERSION.match(version)
    if match is None or tuple(map(int, match.groups())) < OLDEST:
        _too_old("restart policy, bearer passthrough and profile files")


def _too_old(feature: str) -> None:
    raise RevisionUnsupported(
        "SANDBOX_GATEWAY_TOO_OLD", f"the gateway lacks: {feature}; run version 0.1.3 or newer"
    )


async def ensure_profile(gateway: Gateway, workspace: str, profile: profiles.Profile) -> None:
    """Import or update a shared profile; a race that somebody else won with the same digest is fine."""
    found = await gateway.get_profile(workspace, profile.id)
    if found is not None and not profiles.is_managed(found.annotations):
        raise OwnershipConflict("profile", f"annotations.{profile.annotation}")
    if found is not None and found.annotations.get(profile.annotation) == profile.mark:
        return
    try:
        if found is None:
            await gateway.import_profile(workspace, profile.document, profiles.SOURCE)
        else:
            await gateway.update_profile(
                workspace, profile.document, profiles.SOURCE, found.resource_version
            )
    except GatewayFailure as failure:
        if failure.category in {Category.UNAVAILABLE, Category.UNAUTHENTICATED, Category.FORBIDDEN}:
            raise
        again = await gateway.get_profile(workspace, profile.id)
        if again is None or again.annotations.get(profile.annotation) != profile.mark:
            raise


async def ensure_runtime_provider(
    gateway: Gateway, wanted: Rendering, offered: NodeSetup | None, now_ms: int
) -> NodeSetup | None:
    """Create, adopt or renew the revision's runtime provider; returns the node setup that it holds.

    Identity and config are exactly ours or a conflict; only an expired node setup may be replaced by its renewal, under the provider's
    resource version, and afterwards the whole config is compared again.
    """
    found = await gateway.get_provider(wanted.workspace, wanted.provider)
    if found is None:
        found = await _create_provider(gateway, wanted, node_setup.first(offered, now_ms))
    field = adoption.provider_difference(
        wanted.provider, wanted.profile.id, wanted.provider_labels, found
    ) or _config_difference(wanted, found)
    if field is not None:
        raise OwnershipConflict("provider", field)
    held = node_setup.held_by(found.config.get(_SETUP_KEY, ""))
    setup = node_setup.chosen(held, offered, now_ms)
    if setup is not held and setup is not None and held is not None:
        await _renew(gateway, wanted, found, setup)
    return setup


async def _renew(
    gateway: Gateway, wanted: Rendering, found: ProviderRecord, setup: NodeSetup
) -> None:
    renewed = await gateway.update_config(
        wanted.workspace,
        wanted.provider,
        {_SETUP_KEY: setup.document},
        expected_version=found.meta.resource_version,
    )
    held = node_setup.held_by(renewed.config.get(_SETUP_KEY, ""))
    if held is None or held.document != setup.document:
        raise OwnershipConflict("provider", f"config.{_SETUP_KEY}")
    field = _config_difference(wanted, renewed)
    if field is not None:
        raise OwnershipConflict("provider", field)


def _config_difference(wanted: Rendering, found: ProviderRecord) -> str | None:
    """Return where a config differs apart from the node setup, which has rules of its own."""
    own = {key: value for key, value in wanted.provider_config.items() if key != _SETUP_KEY}
    theirs = {key: value for key, value in found.config.items() if key != _SETUP_KEY}
    if _SETUP_KEY not in found.config:
        return f"config.{_SETUP_KEY}"
    return adoption.first_difference(own, theirs, "config")


async def _create_provider(
    gateway: Gateway, wanted: Rendering, setup: NodeSetup | None
) -> ProviderRecord:
    try:
        return await gateway.create_provider(
            wanted.workspace,
            name=wanted.provider,
            profile=wanted.profile.id,
            labels=wanted.provider_labels,
            config={key: SecretText(value) for key, value in wanted.provider_config.items()}
            | ({} if setup is None else {_SETUP_KEY: setup.document}),
            credentials={},
        )
    except GatewayFailure as failure:
        if failure.category is not Category.EXISTS:
            raise
        found = await gateway.get_provider(wanted.workspace, wanted.provider)
        if found is None:
            raise
        return found


async def ensure_sandbox(gateway: Gateway, wanted: Rendering) -> tuple[SandboxRecord, bool]:
    """Create or adopt the Sandbox; returns its record and whether this pass created it.

    Raises OwnershipConflict, RevisionUnsupported, DriverRefusal, GatewayFailure.
    """
    found = await gateway.get_sandbox(wanted.workspace, wanted.sandbox)
    if found is None:
        result = await _create(gateway, wanted)
        if not isinstance(result, tuple):
            _check_created(gateway, wanted, result)
            await _check_service(gateway, wanted)
            return result.sandbox, True
        found = result[0]
    _adopt(wanted, found)
    await _check_service(gateway, wanted)
    return found, False


async def _create(gateway: Gateway, wanted: Rendering) -> CreatedSandbox | tuple[SandboxRecord]:
    """Create under the next usable request id, or return the Sandbox that turned up meanwhile."""
    revision_id = wanted.annotations["openclaw.dev/revision-id"]
    for attempt in range(names.REQUEST_IDS):
        request = wanted.create_request(names.request_id(revision_id, attempt))
        try:
            return await gateway.create_sandbox(wanted.workspace, request)
        except GatewayFailure as failure:
            exists = failure.category is Category.EXISTS
            if not exists and not failure.replay_refused:
                raise
            found = await gateway.get_sandbox(wanted.workspace, wanted.sandbox)
            if found is not None:
                return (found,)
            if exists:
                raise
    raise DriverRefusal(
        "DEPENDENCY_UNAVAILABLE",
        Tempo.RETRY,
        "CreateSandbox: every request id of this revision is spent; check that the gateway can read its key material, "
        "or deploy again",
    )


def _check_created(gateway: Gateway, wanted: Rendering, created: CreatedSandbox) -> None:
    sandbox = created.sandbox
    if sandbox.spec.get("restart_policy") not in adoption.ALWAYS:
        _too_old("restart policy")
    _adopt(wanted, sandbox)
    if wanted.exposed:
        service_url(gateway.backend, created.service_urls.get("", ""))
    elif created.service_urls:
        raise OwnershipConflict("service", "presence")


def _adopt(wanted: Rendering, found: SandboxRecord) -> None:
    owner = adoption.ownership_difference(
        wanted.workspace, wanted.sandbox, wanted.annotations, found
    )
    if owner is not None:
        raise OwnershipConflict("Sandbox", owner)
    require_live(found)
    field = adoption.sandbox_difference(wanted, found)
    if field is not None:
        raise OwnershipConflict("Sandbox", field)


async def _check_service(gateway: Gateway, wanted: Rendering) -> None:
    """Require the exposure exactly as asked for; a missing one is never repaired by ExposeService.

    An enrolled native worker needs none; one that is still there is withdrawn by its own member.
    """
    if not wanted.exposed:
        return
    read = partial(gateway.get_service, wanted.workspace, wanted.sandbox)
    found = await read_proved(gateway, wanted.workspace, read)
    if found is None:
        raise OwnershipConflict("service", "presence")
    if found.authorization_mode in {0, "SERVICE_AUTHORIZATION_MODE_UNSPECIFIED"}:
        _too_old("bearer passthrough")
    field = adoption.service_difference(wanted, found)
    if field is not None:
        raise OwnershipConflict("service", field)
