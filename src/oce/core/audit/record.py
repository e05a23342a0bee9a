"""Appending the event of a use case in the transaction of its change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from oce.core.audit import rules
from oce.store import audit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.core.platform import Actor, Platform
    from oce.store.database import Tx


async def mutation(
    tx: Tx,
    platform: Platform,
    actor: Actor,
    action: str,
    resource: tuple[str, str],
    namespace_id: str | None,
    *,
    outcome: Literal["success", "denied", "failure"] = "success",
    reason_code: str | None = None,
    details: Mapping[str, Any] | None = None,
    kind: Literal["mutation", "access"] = "mutation",
) -> None:
    """Append `openclaw.<action>` on (kind, id); when it cannot be written, the transaction fails."""
    await audit.append(
        tx,
        rules.event(
            installation_id=platform.installation_id,
            at=platform.clock.now(),
            actor_id=actor.principal_id,
            action=f"openclaw.{action}",
            resource=resource,
            namespace_id=namespace_id,
            outcome=outcome,
            request_id=actor.request_id,
            reason_code=reason_code,
            details=details,
            kind=kind,
        ),
    )
