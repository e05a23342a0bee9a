"""What holds whatever happens: keys, names, pages, audit, lost answers, a full disk, races."""

from __future__ import annotations

import asyncio
from functools import partial

import psycopg
import pytest

from oce.core.access import commands as access_commands
from oce.core.agents import commands as agents
from oce.core.agents import queries as agent_queries
from oce.core.audit import queries as audit
from oce.core.errors import (
    Conflict,
    Dependency,
    InvalidRequest,
    PreconditionFailed,
    public,
)
from oce.core.namespaces import commands as namespaces
from oce.core.paging import PageRequest
from oce.core.secrets import commands as secrets
from oce.core.secrets import queries as secret_queries
from oce.domain.secret import SecretText
from oce.store import audit as audit_rows
from oce.store.errors import StorageFull, StoreUnavailable, UnknownOutcome

VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-5.1-codex"}}}}

pytestmark = pytest.mark.postgres


async def test_idempotency_keys_make_one_resource(world):
    platform, admin = world.platform, world.admin
    made = await asyncio.gather(
        *(namespaces.create(platform, admin, name="once", idempotency_key="k1") for _ in range(4))
    )
    assert len({one.id for one in made}) == 1
    with pytest.raises(Conflict) as reused:
        await namespaces.create(platform, admin, name="twice", idempotency_key="k1")
    assert reused.value.code == "IDEMPOTENCY_KEY_REUSED"
    with pytest.raises(InvalidRequest):
        await namespaces.create(platform, admin, name="twice", idempotency_key="a b")
    agent = await world.agent()
    revisions_made = await asyncio.gather(
        *(
            agents.deploy(platform, admin, "default", "coder", idempotency_key="d1")
            for _ in range(4)
        )
    )
    assert {one.revision for one in revisions_made} == {1}
    assert len(await world.work_of(agent)) == 1
    other = await world.person("administrator", namespace=None, scope=None)
    assert (
        await agents.deploy(platform, other, "default", "coder", idempotency_key="d1")
    ).revision == 2
    world.drivers.secrets.fail["create"] = RuntimeError("killed")
    create = partial(
        secrets.create,
        platform,
        admin,
        "default",
        name="s",
        value=SecretText("v"),
        idempotency_key="s1",
    )
    with pytest.raises(Dependency):
        await create()
    world.drivers.secrets.fail.clear()
    assert (await create()).state == "ready"


async def test_one_name_goes_to_one_agent(world):
    configuration = await world.configuration()
    results = await asyncio.gather(
        *(
            agents.create(
                world.platform, world.admin, "default",
                agents.AgentDraft(name="same", configuration=configuration.id),
            )
            for _ in range(5)
        ),
        return_exceptions=True,
    )  # fmt: skip
    assert sorted(type(one).__name__ for one in results) == ["Agent", *["Conflict"] * 4]
    assert (
        len(await world.rows("SELECT 1 AS one FROM occ.iam_identities WHERE agent_id IS NOT NULL"))
        == 1
    )


async def test_lists_are_walked_page_by_page(world):
    platform, admin = world.platform, world.admin
    made = [(await world.secret(f"s{number}")).id for number in range(7)]
    reader = await world.person(None)
    for secret_id in made[1::2]:
        await access_commands.create_binding(
            platform, admin, "default",
            access_commands.BindingDraft(
                subject_id=reader.principal_id, role_id="role_viewer",
                resource_kind="secret", resource_id=secret_id,
            ),
        )  # fmt: skip

    async def walk(actor, limit):
        seen, cursor = [], None
        while True:
            page = await secret_queries.list_page(
                platform, actor, "default", PageRequest(limit, cursor)
            )
            assert len(page.items) <= limit
            seen += [one.id for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return seen

    for limit in (1, 2, 3, 7, 50):
        assert await walk(admin, limit) == made
        assert await walk(reader, limit) == made[1::2]
    for bad in ("?", "e30", "W10"):
        with pytest.raises(InvalidRequest):
            await secret_queries.list_page(platform, admin, "default", PageRequest(5, bad))
    page = await audit.list_page(platform, admin, audit.AuditFilter(), PageRequest(3))
    rest = await audit.list_page(
        platform, admin, audit.AuditFilter(), PageRequest(200, page.next_cursor)
    )
    total = await world.rows("SELECT count(*) AS n FROM occ.audit_events")
    assert len(page.items) + len(rest.items) == total[0]["n"]
    filtered = await audit.list_page(
        platform, admin, audit.AuditFilter(resource_id=made[0], namespace="default"), PageRequest()
    )
    assert {one.resource_id for one in filtered.items} == {made[0]}


async def test_no_audit_no_change(world, monkeypatch):
    async def broken(*_):
        raise StoreUnavailable("no audit")

    monkeypatch.setattr(audit_rows, "append", broken)
    with pytest.raises(StoreUnavailable):
        await namespaces.create(world.platform, world.admin, name="silent")
    with pytest.raises(StoreUnavailable):
        await world.secret()
    monkeypatch.undo()
    assert await world.rows("SELECT 1 AS one FROM occ.namespaces WHERE name = 'silent'") == []
    assert await world.rows("SELECT 1 AS one FROM occ.secrets") == []
    assert world.drivers.secrets.calls == []


async def test_a_full_disk_while_a_revision_is_written_loses_nothing(world, test_database):
    """The server itself reports the error: a trigger raises the SQLSTATE of a full device."""
    agent = await world.agent()
    with psycopg.connect(test_database.superuser_url, autocommit=True) as server:
        server.execute(
            "CREATE FUNCTION occ.disk_full() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'could not extend file' USING ERRCODE = '53100'; END $$;"
            "CREATE TRIGGER disk_full BEFORE INSERT ON occ.agent_revisions EXECUTE FUNCTION occ.disk_full()"
        )
        with pytest.raises(StorageFull) as full:
            await agents.deploy(
                world.platform, world.admin, "default", "coder", idempotency_key="k"
            )
        server.execute("DROP TRIGGER disk_full ON occ.agent_revisions")
    assert public(full.value).status == 503
    assert (await agent_queries.get(world.platform, world.admin, "default", "coder")) == agent
    assert not await world.work_of(agent)
    revision = await agents.deploy(
        world.platform, world.admin, "default", "coder", idempotency_key="k"
    )
    assert revision.revision == 1


async def test_a_deploy_whose_commit_is_not_answered_is_found_again_by_its_key(world, monkeypatch):
    agent = await world.agent()
    real = psycopg.AsyncConnection.execute

    async def lost(self, query, *args, **options):
        cursor = await real(self, query, *args, **options)
        if query == b"COMMIT":
            raise psycopg.OperationalError("consuming input failed")
        return cursor

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", lost)
    with pytest.raises(UnknownOutcome) as unknown:
        await agents.deploy(world.platform, world.admin, "default", "coder", idempotency_key="k")
    monkeypatch.undo()
    assert public(unknown.value).code == "UNKNOWN_OUTCOME"
    again = await agents.deploy(
        world.platform, world.admin, "default", "coder", idempotency_key="k"
    )
    assert again.revision == 1
    assert len(await world.work_of(agent)) == 1


async def test_concurrent_drafts_keep_one_winner_and_one_numbering(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()
    change = agents.AgentChange(configuration=agent.configuration_id)
    results = await asyncio.gather(
        *(
            agents.update(platform, admin, "default", "coder", change, expected_generation=1)
            for _ in range(3)
        ),
        *(agents.deploy(platform, admin, "default", "coder") for _ in range(3)),
        return_exceptions=True,
    )
    updated = [one for one in results[:3] if not isinstance(one, Exception)]
    assert len(updated) == 1
    assert all(isinstance(one, PreconditionFailed) for one in results if isinstance(one, Exception))
    deployed = await world.rows("SELECT revision_number AS n FROM occ.agent_revisions ORDER BY n")
    assert [row["n"] for row in deployed] == list(range(1, len(deployed) + 1))
