"""Who may do what: default deny for every use case, keys, bindings, the gateway's and the worker's questions."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from oce.core.access import commands as access
from oce.core.access import queries
from oce.core.agents import commands as agents
from oce.core.agents import queries as agent_queries
from oce.core.audit import queries as audit
from oce.core.configurations import commands as configurations
from oce.core.configurations import queries as configuration_queries
from oce.core.credentials import commands as credentials
from oce.core.credentials import queries as credential_queries
from oce.core.errors import (
    Conflict,
    CoreError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    public,
)
from oce.core.installation import queries as installation
from oce.core.namespaces import commands as namespaces
from oce.core.namespaces import queries as namespace_queries
from oce.core.paging import PageRequest
from oce.core.revisions import queries as revisions
from oce.core.runtime import queries as runtime
from oce.core.secrets import commands as secrets
from oce.core.secrets import queries as secret_queries
from oce.domain.resources import Permission
from oce.domain.secret import SecretText
from oce.store import iam

pytestmark = pytest.mark.postgres

PAGE = PageRequest()
VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-5.1-codex"}}}}


def _everything(where, agent, revision):
    """Every use case as a call of (platform, actor), on things that exist."""
    draft = configurations.ConfigurationDraft(values=VALUES)
    source = credentials.SourceDraft(
        name="n", type="openai", config={}, secrets={"api_key": "coder-key"}
    )
    new_agent = agents.AgentDraft(name="n", configuration=agent.configuration_id)
    binding = access.BindingDraft(subject_id="spn_x", role_id="role_viewer")
    pairs = [
        (namespaces.create, {"name": "n"}),
        (namespaces.delete, where),
        (namespace_queries.get, where),
        (secrets.create, {**where, "name": "n", "value": SecretText("v")}),
        (secrets.update, {**where, "secret": "coder-key", "value": SecretText("v")}),
        (secrets.delete, {**where, "secret": "coder-key"}),
        (secret_queries.get, {**where, "secret": "coder-key"}),
        (credentials.create, {**where, "draft": source}),
        (credentials.update, {**where, "source": "coder-source"}),
        (credentials.delete, {**where, "source": "coder-source"}),
        (credential_queries.get, {**where, "source": "coder-source"}),
        (configurations.create, {**where, "draft": draft}),
        (configurations.update, {**where, "configuration": agent.configuration_id,
                                 "change": configurations.ConfigurationChange(values=VALUES)}),
        (configurations.delete, {**where, "configuration": agent.configuration_id}),
        (configuration_queries.get, {**where, "configuration": agent.configuration_id}),
        (agents.create, {**where, "draft": new_agent}),
        (agents.update, {**where, "agent": "coder", "change": agents.AgentChange(configuration=agent.configuration_id)}),
        (agents.delete, {**where, "agent": "coder"}),
        (agents.deploy, {**where, "agent": "coder"}),
        (agents.stop, {**where, "agent": "coder"}),
        (agent_queries.get, {**where, "agent": "coder"}),
        (agent_queries.list_page, {**where, "page": PAGE}),
        (revisions.get, {**where, "agent": "coder", "revision": revision}),
        (revisions.list_page, {**where, "agent": "coder", "page": PAGE}),
        (revisions.deployment, {**where, "agent": "coder", "revision": revision}),
        (revisions.deployment_steps, {**where, "agent": "coder", "revision": revision}),
        (runtime.harness_status, {**where, "agent": "coder"}),
        (runtime.logs, {**where, "agent": "coder", "query": runtime.LogQuery()}),
        (installation.get, {}),
        (audit.list_page, {"criteria": audit.AuditFilter(), "page": PAGE}),
        (access.issue_key, {"draft": access.KeyDraft(service_principal_id="spn_x", name="n")}),
        (access.revoke_key, {"key_id": "key_x"}),
        (access.create_role, {**where, "name": "n", "permissions": (Permission(action="read", resource_kind="agent"),)}),
        (access.delete_role, {**where, "role_id": "role_x"}),
        (access.create_binding, {**where, "draft": binding}),
        (access.create_binding, {"namespace": None, "draft": binding}),
        (access.delete_binding, {**where, "binding_id": "binding_x"}),
        (access.create_service_principal, where),
        (access.create_service_principal, {"namespace": None}),
        (queries.list_keys, {"page": PAGE}),
        (queries.list_roles, {**where, "page": PAGE}),
        (queries.get_role, {**where, "role_id": "role_viewer"}),
        (queries.list_bindings, {**where, "page": PAGE}),
        (queries.get_binding, {**where, "binding_id": "binding_x"}),
        (queries.list_service_principals, {**where, "page": PAGE}),
        (queries.get_service_principal, {**where, "principal_id": "spn_x"}),
    ]  # fmt: skip
    return [(call.__module__, call.__name__, partial(call, **options)) for call, options in pairs]


async def _touch_nothing(world, actor, agent, revision, where):
    before = await world.rows(
        "SELECT count(*) AS n FROM occ.audit_events WHERE outcome <> 'denied'"
    )
    for module, name, call in _everything(where, agent, revision):
        answer: object = f"{module}.{name} was allowed"
        try:
            await call(platform=world.platform, actor=actor)
        except CoreError as error:
            answer = type(error)
        assert answer is Forbidden, answer
    after = await world.rows("SELECT count(*) AS n FROM occ.audit_events WHERE outcome <> 'denied'")
    assert before == after


async def test_without_a_grant_nothing_is_allowed_and_the_answer_tells_nothing(world):
    agent = await world.agent()
    revision = (await agents.deploy(world.platform, world.admin, "default", "coder")).id
    nobody = await world.person(None)
    await _touch_nothing(world, nobody, agent, revision, {"namespace": "default"})
    # The same answer for a Namespace and for resources that do not exist.
    for ref in ("nowhere", "ns_11111111-1111-4111-8111-111111111111"):
        await _touch_nothing(world, nobody, agent, revision, {"namespace": ref})
    with pytest.raises(Forbidden):
        await agent_queries.get(world.platform, nobody, "default", "no-such-agent")
    with pytest.raises(NotFound):
        await agent_queries.get(world.platform, world.admin, "default", "no-such-agent")
    denials = await audit.list_page(
        world.platform,
        world.admin,
        audit.AuditFilter(actor_id=nobody.principal_id),
        PageRequest(200),
    )
    assert {one.kind for one in denials.items} == {"authorization_denial"}
    assert denials.items[0].authorization["request"]["principal_id"] == nobody.principal_id
    # Lists that authorize each element are empty instead.
    for listing in (
        secret_queries.list_page, credential_queries.list_page, configuration_queries.list_page,
    ):  # fmt: skip
        for ref in ("default", "nowhere"):
            assert (await listing(world.platform, nobody, ref, PAGE)).items == ()
        with pytest.raises(NotFound):
            await listing(world.platform, world.admin, "nowhere", PAGE)
    assert (await namespace_queries.list_page(world.platform, nobody, PAGE)).items == ()


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("viewer", {"read"}, {"create", "update", "delete", "deploy", "operate", "use", "read_logs"}),
        ("deployer", {"read", "create", "update", "deploy", "operate", "use", "read_logs"}, {"delete", "administer"}),
        ("operator", {"read", "create", "update", "delete", "deploy", "operate", "use", "read_logs"}, {"administer"}),
        ("administrator", {"read", "administer", "use", "read_logs"}, set()),
    ],
)  # fmt: skip
async def test_built_in_roles_reach_as_far_as_their_binding(world, role, may, may_not):
    other = await namespaces.create(world.platform, world.admin, name="other")
    person = await world.person(role)

    async def allowed(action, namespace_id):
        request = queries.AccessRequest(
            principal_id=person.principal_id, action=action, resource_kind="agent",
            resource_id="agt_x", namespace_id=namespace_id,
        )  # fmt: skip
        return (await world.platform.drivers.iam.authorize(request)).allowed

    for action in may | may_not:
        assert await allowed(action, world.namespace) is (action in may)
        assert await allowed(action, other.id) is False


async def test_a_key_opens_what_its_principal_may_and_nothing_else(world):
    platform, admin = world.platform, world.admin
    person = await world.person("viewer", scope="default")
    with pytest.raises(InvalidRequest) as wrong:
        await access.issue_key(
            platform,
            admin,
            access.KeyDraft(service_principal_id=person.principal_id, name=" ", expires_in=60),
        )
    assert {one.path for one in wrong.value.details} == {"/name", "/expiresIn"}
    with pytest.raises(InvalidRequest):
        await access.issue_key(
            platform, admin, access.KeyDraft(service_principal_id=person.principal_id, name="wide")
        )
    issued = await access.issue_key(
        platform, admin,
        access.KeyDraft(service_principal_id=person.principal_id, name="laptop", namespace="default"),
    )  # fmt: skip
    assert issued.text.reveal() not in repr(issued)
    actor = await queries.authenticate(platform, issued.text, request_id="req_1")
    assert (actor.principal_id, actor.key_namespace_id) == (person.principal_id, world.namespace)
    await world.agent()
    assert (await agent_queries.get(platform, actor, "default", "coder")).name == "coder"
    with pytest.raises(Forbidden):
        await installation.get(platform, actor)
    for wrong_text in (
        "",
        "occ_",
        issued.text.reveal()[:-1] + "!",
        issued.text.reveal()[:-2] + "AA",
    ):
        with pytest.raises(Unauthenticated):
            await queries.authenticate(platform, SecretText(wrong_text), request_id="req_1")
    listed = await queries.list_keys(platform, admin, PAGE)
    assert [one.name for one in listed.items] == ["bootstrap-admin", "laptop"]
    assert listed.items[1].last_used_at is not None
    world.clock.advance(31 * 86_400)
    with pytest.raises(Unauthenticated):
        await queries.authenticate(platform, issued.text, request_id="req_1")
    await access.revoke_key(platform, admin, issued.key.id)
    with pytest.raises(NotFound):
        await access.revoke_key(platform, admin, issued.key.id)


async def test_a_namespace_key_of_a_wide_principal_stays_in_its_namespace(world):
    platform, admin = world.platform, world.admin
    await namespaces.create(platform, admin, name="other")
    issued = await access.issue_key(
        platform, admin,
        access.KeyDraft(service_principal_id=admin.principal_id, name="narrow", namespace="default"),
    )  # fmt: skip
    actor = await queries.authenticate(platform, issued.text, request_id="req_1")
    assert [
        one.name for one in (await namespace_queries.list_page(platform, actor, PAGE)).items
    ] == ["default"]
    for call in (
        namespace_queries.get(platform, actor, "other"),
        namespaces.create(platform, actor, name="more"),
        agent_queries.list_page(platform, actor, "other", PAGE),
        secret_queries.get(platform, actor, "other", "x"),
        audit.list_page(platform, actor, audit.AuditFilter(), PAGE),
        queries.list_keys(platform, actor, PAGE),
    ):
        with pytest.raises(Forbidden):
            await call
    denied = await world.rows(
        "SELECT decision_reason FROM occ.audit_events WHERE kind = 'authorization_denial'"
    )
    assert [row["decision_reason"] for row in denied] == ["the key is for another Namespace"] * 6
    assert (await secret_queries.list_page(platform, actor, "other", PAGE)).items == ()


async def test_nobody_hands_out_more_than_they_hold(world):
    platform, admin = world.platform, world.admin
    weak = await world.person("viewer", namespace=None, scope=None)
    role = await access.create_role(
        platform, admin, "default", name="admin-only",
        permissions=(Permission(action="read", resource_kind="agent"),),
    )  # fmt: skip
    # An identity whose only power is to administer the Installation.
    keeper = await access.create_service_principal(platform, admin, None)
    async with platform.db.transact() as tx:
        await tx.run(
            "INSERT INTO occ.iam_roles (id, name, permissions) VALUES"
            " ('role_keeper', 'keeper', '[[\"administer\", \"installation\"]]')"
        )
        await iam.insert_binding(
            tx, dataclasses.replace(
                (await queries.list_bindings(platform, admin, None, PAGE)).items[0],
                id="binding_keeper", subject_id=keeper.id, role_id="role_keeper",
            ),
        )  # fmt: skip
    actor = dataclasses.replace(admin, principal_id=keeper.id)
    with pytest.raises(Forbidden, match="every grant"):
        await access.issue_key(
            platform, actor, access.KeyDraft(service_principal_id=weak.principal_id, name="k")
        )
    empty = await access.create_service_principal(platform, admin, None)
    assert await access.issue_key(
        platform, actor, access.KeyDraft(service_principal_id=empty.id, name="k")
    )
    agent = await world.agent()
    with pytest.raises(NotFound):
        await access.issue_key(
            platform,
            admin,
            access.KeyDraft(service_principal_id=agent.service_principal_id, name="k"),
        )
    for draft, path in (
        (access.BindingDraft(subject_id="spn_x", role_id="role_viewer"), "/subjectId"),
        (access.BindingDraft(subject_id=weak.principal_id, role_id="role_agent_reference"), "/roleId"),
        (access.BindingDraft(subject_id=weak.principal_id, role_id=role.id), "/resourceKind"),
        (access.BindingDraft(subject_id=weak.principal_id, role_id=role.id, resource_kind="secret",
                             resource_id="sec_x"), "/roleId"),
        (access.BindingDraft(subject_id=weak.principal_id, role_id="role_viewer", resource_kind="agent"), "/resourceId"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest) as refused:
            await access.create_binding(platform, admin, "default", draft)
        assert path in {one.path for one in refused.value.details}
    bound = await access.create_binding(
        platform, admin, "default",
        access.BindingDraft(subject_id=weak.principal_id, role_id=role.id, resource_kind="agent", resource_id=agent.id),
    )  # fmt: skip
    with pytest.raises(Conflict, match="bound"):
        await access.delete_role(platform, admin, "default", role.id)
    await access.delete_binding(platform, admin, "default", bound.id)
    await access.delete_role(platform, admin, "default", role.id)
    last = next(
        one for one in (await queries.list_bindings(platform, admin, None, PAGE)).items
        if one.role_id == "role_administrator"
    )  # fmt: skip
    with pytest.raises(Conflict, match="last administrator"):
        await access.delete_binding(platform, admin, None, last.id)
    roles = await queries.list_roles(platform, admin, "default", PAGE)
    assert next(one for one in roles.items if one.id == "role_viewer").permissions


async def test_the_agent_gateway_asks_who_may_use_an_agent(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()

    async def ask(key, ref="coder", namespace="default"):
        return await queries.agent_access(platform, key, namespace, ref)

    key = world.made.key_text
    answer = await ask(key)
    assert (answer.allowed, answer.agent_id, answer.namespace_id) == (
        True,
        agent.id,
        world.namespace,
    )
    assert (await ask(key, agent.id, world.namespace)).allowed
    viewer = await world.person("viewer")
    issued = await access.issue_key(
        platform,
        admin,
        access.KeyDraft(service_principal_id=viewer.principal_id, name="v", namespace="default"),
    )
    statuses = [
        (await ask(SecretText("nonsense"))).status,
        (await ask(issued.text)).status,
        (await ask(issued.text, "no-such")).status,
        (await ask(key, "no-such")).status,
        (await ask(key, namespace="nowhere")).status,
    ]
    assert statuses == [401, 403, 403, 404, 404]
    await agents.delete(platform, admin, "default", "coder")
    assert (await ask(key)).code == "AGENT_DELETING"


async def test_the_worker_asks_the_original_actor_again(world):
    platform, admin = world.platform, world.admin
    operator = await world.person("operator")
    agent = await world.agent(actor=operator)
    revision = await agents.deploy(platform, operator, "default", "coder")
    namespace = await namespace_queries.get(platform, admin, "default")

    async def deploy():
        return await queries.reauthorize_revision(
            platform, actor_id=operator.principal_id, agent=agent, revision=revision
        )

    assert await deploy() is None
    for target in ("stopped", "deleted"):
        assert await queries.reauthorize_agent(
            platform, actor_id=operator.principal_id, agent=agent, target=target
        ) is None  # fmt: skip
    assert await queries.reauthorize_namespace(
        platform, actor_id=admin.principal_id, namespace=namespace, target="ready"
    ) is None  # fmt: skip
    refused = await queries.reauthorize_namespace(
        platform, actor_id=operator.principal_id, namespace=namespace, target="deleted"
    )
    assert refused.code == "AUTHORIZATION_DENIED"
    assert (await queries.reauthorize_namespace(
        platform, actor_id="spn_gone", namespace=namespace, target="deleted"
    )).code == "ACTOR_REVOKED"  # fmt: skip
    async with platform.db.transact() as tx:
        await tx.run(
            "DELETE FROM occ.iam_access_bindings WHERE subject_id = %(id)s",
            id=agent.service_principal_id,
        )
    assert (await deploy()).code == "AGENT_PRINCIPAL_NOT_AUTHORIZED"
    with pytest.raises(Forbidden, match=agent.service_principal_id):
        await agents.deploy(platform, operator, "default", "coder")
    async with platform.db.transact() as tx:
        await tx.run(
            "DELETE FROM occ.iam_access_bindings WHERE subject_id = %(id)s",
            id=operator.principal_id,
        )
    assert (await deploy()).code == "AUTHORIZATION_DENIED"
    denials = await audit.list_page(
        platform, admin, audit.AuditFilter(outcome="denied"), PageRequest(3)
    )
    assert {one.reason_code for one in denials.items} == {
        "AUTHORIZATION_DENIED", "AGENT_PRINCIPAL_NOT_AUTHORIZED",
    }  # fmt: skip


async def test_a_draft_cannot_reference_what_its_author_may_not_operate(world):
    platform, admin = world.platform, world.admin
    await world.secret()
    source = await world.source()
    configuration = await world.configuration()
    author = await world.person(None)
    role = await access.create_role(
        platform, admin, "default", name="author",
        permissions=(Permission(action="read", resource_kind="configuration"),),
    )  # fmt: skip
    async with platform.db.transact() as tx:
        # A whole-Namespace grant of `agent:create` alone, which the API does not offer.
        await tx.run(
            "INSERT INTO occ.iam_roles (id, permissions, namespace_id) VALUES"
            " ('role_creator', '[[\"create\", \"agent\"]]', %(id)s)",
            id=world.namespace,
        )
        await tx.run(
            "INSERT INTO occ.iam_access_bindings (id, subject_kind, subject_id, role_id, namespace_id)"
            " VALUES ('b1', 'identity', %(subject)s, 'role_creator', %(id)s)",
            subject=author.principal_id,
            id=world.namespace,
        )
    draft = agents.AgentDraft(
        name="a", configuration=configuration.id, credential_sources=(source.id,)
    )
    with pytest.raises(Forbidden):
        await agents.create(platform, author, "default", draft)
    await access.create_binding(
        platform, admin, "default",
        access.BindingDraft(subject_id=author.principal_id, role_id=role.id,
                            resource_kind="configuration", resource_id=configuration.id),
    )  # fmt: skip
    with pytest.raises(Forbidden):
        await agents.create(platform, author, "default", draft)
    assert await agents.create(
        platform, author, "default", dataclasses.replace(draft, credential_sources=())
    )


async def test_a_restriction_beats_every_grant(world):
    await world.agent()
    async with world.platform.db.transact() as tx:
        await tx.run(
            "INSERT INTO occ.iam_restrictions (id, action, resource_kind) VALUES ('r1', 'deploy', 'agent')"
        )
    with pytest.raises(Forbidden):
        await agents.deploy(world.platform, world.admin, "default", "coder")


def test_public_errors_show_codes_and_never_causes():
    shown = public(RuntimeError("secret detail"))
    assert (shown.status, shown.code) == (500, "INTERNAL_ERROR")
    assert "secret" not in shown.message
    assert public(CoreError(code="STORAGE_FULL")).status == 503
