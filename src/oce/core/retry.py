"""Who may repeat a failed teardown: the one who began it, or anybody permitted once that one has lost the permission."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oce.core.access import guard
from oce.core.errors import Forbidden

if TYPE_CHECKING:
    from oce.contracts.iam import AccessRequest
    from oce.core.platform import Actor, Platform
    from oce.store.work import Work


async def takeover_of(
    platform: Platform, actor: Actor, previous: Work | None, request: AccessRequest
) -> str | None:
    """Return the id of the actor whose failed teardown is taken over, or None when there is nothing to take over.

    Raises Forbidden (recorded) while the first actor still holds the permission (reference/control-plane.md §5.2).
    """
    if (
        previous is None
        or previous.state != "failed_permanent"
        or previous.actor_id == actor.principal_id
    ):
        return None
    first = await platform.drivers.iam.authorize(replace(request, principal_id=previous.actor_id))
    if not first.allowed:
        return previous.actor_id
    await guard.record_denial(
        platform,
        actor,
        request,
        replace(first, allowed=False, reason="deletion is owned"),
        reason_code="DELETION_RETRY_NOT_OWNED",
    )
    raise Forbidden("Somebody else began this deletion and may still repeat it.")
