"""Queries on Configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.contracts.refusals import NotVisible
from oce.core import scope
from oce.core.access import guard
from oce.core.errors import Conflict, Dependency
from oce.core.paging import Page, PageRequest, collect
from oce.domain.resources import Configuration
from oce.store import configurations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.core.paging import Key
    from oce.core.platform import Actor, Platform
    from oce.domain.resources import Namespace
    from oce.store.configurations import ConfigurationRecord


async def load(platform: Platform, owner: Namespace, record: ConfigurationRecord) -> Configuration:
    """Return a record with its document. Raises Conflict while its first generation is not stored, Dependency."""
    physical = platform.drivers.compute.physical_namespace(owner)
    try:
        values = await platform.drivers.configuration.read(physical, record.id, record.generation)
    except NotVisible as error:
        if record.state == "ready":
            raise Dependency(f"The document of {record.id} is missing.") from error
        raise Conflict(
            f"The document of {record.id} was never stored completely; delete the Configuration."
        ) from error
    except Exception as error:
        raise Dependency(f"The document of {record.id} could not be read.") from error
    return Configuration(
        id=record.id,
        namespace_id=record.namespace_id,
        kind=record.kind,
        generation=record.generation,
        values=values,
        secret_bindings=record.secret_bindings,
        created_at=record.created_at,
        name=record.name,
    )


async def get(
    platform: Platform, actor: Actor, namespace: str, configuration: str
) -> Configuration:
    """Return a Configuration by id or name, with its document. Raises Forbidden, NotFound, Dependency."""
    owner, record = await scope.resource(
        platform, actor, scope.CONFIGURATIONS, namespace, configuration, action="read"
    )
    return await load(platform, owner, record)


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[Configuration]:
    """Return the Configurations that the actor may read, with their documents, oldest first.

    One whose first generation was never stored, or that is being deleted, has no document: `values` is None then.
    """
    owner = await scope.listed(platform, actor, namespace)
    if owner is None:
        return Page(())

    async def fetch(after: Key, count: int) -> Sequence[ConfigurationRecord]:
        async with platform.db.read() as reader:
            return await configurations.page(reader, owner.id, after, count)

    async def visible(batch: Sequence[ConfigurationRecord]) -> Sequence[bool]:
        return await guard.allowed_each(
            platform, actor, "read", "configuration", [(one.id, owner.id) for one in batch]
        )

    found = await collect(
        f"configurations:{owner.id}",
        page,
        fetch,
        lambda one: (one.created_at.isoformat(), one.id),
        visible,
    )
    loaded = [
        await load(platform, owner, one) if one.state == "ready" else _without_document(one)
        for one in found.items
    ]
    return Page(tuple(loaded), found.next_cursor)


def _without_document(record: ConfigurationRecord) -> Configuration:
    return Configuration(
        id=record.id,
        namespace_id=record.namespace_id,
        kind=record.kind,
        generation=record.generation,
        values=None,
        secret_bindings=record.secret_bindings,
        created_at=record.created_at,
        name=record.name,
    )
