"""The bundled IAM Driver: decides over the policy in our own database, from one snapshot per decision. Nothing is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.core.access.rules import DRIVER_ID, decide
from oce.store import iam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.contracts.iam import AccessDecision, AccessRequest
    from oce.domain.resources import Identity
    from oce.store.database import Database


class NativeIam:
    """IamDriver over `oce.store.iam`. A database outage propagates as StoreUnavailable, never as an allow."""

    id = DRIVER_ID
    implementation = "oce.native-iam"

    def __init__(self, db: Database) -> None:
        self._db = db

    async def lookup_identity(self, principal_id: str) -> Identity | None:
        """Return the identity with that id."""
        async with self._db.read() as reader:
            return await iam.identity(reader, principal_id)

    async def authorize(self, request: AccessRequest) -> AccessDecision:
        """Decide one request."""
        return (await self.authorize_many((request,)))[0]

    async def authorize_many(self, requests: Sequence[AccessRequest]) -> Sequence[AccessDecision]:
        """Decide several requests from one snapshot for each principal they name."""
        policies: dict[str, iam.PolicyOf | None] = {}
        async with self._db.read() as reader:
            for principal_id in {request.principal_id for request in requests}:
                policies[principal_id] = await iam.policy_of(reader, principal_id)
        return [decide(policies[request.principal_id], request) for request in requests]
