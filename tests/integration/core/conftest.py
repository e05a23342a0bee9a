"""A bootstrapped platform over real PostgreSQL with in-memory Drivers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from oce.core.access import commands as access
from oce.core.access import queries as access_queries
from oce.core.access.native import NativeIam
from oce.core.agents import commands as agents
from oce.core.configurations import commands as configurations
from oce.core.credentials import commands as credentials
from oce.core.installation.commands import Bootstrapped, bootstrap
from oce.core.platform import Actor, Platform
from oce.core.secrets import commands as secrets
from oce.domain.resources import HarnessAuth, NamespaceStatus
from oce.domain.secret import SecretText
from oce.store import namespaces
from oce.testing.fakes import FakeDrivers, ManualClock

VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-5.1-codex"}}}}


@dataclass
class World:
    """A platform, its administrator and short cuts to the usual resources in Namespace `default`."""

    platform: Platform
    drivers: FakeDrivers
    clock: ManualClock
    made: Bootstrapped
    admin: Actor
    namespace: str

    async def ready(self, namespace_id: str) -> None:
        async with self.platform.db.transact() as tx:
            await namespaces.set_status(
                tx, namespace_id, NamespaceStatus.READY, expected=NamespaceStatus.PROVISIONING
            )

    async def secret(self, name="key", value="invented-value"):
        return await secrets.create(
            self.platform, self.admin, "default", name=name, value=SecretText(value)
        )

    async def source(self, name="openai", key="key", **config):
        draft = credentials.SourceDraft(
            name=name, type="openai", config=config, secrets={"api_key": key}
        )
        return (await credentials.create(self.platform, self.admin, "default", draft)).source

    async def configuration(self, values=VALUES, **options):
        draft = configurations.ConfigurationDraft(values=values, **options)
        return await configurations.create(self.platform, self.admin, "default", draft)

    async def agent(self, name="coder", actor=None):
        """A deployable Agent with its Secret, source and Configuration."""
        await self.secret(f"{name}-key")
        source = await self.source(f"{name}-source", f"{name}-key")
        configuration = await self.configuration()
        draft = agents.AgentDraft(
            name=name,
            configuration=configuration.id,
            harness_auth=HarnessAuth(method="credential_source", source_id=source.id),
            credential_sources=(source.id,),
        )
        return await agents.create(self.platform, actor or self.admin, "default", draft)

    async def person(self, role, namespace="default", scope="default"):
        """An Actor whose principal holds one built-in role in `scope` (None: the Installation)."""
        principal = await access.create_service_principal(self.platform, self.admin, namespace)
        if role is not None:
            await access.create_binding(
                self.platform,
                self.admin,
                scope,
                access.BindingDraft(subject_id=principal.id, role_id=f"role_{role}"),
            )
        return Actor(principal_id=principal.id, request_id="req_test")

    async def work_of(self, agent):
        return await self.rows(
            "SELECT * FROM occ.controller_work WHERE agent_id = %(id)s ORDER BY created_at",
            id=agent.id,
        )

    async def rows(self, query, **params):
        async with self.platform.db.read() as reader:
            return await reader.all(query, **params)


@pytest.fixture
async def world(db) -> World:
    clock = ManualClock()
    made = await bootstrap(db, clock, name="test")
    drivers = FakeDrivers(NativeIam(db))
    platform = Platform(
        db=db, drivers=drivers.compose(), clock=clock, installation_id=made.installation.id
    )
    admin = await access_queries.authenticate(platform, made.key_text, request_id="req_admin")
    built = World(platform, drivers, clock, made, admin, made.namespace.id)
    await built.ready(made.namespace.id)
    return built
