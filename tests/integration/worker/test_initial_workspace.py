"""Initial workspace files on their way through the worker: handed to Compute until a revision serves, then forgotten."""

from __future__ import annotations

import json

import pytest
from psycopg.types.json import Jsonb

from oce.contracts.sandbox import HarnessStatus

pytestmark = pytest.mark.postgres
SETUP = "wss_00000000-0000-4000-8000-000000000003"
FILES = {"AGENTS.md": "invented instructions"}


async def an_agent(seed):
    agent = await seed.agent(await seed.namespace())
    await seed.run(
        "INSERT INTO occ.workspace_setups (id, namespace_id, agent_id, files)"
        " VALUES (%(id)s, %(ns)s, %(agent)s, %(files)s)",
        id=SETUP,
        ns=agent.namespace_id,
        agent=agent.id,
        files=Jsonb(FILES),
    )
    return agent


async def staged(world, revision):
    """Return the document as the Sandbox Driver of a pass reads it."""
    context = world.provider.sandboxes[revision]
    setup = context.requirements.workspace_setup
    found = await context.private.read(context.namespace, setup.secret_name, setup.secret_key)
    assert found.labels["openclaw.dev/agent"] == context.revision.agent_id
    for place in ((setup.secret_name, "other"), ("other", setup.secret_key)):
        assert await context.private.read(context.namespace, *place) is None
    return json.loads(found.value.reveal())


async def content(seed):
    return (await seed.one("SELECT files FROM occ.workspace_setups"))["files"]


async def test_the_first_serving_revision_gets_them_and_a_later_one_only_the_owner(seed, world):
    agent = await an_agent(seed)
    revision, _ = await seed.deployment(agent, workspace_setup_id=SETUP)
    assert await world.drain() == ["success"]
    owner = {"id": SETUP, "namespaceId": agent.namespace_id, "agentId": agent.id}
    assert await staged(world, revision) == {**owner, "files": FILES}
    assert await content(seed) is None
    again, _ = await seed.deployment(agent, workspace_setup_id=SETUP)
    assert await world.drain() == ["success"]
    assert await staged(world, again) == {**owner, "files": {}}


async def test_a_revision_that_never_served_leaves_them_for_the_next(seed, world):
    agent = await an_agent(seed)
    serving = list(world.provider.statuses)
    held = {
        "component": "agent",
        "check": "login",
        "checkedAt": "2026-01-02T03:04:05Z",
        "code": "AUTHENTICATION_FAILED",
    }
    world.provider.statuses[:] = [HarnessStatus(state="failed", failure_document=held)]
    await seed.deployment(agent, workspace_setup_id=SETUP)
    assert await world.drain() == ["permanent"]
    assert await content(seed) == FILES
    world.provider.statuses[:] = serving
    await seed.deployment(agent, workspace_setup_id=SETUP)
    assert await world.drain() == ["success"]
    assert await content(seed) is None


async def test_a_driver_that_lost_the_ability_fails_the_revision_by_name(seed, world):
    agent = await an_agent(seed)
    _, key = await seed.deployment(agent, workspace_setup_id=SETUP)
    object.__setattr__(world.platform.drivers.sandbox, "workspace_setup", None)
    assert await world.drain() == ["permanent"]
    assert (await seed.row(key))["reason_code"] == "WORKSPACE_SETUP_UNSUPPORTED"
    assert await content(seed) == FILES


async def test_they_go_with_the_agent(seed, world):
    agent = await an_agent(seed)
    await seed.run(
        "UPDATE occ.agents SET status = 'deleting', desired_runtime_state = 'stopped' WHERE id = %(id)s",
        id=agent.id,
    )
    await seed.work(agent.namespace_id, agent=agent.id, target="deleted")
    assert await world.drain() == ["success"]
    assert await seed.all("SELECT * FROM occ.workspace_setups") == []
