"""Queries on credential sources."""

from __future__ import annotations

from collections.abc import Sequence

from oce.contracts.credential_gateway import SourceType
from oce.core.credentials.commands import SourceView
from oce.core.paging import Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.domain.resources import CredentialSource


async def get(platform: Platform, actor: Actor, namespace: str, source: str) -> SourceView:
    """Return a source by id or name with the gateway's live view."""
    raise NotImplementedError


async def list_page(
    platform: Platform, actor: Actor, namespace: str, page: PageRequest
) -> Page[CredentialSource]:
    """Return the sources that the actor may read."""
    raise NotImplementedError


def source_types(platform: Platform) -> Sequence[SourceType]:
    """Return the catalogue of the selected gateway. Raises Conflict CREDENTIAL_GATEWAY_NOT_CONFIGURED."""
    raise NotImplementedError
