"""Re-authorisation by the policy in force when the work is done, not when it was asked for."""

import psycopg
import pytest

from oce.core.access.native import NativeIam
from oce.worker.passes.common import CoreAuthority

pytestmark = pytest.mark.postgres


@pytest.fixture
def lawful(world, db):
    world.with_iam(NativeIam(db))
    world.authority = CoreAuthority(world.platform)
    world.engine = world.new_engine()
    return world


async def denials(seed):
    return await seed.all(
        "SELECT resource_kind, action FROM occ.audit_events WHERE kind = 'authorization_denial'"
    )


async def test_an_allowed_actor_deploys_stops_and_deletes(seed, lawful):
    namespace = await seed.namespace("provisioning")
    await seed.work(namespace, target="ready")
    assert await lawful.drain() == ["success"]
    agent = await seed.agent(namespace)
    await seed.deployment(agent)
    assert await lawful.drain() == ["success"]
    await seed.run("UPDATE occ.agents SET desired_runtime_state = 'stopped'")
    await seed.work(namespace, agent=agent.id, target="stopped")
    await seed.run("UPDATE occ.agents SET status = 'deleting'")
    await seed.work(namespace, agent=agent.id, target="deleted")
    assert await lawful.drain() == ["success", "success"]
    assert await denials(seed) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("DELETE FROM occ.iam_access_bindings WHERE namespace_id IS NULL", "AUTHORIZATION_DENIED"),
        (
            "DELETE FROM occ.iam_access_bindings WHERE namespace_id IS NOT NULL",
            "AGENT_PRINCIPAL_NOT_AUTHORIZED",
        ),
    ],
)
async def test_a_grant_lost_since_admission_stops_the_deployment_and_is_audited(
    seed, lawful, change, code
):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    await seed.run(change)
    assert await lawful.drain() == ["permanent"]
    assert (await seed.row(key))["reason_code"] == code
    assert len(await denials(seed)) == 1
    assert lawful.provider.calls == []


async def test_an_actor_that_no_longer_exists_is_revoked(seed, lawful, test_database):
    agent = await seed.agent(await seed.namespace())
    _, key = await seed.deployment(agent)
    with psycopg.connect(test_database.superuser_url, autocommit=True) as connection:
        connection.execute("DELETE FROM occ.iam_identities WHERE agent_id IS NULL")
    assert await lawful.drain() == ["permanent"]
    assert (await seed.row(key))["reason_code"] == "ACTOR_REVOKED"
