"""Queries on credential sources: OCC's record, and the gateway's live view where one source is asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oce.contracts.credential_gateway import SourceStatus
from oce.core import scope
from oce.core.access import guard
from oce.core.credentials.commands import SourceView, gateway_of
from oce.core.paging import Page, PageRequest, collect
from oce.store import credential_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.credential_gateway import SourceType
    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import CredentialSource

_LOOK_SECONDS: Final = 5.0


async def get(platform: Platform, actor: Actor, namespace: str, source: str) -> SourceView:
    """Return a source by id or name; `status` is what the gateway says now, None when it does not answer. Raises Forbidden, NotFound."""
    owner, found = await scope.resource(
        platform, actor, scope.SOURCES, namespace, source, action="read"
    )
    gateway = platform.drivers.credential_gateway
    if gateway is None or gateway.id != found.driver_id:
        return SourceView(
            found, SourceStatus(state="failed", reason="registered with another gateway")
        )
    context = platform.drivers.compute.namespace_context(owner)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            status = await gateway.source_status(context, found)
    except Exception:  # noqa: BLE001 - a Driver's failure to answer is shown as "not observed", never as a state
        return SourceView(found, None)
    return SourceView(found, status)


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[CredentialSource]:
    """Return the sources that the actor may read, oldest first. Raises NotFound, InvalidRequest (cursor)."""
    owner = await scope.listed(platform, actor, namespace)
    if owner is None:
        return Page(())

    async def fetch(after: Key, count: int) -> Sequence[CredentialSource]:
        async with platform.db.read() as reader:
            return await credential_sources.page(reader, owner.id, after, count)

    async def visible(batch: Sequence[CredentialSource]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "credential_source", [(one.id, owner.id) for one in batch]
        )

    return await collect(
        f"credential_sources:{owner.id}",
        page,
        fetch,
        lambda one: (one.created_at.isoformat(), one.id),
        visible,
    )


def source_types(platform: Platform) -> Sequence[SourceType]:
    """Return the catalogue of the selected gateway. Raises Conflict CREDENTIAL_GATEWAY_NOT_CONFIGURED."""
    return gateway_of(platform).source_types()
