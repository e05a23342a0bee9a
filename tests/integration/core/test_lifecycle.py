"""The use cases one after the other, over real PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from oce.contracts.credential_gateway import SourceStatus
from oce.contracts.refusals import ConfigurationRefused, Detail
from oce.core.access import commands as access_commands
from oce.core.access import queries as access
from oce.core.agents import commands as agents
from oce.core.agents import queries as agent_queries
from oce.core.audit import queries as audit
from oce.core.audit import record
from oce.core.audit import rules as audit_rules
from oce.core.configurations import commands as configurations
from oce.core.configurations import queries as configuration_queries
from oce.core.credentials import commands as credentials
from oce.core.credentials import queries as credential_queries
from oce.core.errors import (
    Conflict,
    Dependency,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from oce.core.installation import queries as installation
from oce.core.installation.commands import bootstrap
from oce.core.namespaces import commands as namespaces
from oce.core.namespaces import queries as namespace_queries
from oce.core.paging import PageRequest
from oce.core.revisions import queries as revisions
from oce.core.secrets import commands as secrets
from oce.core.secrets import queries as secret_queries
from oce.domain.resources import DeploymentStatus, HarnessAuth, NamespaceStatus, RuntimeState
from oce.domain.secret import SecretText
from oce.store import agents as agent_rows
from oce.store import audit as audit_rows
from oce.store import namespaces as namespace_rows
from oce.store import revisions as revision_rows
from oce.store import work
from oce.testing.fakes import ManualClock

VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-5.1-codex"}}}}

pytestmark = pytest.mark.postgres


async def test_bootstrap_once_then_verify(world):
    again = await bootstrap(world.platform.db, world.clock, name="test")
    assert (again.created, again.key_text, again.administrator_id) == (
        False,
        None,
        world.made.administrator_id,
    )
    with pytest.raises(Conflict) as refused:
        await bootstrap(world.platform.db, world.clock, name="other")
    assert refused.value.code == "INSTALLATION_EXISTS"
    view = await installation.get(world.platform, world.admin)
    assert (view.execution_modes, view.source_types) == (
        ("dedicated",),
        ("openai", "bearer-token"),
    )
    assert await world.rows(
        "SELECT id FROM occ.service_keys WHERE octet_length(secret_sha256) = 32"
    )


async def test_what_bootstrap_could_not_deliver_did_not_happen(db):
    def broken(*_):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await bootstrap(db, ManualClock(), name="later", deliver=broken)
    assert await installation.find(db) is None
    runs = [bootstrap(db, ManualClock(), name="later") for _ in range(3)]
    made = await asyncio.gather(*runs)
    assert sorted(one.created for one in made) == [False, False, True]


async def test_namespaces_live_and_die(world):
    platform, admin = world.platform, world.admin
    made = await namespaces.create(platform, admin, name="team")
    assert made.status is NamespaceStatus.PROVISIONING
    queued = await world.rows(
        "SELECT namespace_target, state FROM occ.controller_work WHERE namespace_id = %(id)s",
        id=made.id,
    )
    assert queued == [{"namespace_target": "ready", "state": "queued"}]
    assert (await namespace_queries.get(platform, admin, "team")).id == made.id
    with pytest.raises(Conflict):
        await namespaces.create(platform, admin, name="team")
    await world.secret()
    await world.configuration()
    with pytest.raises(Conflict) as full:
        await namespaces.delete(platform, admin, "default")
    assert full.value.code == "NAMESPACE_NOT_EMPTY"
    assert "secret sec_" in full.value.message
    assert "configuration cfg_" in full.value.message
    going = await namespaces.delete(platform, admin, "team")
    again = await namespaces.delete(platform, admin, made.id)
    assert (going.status, again.status) == (NamespaceStatus.DELETING, NamespaceStatus.DELETING)
    deletions = await world.rows(
        "SELECT 1 AS one FROM occ.controller_work WHERE namespace_id = %(id)s AND namespace_target = 'deleted'",
        id=made.id,
    )
    assert len(deletions) == 1
    async with platform.db.transact() as tx:
        assert await namespace_rows.bury(tx, made.id)
    with pytest.raises(NotFound):
        await namespace_queries.get(platform, admin, made.id)
    with pytest.raises(Conflict, match="never used again"):
        await namespaces.create(platform, admin, name="team")


async def test_a_failed_deletion_belongs_to_who_began_it(world):
    platform = world.platform
    made = await namespaces.create(platform, world.admin, name="team")
    other = await world.person("administrator", namespace=None, scope=None)
    await namespaces.delete(platform, other, made.id)
    async with platform.db.transact() as tx:
        await tx.run(
            "UPDATE occ.controller_work SET state = 'failed_permanent', completed_at = now(),"
            " reason_code = 'MAX_ATTEMPTS_EXHAUSTED' WHERE namespace_id = %(id)s",
            id=made.id,
        )
    with pytest.raises(Forbidden, match="began this deletion"):
        await namespaces.delete(platform, world.admin, made.id)
    bindings = await access.list_bindings(platform, world.admin, None, PageRequest())
    theirs = next(one for one in bindings.items if one.subject_id == other.principal_id)
    await access_commands.delete_binding(platform, world.admin, None, theirs.id)
    await namespaces.delete(platform, world.admin, made.id)
    taken = await audit.list_page(
        platform,
        world.admin,
        audit.AuditFilter(action="openclaw.namespaces.delete", outcome="success"),
        PageRequest(1),
    )
    assert taken.items[0].details["takeover"] == other.principal_id


async def test_secrets_keep_their_values_to_themselves(world):
    platform, admin = world.platform, world.admin
    made = await world.secret("key", "first-invented")
    assert made.state == "ready"
    assert made.locator.driver_id == "fake-secrets"
    await secrets.update(platform, admin, "default", "key", value=SecretText("second-invented"))
    assert [one.reveal() for one in world.drivers.secrets.values.values()] == ["second-invented"]
    with pytest.raises(InvalidRequest) as empty:
        await secrets.update(platform, admin, "default", "key", value=SecretText(""))
    assert [(one.path, one.code) for one in empty.value.details] == [("/value", "REQUIRED")]
    source = await world.source()
    view = await secret_queries.get(platform, admin, "default", made.id)
    assert view.consumers.credential_sources == (source.id,)
    with pytest.raises(Conflict, match="in use by credential_source"):
        await secrets.delete(platform, admin, "default", made.id)
    await credentials.delete(platform, admin, "default", source.id)
    await secrets.delete(platform, admin, "default", made.id)
    assert world.drivers.secrets.values == {}
    everything = await world.rows(
        "SELECT details::text || coalesce(decision_evidence::text, '') AS text FROM occ.audit_events"
    )
    assert not any("invented" in row["text"] for row in everything)


async def test_an_interrupted_secret_leaves_a_trace_that_can_be_finished(world):
    platform, admin = world.platform, world.admin
    world.drivers.secrets.fail["after:create"] = RuntimeError("killed")
    with pytest.raises(Dependency, match="sec_"):
        await world.secret("key")
    del world.drivers.secrets.fail["after:create"]
    listed = await secret_queries.list_page(platform, admin, "default", PageRequest())
    assert [one.state for one in listed.items] == ["writing"]
    with pytest.raises(Conflict, match="not stored completely"):
        await world.source()
    finished = await secrets.update(platform, admin, "default", "key", value=SecretText("v"))
    assert finished.state == "ready"
    world.drivers.secrets.fail["create"] = RuntimeError("killed")
    with pytest.raises(Dependency):
        await world.secret("other")
    del world.drivers.secrets.fail["create"]
    await secrets.delete(platform, admin, "default", "other")
    assert len(world.drivers.secrets.values) == 1


async def test_credential_sources_in_the_careful_order(world):
    platform, admin, gateway = world.platform, world.admin, world.drivers.gateway
    await world.secret()
    with pytest.raises(InvalidRequest) as wrong:
        await world.source(colour="red")
    assert wrong.value.details[0].path == "/config/colour"
    with pytest.raises(ConfigurationRefused):
        await world.source(base_url="http://plain.example")
    # The gateway says no: nothing is left.
    gateway.answer = SourceStatus(state="failed", reason="no")
    with pytest.raises(Conflict, match="refused"):
        await world.source()
    assert await world.rows("SELECT 1 AS one FROM occ.credential_sources") == []
    gateway.answer = SourceStatus(state="ready")
    # Its answer is lost: the record stays as "clean me up", and a late effect is waited for.
    gateway.fail["after:register_source"] = TimeoutError()
    with pytest.raises(Dependency, match="deleting"):
        await world.source()
    gateway.fail.clear()
    assert len(gateway.sources) == 1
    with pytest.raises(Dependency, match="still arrive"):
        await credentials.delete(platform, admin, "default", "openai")
    assert gateway.sources == {}
    world.clock.advance(71)
    await credentials.delete(platform, admin, "default", "openai")
    # A clean creation can be deleted at once.
    made = await world.source()
    assert (
        await credential_queries.get(platform, admin, "default", made.id)
    ).status.state == "ready"
    gateway.fail["source_status"] = RuntimeError("away")
    assert (await credential_queries.get(platform, admin, "default", made.id)).status is None
    await world.secret("new", "other-value")
    await credentials.update(platform, admin, "default", "openai", secrets={"api_key": "new"})
    await secrets.delete(platform, admin, "default", "key")
    await credentials.delete(platform, admin, "default", "openai")
    assert await world.rows("SELECT 1 AS one FROM occ.credential_sources") == []


async def test_configurations_move_by_generation(world):
    platform, admin = world.platform, world.admin
    with pytest.raises(InvalidRequest) as unknown:
        await world.configuration({"agents": {"defaults": {"modle": "x"}}})
    assert unknown.value.details[0] == Detail("/values/agents/defaults/modle", "UNKNOWN_FIELD")
    await world.secret()
    with pytest.raises(InvalidRequest) as reserved:
        await world.configuration(secret_bindings={"openai_api_key": "key"})
    assert reserved.value.details[0].path == "/secretBindings/openai_api_key"
    made = await world.configuration(name="codex", secret_bindings={"TOOL_KEY": "key"})
    assert made.generation == 1
    other = {"agents": {"defaults": {"model": {"primary": "openai/other"}}}}
    change = configurations.ConfigurationChange(values=other)
    changed = await configurations.update(
        platform, admin, "default", "codex", change, expected_generation=1
    )
    assert (changed.generation, changed.secret_bindings.keys()) == (2, {"TOOL_KEY"})
    with pytest.raises(PreconditionFailed):
        await configurations.update(
            platform, admin, "default", made.id, change, expected_generation=1
        )
    # A crash after the document was stored: the number is not used again.
    world.drivers.configurations.fail["after:write"] = RuntimeError("killed")
    with pytest.raises(Dependency):
        await configurations.update(
            platform, admin, "default", made.id, configurations.ConfigurationChange(values=VALUES)
        )
    world.drivers.configurations.fail.clear()
    assert (await configuration_queries.get(platform, admin, "default", made.id)).values == other
    cleared = await configurations.update(
        platform, admin, "default", made.id, configurations.ConfigurationChange(secret_bindings={})
    )
    assert (cleared.generation, cleared.values) == (4, other)
    results = await asyncio.gather(
        *(
            configurations.update(
                platform, admin, "default", made.id, change, expected_generation=4
            )
            for _ in range(4)
        ),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in results) == [
        "Configuration", "PreconditionFailed", "PreconditionFailed", "PreconditionFailed",
    ]  # fmt: skip
    await configurations.delete(platform, admin, "default", made.id)
    assert world.drivers.configurations.documents == {}


async def test_an_agent_from_draft_to_deletion(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()
    assert agent.desired_runtime_state is RuntimeState.STOPPED
    assert not await world.work_of(agent)
    granted = await world.rows(
        "SELECT resource_id FROM occ.iam_access_bindings WHERE subject_id = %(id)s",
        id=agent.service_principal_id,
    )
    assert [row["resource_id"] for row in granted] == list(agent.credential_sources)
    revision = await agents.deploy(platform, admin, "default", "coder")
    assert (revision.revision, revision.render_version, revision.harness.id) == (1, 3, "codex")
    assert revision.compute_render_version == 4
    assert revision.configuration["logging"]["consoleStyle"] == "json"
    assert revision.configuration["plugins"]["entries"]["codex"]["enabled"] is True
    assert revision.credential_sources[0].credential_gateway_id == "fake-gateway"
    assert await revisions.get(platform, admin, "default", "coder", revision.id) == revision
    assert [row["idempotency_key"] for row in await world.work_of(agent)] == [
        f"agent_revision:{revision.id}:reconcile"
    ]
    with pytest.raises(Conflict, match="in use by agent"):
        await credentials.delete(platform, admin, "default", "coder-source")
    with pytest.raises(Conflict, match="in use by agent"):
        await configurations.delete(platform, admin, "default", agent.configuration_id)
    await world.secret("second-key")
    second = await world.source("second", "second-key")
    change = agents.AgentChange(
        configuration=agent.configuration_id,
        harness_auth=HarnessAuth(method="credential_source", source_id="second"),
        credential_sources=("second",),
    )
    changed = await agents.update(
        platform, admin, "default", "coder", change, expected_generation=1
    )
    assert (changed.generation, changed.credential_sources) == (2, (second.id,))
    with pytest.raises(PreconditionFailed):
        await agents.update(platform, admin, "default", "coder", change, expected_generation=1)
    # The old source is still in the pending deployment.
    with pytest.raises(Conflict, match="in use by agent"):
        await credentials.delete(platform, admin, "default", "coder-source")
    next_one = await agents.deploy(platform, admin, "default", agent.id)
    listed = await revisions.list_page(platform, admin, "default", "coder", PageRequest(1))
    assert [one.id for one in listed.items] == [next_one.id]
    stopped = await agents.stop(platform, admin, "default", "coder")
    await agents.stop(platform, admin, "default", "coder")
    assert stopped.desired_runtime_state is RuntimeState.STOPPED
    with pytest.raises(Conflict, match="being stopped"):
        await agents.deploy(platform, admin, "default", "coder")
    deleted = await agents.delete(platform, admin, "default", "coder")
    await agents.delete(platform, admin, "default", "coder")
    assert deleted.status == "deleting"
    with pytest.raises(Conflict) as gone:
        await agents.update(platform, admin, "default", "coder", change)
    assert gone.value.code == "AGENT_DELETING"
    targets = [row["agent_target"] for row in await world.work_of(agent)]
    assert sorted(targets, key=str) == [None, None, "deleted", "stopped"]
    await _finish_deletion(world, agent)
    with pytest.raises(NotFound):
        await agent_queries.get(platform, admin, "default", "coder")
    assert (
        await world.rows(
            "SELECT 1 AS one FROM occ.iam_identities WHERE id = %(id)s",
            id=agent.service_principal_id,
        )
        == []
    )


async def _finish_deletion(world, agent):
    """What the worker's last transaction does."""
    deletion = next(row for row in await world.work_of(agent) if row["agent_target"] == "deleted")
    token = uuid.uuid4()
    async with world.platform.db.transact() as tx:
        await tx.run(
            "UPDATE occ.controller_work SET state = 'claimed', claim_token = %(token)s::uuid,"
            " lease_expires_at = clock_timestamp() + interval '1 minute' WHERE idempotency_key = %(key)s",
            token=str(token),
            key=deletion["idempotency_key"],
        )

    async def finalize(with_token):
        async with world.platform.db.transact() as tx:
            return await agent_rows.finalize_deletion(
                tx,
                namespace_id=agent.namespace_id,
                agent_id=agent.id,
                work_key=deletion["idempotency_key"],
                claim_token=with_token,
            )

    assert await finalize(uuid.uuid4()) is False
    assert await finalize(token) is None
    async with world.platform.db.transact() as tx:
        for revision in await revision_rows.unretired(tx, agent.namespace_id, agent.id):
            await revision_rows.mark_retired(tx, revision.id)
    assert await finalize(token) is True


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "names no model"),
        ({"agents": {"defaults": {"agentRuntime": {"id": "openclaw"}}}}, "does not run the Harness openclaw"),
        ({**VALUES, "models": {"providers": {"openai": {"baseUrl": "https://else.example/v1"}}}}, "not the endpoint"),
        ({**VALUES, "sandbox-network-policy": {"additions": [1]}}, "INVALID_TYPE"),
    ],
)  # fmt: skip
async def test_a_draft_that_cannot_run_is_refused_at_deploy(world, values, message):
    agent = await world.agent()
    await configurations.update(
        world.platform, world.admin, "default", agent.configuration_id,
        configurations.ConfigurationChange(values=values),
    )  # fmt: skip
    with pytest.raises((Conflict, InvalidRequest, ConfigurationRefused), match=message):
        await agents.deploy(world.platform, world.admin, "default", "coder")
    assert not await world.work_of(agent)


async def test_secret_bindings_and_missing_credentials_are_refused_by_code(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()
    await configurations.update(
        platform, admin, "default", agent.configuration_id,
        configurations.ConfigurationChange(secret_bindings={"TOOL_KEY": "coder-key"}),
    )  # fmt: skip
    with pytest.raises(Conflict) as bound:
        await agents.deploy(platform, admin, "default", "coder")
    assert bound.value.code == "SECRET_BINDINGS_UNSUPPORTED"
    plain = await world.configuration()
    for auth, message in (
        (None, "no model credential"),
        (HarnessAuth(method="api_key", source_id="coder-key"), "beside a Credential Gateway"),
    ):
        await agents.update(
            platform, admin, "default", "coder",
            agents.AgentChange(configuration=plain.id, harness_auth=auth, credential_sources=()),
        )  # fmt: skip
        with pytest.raises(Conflict, match=message):
            await agents.deploy(platform, admin, "default", "coder")


async def test_a_deployment_is_shown_from_its_work(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()
    revision = await agents.deploy(platform, admin, "default", "coder")
    key = work.reconcile_key(revision.id)

    async def shown():
        return await revisions.deployment(platform, admin, "default", "coder", revision.id)

    first = await shown()
    assert (first.status, first.error) == (DeploymentStatus.QUEUED, None)
    assert first.progress.next_attempt_at is not None
    async with platform.db.transact() as tx:
        await tx.run(
            "INSERT INTO occ.deployment_events (work_key, step, outcome, code, duration_ms) VALUES"
            " (%(key)s, 'prepare', 'pending', 'REVISION_INCOMPLETE', NULL), (%(key)s, 'activate', 'succeeded', NULL, 12)",
            key=key,
        )
        await record.mutation(
            tx, platform, admin, "x", ("agent_revision", revision.id), agent.namespace_id
        )
        await audit_rows.append(
            tx,
            audit_rules.event(
                installation_id=platform.installation_id, at=world.clock.now(), actor_id="x",
                action="reconcile", resource=("agent_revision", revision.id),
                namespace_id=agent.namespace_id,
                details={"reasonCode": "REVISION_INCOMPLETE", "workId": key},
            ),
        )  # fmt: skip
        await tx.run(
            "UPDATE occ.controller_work SET state = 'claimed', claim_token = gen_random_uuid(),"
            " lease_expires_at = clock_timestamp() + interval '1 minute' WHERE idempotency_key = %(key)s",
            key=key,
        )
    running = await shown()
    assert running.status is DeploymentStatus.RUNNING
    assert running.progress.last_attempt.code == "REVISION_INCOMPLETE"
    steps = await revisions.deployment_steps(platform, admin, "default", "coder", revision.id)
    assert [(one.step, one.outcome) for one in steps] == [
        ("prepare", "pending"),
        ("activate", "succeeded"),
    ]
    later = await revisions.deployment_steps(
        platform, admin, "default", "coder", revision.id, after=steps[0].seq
    )
    assert [one.step for one in later] == ["activate"]
    for state, code, expected, error in (
        (
            "failed_permanent",
            "RUNTIME_AUTHENTICATION_FAILED",
            "failed",
            "RUNTIME_AUTHENTICATION_FAILED",
        ),
        ("succeeded", "SUPERSEDED_TARGET", "failed", "REVISION_SUPERSEDED"),
        ("succeeded", "REVISION_ACTIVATED", "succeeded", None),
    ):
        async with platform.db.transact() as tx:
            await tx.run(
                "UPDATE occ.controller_work SET state = %(state)s, claim_token = NULL, lease_expires_at = NULL,"
                " completed_at = now(), reason_code = %(code)s WHERE idempotency_key = %(key)s",
                state=state, code=code, key=key,
            )  # fmt: skip
        ended = await shown()
        assert (ended.status, ended.progress) == (expected, None)
        assert (ended.error.code if ended.error else None) == error
