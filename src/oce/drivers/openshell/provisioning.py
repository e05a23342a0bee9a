"""The effects of provisioning: profile, provider, Sandbox; each create, adopt or refuse. Repeatable at any point.

A create that failed or timed out may still complete remotely, so nothing is deleted here: the next pass reads first, and the
revision's cleanup finds everything by name and label. The Sandbox's identity is decided before it is sent: the revision's UUID,
then the fifteen derived ids, and only a refused *replay* moves on to the next (mission document 000).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import DriverRefusal, OwnershipConflict, RevisionUnsupported
from oce.domain import names
from oce.domain.failures import Tempo
from oce.drivers.openshell import adoption, profiles
from oce.drivers.openshell.failures import Category, GatewayFailure
from oce.drivers.openshell.observation import require_live
from oce.drivers.openshell.transport import service_url

if TYPE_CHECKING:
    from oce.drivers.openshell.records import CreatedSandbox, ProviderRecord, SandboxRecord
    from oce.drivers.openshell.rendering import Rendering
    from oce.drivers.openshell.wire import Gateway

OLDEST: Final = (0, 1, 3)
"""First gateway with restart policy, bearer passthrough and profile files (reference/openshell-gateway.md §0)."""
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


async def ensure_runtime_provider(gateway: Gateway, wanted: Rendering) -> None:
    """Create or adopt the revision's runtime provider; identity and config exactly ours, or a conflict."""
    found = await gateway.get_provider(wanted.workspace, wanted.provider)
    if found is None:
        found = await _create_provider(gateway, wanted)
    field = adoption.provider_difference(
        wanted.provider, wanted.profile.id, wanted.provider_labels, found
    ) or adoption.first_difference(dict(wanted.provider_config), dict(found.config), "config")
    if field is not None:
        raise OwnershipConflict("provider", field)


async def _create_provider(gateway: Gateway, wanted: Rendering) -> ProviderRecord:
    try:
        return await gateway.create_provider(
            wanted.workspace,
            name=wanted.provider,
            profile=wanted.profile.id,
            labels=wanted.provider_labels,
            config=wanted.provider_config,
            credentials={},
        )
    except GatewayFailure as failure:
        if failure.category is not Category.EXISTS:
            raise
        found = await gateway.get_provider(wanted.workspace, wanted.provider)
        if found is None:
            raise
        return found


async def ensure_sandbox(gateway: Gateway, wanted: Rendering) -> bool:
    """Create or adopt the Sandbox; returns whether this pass created it.

    Raises OwnershipConflict, RevisionUnsupported, DriverRefusal, GatewayFailure.
    """
    found = await gateway.get_sandbox(wanted.workspace, wanted.sandbox)
    if found is None:
        result = await _create(gateway, wanted)
        if not isinstance(result, tuple):
            _check_created(gateway, wanted, result)
            await _check_service(gateway, wanted)
            return True
        found = result[0]
    _adopt(wanted, found)
    await _check_service(gateway, wanted)
    return False


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
    service_url(gateway.backend, created.service_urls.get("", ""))


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
    """Require the exposure exactly as asked for; a missing one is never repaired by ExposeService."""
    found = await gateway.get_service(wanted.workspace, wanted.sandbox)
    if found is None:
        raise OwnershipConflict("service", "presence")
    if found.authorization_mode in {0, "SERVICE_AUTHORIZATION_MODE_UNSPECIFIED"}:
        _too_old("bearer passthrough")
    field = adoption.service_difference(wanted, found)
    if field is not None:
        raise OwnershipConflict("service", field)
