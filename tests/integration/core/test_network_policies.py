"""An Agent's network policy over real PostgreSQL: the bundled Driver's own admission, and a provider that answers as a test says."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from oce.contracts.drivers import abilities_of
from oce.contracts.refusals import ConfigurationRefused, DriverRefusal, NotVisible
from oce.contracts.sandbox import NetworkPolicySupport, PolicyObservation, PolicyRecommendation
from oce.core.access import commands as access
from oce.core.agents import commands as agents
from oce.core.configurations import commands as configurations
from oce.core.configurations import queries as configuration_queries
from oce.core.errors import (
    Conflict,
    Dependency,
    Forbidden,
    InvalidRequest,
    NotOffered,
    PreconditionFailed,
)
from oce.core.policies import commands, explanations, queries, rules
from oce.domain.failures import Tempo
from oce.domain.resources import HarnessAuth, Permission
from oce.drivers.openshell import policies
from oce.drivers.openshell.network_rules import parse_document
from oce.store import agents as agent_rows
from oce.testing.fakes import FakeSandbox

pytestmark = pytest.mark.postgres

DEFAULT = {
    "name": "packages",
    "binaries": [{"path": "/usr/bin/pip"}],
    "endpoints": [{"host": "packages.example.com", "ports": [443]}],
}
RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [
        {"host": "docs.example.com", "ports": [443], "protocol": "rest", "access": "read_only"}
    ],
}


class PolicySandbox(FakeSandbox):
    """Admits as the OpenShell Driver does; the provider's policy is one snapshot that loads when the test lets it."""

    network_policy = NetworkPolicySupport(wildcards=True, port_ranges=False, live=True)

    def __init__(self):
        super().__init__()
        self.startup = [DEFAULT]
        self.current = None
        self.version = 1
        self.states = deque(["loaded"])
        self.sent = []
        self.suggested = ()

    def admit_network_policy(self, additions, version, defaults=None, scope=None):
        return policies.admit(
            self.id, parse_document(self.startup, ""),
            additions=additions, version=version, defaults=defaults, scope=scope,
        )  # fmt: skip

    def _seen(self, snapshot):
        state = self.states.popleft() if len(self.states) > 1 else self.states[0]
        return PolicyObservation(
            provider_version=str(self.version), policy_version=self.version, load_state=state,
            matches=self.current == snapshot,
        )  # fmt: skip

    async def observe_network_policy(self, context, snapshot):
        self._called("observe_network_policy")
        return self._seen(snapshot)

    async def apply_network_policy(self, context, application):
        self._called("apply_network_policy")
        self.sent.append(application)
        self.current = application.snapshot
        self.version += 1
        self._done("apply_network_policy")
        return self._seen(application.snapshot)

    async def read_policy_recommendations(self, context, limit):
        return self.suggested


@pytest.fixture
async def running(world):
    """The world with such a Driver and a running Agent `coder`."""
    world.drivers.sandbox = PolicySandbox()
    world.platform = replace(world.platform, drivers=world.drivers.compose())
    agent = await world.agent()
    await deployed(world, agent)
    return world


async def deployed(world, agent):
    revision = await agents.deploy(world.platform, world.admin, "default", agent.name)
    async with world.platform.db.transact() as tx:
        current = await agent_rows.get(tx, agent.namespace_id, agent.id)
        await agent_rows.swap_active_revision(
            tx, agent.id, expected=current.active_revision_id, new=revision.id
        )
    world.drivers.sandbox.current = rules.snapshot_of(revision.network_policy)
    return revision


def ask(world, **question):
    wanted = {"binary": "/usr/bin/curl", "host": "docs.example.com", "port": 443, **question}
    return explanations.explain(
        world.platform, world.admin, "default", "coder", explanations.Question(**wanted)
    )


async def put(world, additions, **options):
    return await commands.set_additions(
        world.platform, world.admin, "default", "coder", additions, **options
    )


async def apply(world, actor=None, **options):
    return await commands.apply(world.platform, actor or world.admin, "default", "coder", **options)


async def look(world):
    return await queries.get(world.platform, world.admin, "default", "coder")


async def test_a_revision_keeps_the_defaults_it_was_admitted_with(running):
    running.drivers.sandbox.startup = []
    found = await look(running)
    assert [rule["name"] for rule in found.in_force.snapshot.defaults] == ["packages"]
    assert (found.in_force.origin, found.draft_applied, found.live.kind) == (
        "admitted", True, "observed",
    )  # fmt: skip
    await put(running, [RULE])
    assert (await apply(running)).state == "confirmed"
    (sent,) = running.drivers.sandbox.sent
    assert [rule["name"] for rule in sent.snapshot.defaults] == ["packages"]


async def test_draft_then_in_force_then_kept_by_a_deploy(running):
    denied = await ask(running)
    assert (denied.allowed, denied.sentence.startswith("Denied: /usr/bin/curl")) == (False, True)
    draft = await put(running, [RULE], expected_generation=1)
    assert draft.generation == 2
    assert (await look(running)).draft_applied is False
    assert not (await ask(running)).allowed
    assert (await ask(running, basis="draft")).allowed
    done = await apply(running, expected_generation=2)
    found = await look(running)
    assert (found.in_force.origin, found.in_force.operation_id) == ("applied", done.operation_id)
    assert (found.draft_applied, found.live.observation.matches) == (True, True)
    assert (await ask(running)).rule == "docs"
    revision = await deployed(running, await agents_get(running))
    found = await look(running)
    assert (found.in_force.revision_id, found.in_force.origin) == (revision.id, "admitted")
    assert [rule["name"] for rule in found.in_force.snapshot.additions] == ["docs"]
    trail = await running.rows(
        "SELECT action, outcome, details FROM occ.audit_events WHERE action LIKE '%%network_policy%%'"
        " OR details ? 'networkPolicyOfAgentId' ORDER BY seq"
    )
    assert [row["action"] for row in trail] == [
        "openclaw.configurations.update",
        "openclaw.agents.network_policy.apply",
        "openclaw.agents.network_policy.apply.finish",
    ]
    assert trail[1]["details"]["operationId"] == done.operation_id


async def agents_get(world):
    async with world.platform.db.read() as reader:
        return await agent_rows.find(reader, world.namespace, "coder")


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        ({**RULE, "binaries": []}, "/additions/0/binaries"),
        ({**RULE, "endpoints": [{"host": "10.0.0.1", "ports": [443]}]}, "/additions/0/endpoints/0/host"),
        ({**RULE, "endpoints": [{"host": "*.com", "ports": [443]}]}, "/additions/0/endpoints/0/host"),
        ({**RULE, "endpoints": [{"host": "a..b.com", "ports": [443]}]}, "/additions/0/endpoints/0/host"),
        ({**RULE, "endpoints": [{"host": "a.example.com", "ports": ["443-444"]}]}, "/additions/0/endpoints/0/ports/0"),
        ({**RULE, "name": "packages"}, "/additions/0/name"),
        ({**RULE, "binaries": [{"path": "/opt/*"}], "endpoints": [
            {"host": "api.openai.com", "ports": [443], "tls": "skip"}]}, "/additions/0/endpoints/0"),
        ({**RULE, "extra": 1}, "/additions/0/extra"),
        ({**RULE, "name": "sk-0123456789abcdef0123"}, "/additions/0/name"),
    ],
)  # fmt: skip
async def test_what_may_not_be_added_is_named_by_its_place(running, rule, where):
    with pytest.raises((ConfigurationRefused, InvalidRequest)) as refused:
        await put(running, [rule])
    assert [one.path for one in refused.value.details] == [where]
    assert (await look(running)).draft.generation == 1


async def test_a_shared_configuration_is_not_changed_through_one_agent(running):
    agent = await agents_get(running)
    draft = agents.AgentDraft(
        name="other", configuration=agent.configuration_id,
        harness_auth=HarnessAuth(method="credential_source", source_id=agent.credential_sources[0]),
        credential_sources=agent.credential_sources,
    )  # fmt: skip
    other = await agents.create(running.platform, running.admin, "default", draft)
    with pytest.raises(Conflict, match=other.id):
        await put(running, [RULE])


async def test_generations_and_permissions(running):
    with pytest.raises(PreconditionFailed):
        await put(running, [RULE], expected_generation=7)
    await put(running, [RULE])
    with pytest.raises(PreconditionFailed):
        await apply(running, expected_generation=1)
    viewer = await running.person("viewer")
    for refused in (
        commands.set_additions(running.platform, viewer, "default", "coder", []),
        commands.apply(running.platform, viewer, "default", "coder"),
        queries.recommendations(running.platform, viewer, "default", "coder", 5),
    ):
        with pytest.raises(Forbidden):
            await refused
    assert (await queries.get(running.platform, viewer, "default", "coder")).agent_id
    role = await access.create_role(
        running.platform, running.admin, "default", name="half",
        permissions=tuple(
            Permission(action=action, resource_kind=kind)
            for action, kind in (("deploy", "agent"), ("read", "agent"))
        ),
    )  # fmt: skip
    half = await running.person(None)
    await access.create_binding(
        running.platform, running.admin, "default",
        access.BindingDraft(
            subject_id=half.principal_id, role_id=role.id, resource_kind="agent", resource_id=(await agents_get(running)).id
        ),
    )  # fmt: skip
    with pytest.raises(Forbidden):
        await apply(running, half)
    assert not running.drivers.sandbox.sent


async def test_a_lost_answer_is_the_same_operation_again(running):
    sandbox = running.drivers.sandbox
    await put(running, [RULE])
    sandbox.fail["after:apply_network_policy"] = OSError("lost")
    with pytest.raises(Dependency, match="not known"):
        await apply(running)
    sandbox.fail.clear()
    found = await look(running)
    assert found.in_force.origin == "admitted"
    unknown = found.in_force.unconfirmed_operation_id
    assert unknown == sandbox.sent[0].operation_id
    sandbox.current = sandbox.sent[0].snapshot
    done = await apply(running)
    assert (done.operation_id, done.state, len(sandbox.sent)) == (unknown, "confirmed", 1)
    assert (await look(running)).in_force.unconfirmed_operation_id is None


async def test_one_idempotency_key_is_one_operation(running):
    await put(running, [RULE])
    one = await apply(running, idempotency_key="k1")
    await put(running, [])
    again = await apply(running, idempotency_key="k1")
    assert (again.operation_id, len(running.drivers.sandbox.sent)) == (one.operation_id, 1)
    other = await apply(running, idempotency_key="k2")
    assert other.operation_id != one.operation_id
    assert (await look(running)).in_force.snapshot.additions == []


async def test_accepted_is_not_in_force(running):
    await put(running, [RULE])
    running.drivers.sandbox.states = deque(["loaded", "pending"])
    assert (await apply(running)).state == "pending"
    assert (await look(running)).in_force.origin == "admitted"
    running.drivers.sandbox.states = deque(["loaded"])
    assert (await apply(running)).state == "confirmed"
    assert len(running.drivers.sandbox.sent) == 1


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (DriverRefusal("RECONCILIATION_PENDING", Tempo.RETRY), Conflict),
        (ConfigurationRefused(), Conflict),
        (NotVisible("the Sandbox"), Dependency),
    ],
)
async def test_what_the_provider_refuses_is_not_in_force(running, error, refusal):
    await put(running, [RULE])
    running.drivers.sandbox.fail["apply_network_policy"] = error
    with pytest.raises(refusal):
        await apply(running)
    assert (await look(running)).in_force.origin == "admitted"


async def test_without_the_ability_every_member_says_so(world):
    await world.agent()
    world.drivers.sandbox.network_policy = NetworkPolicySupport(
        wildcards=False, port_ranges=False, live=False
    )
    with pytest.raises(NotOffered):
        await apply(world)
    with pytest.raises(NotOffered):
        await queries.recommendations(world.platform, world.admin, "default", "coder", 5)

    class Plain:
        id, implementation, facets = "plain", "plain", world.drivers.sandbox.facets

        async def cleanup(self, context):
            pass

    drivers = replace(world.platform.drivers, sandbox=abilities_of(Plain()))
    world.platform = replace(world.platform, drivers=drivers)
    for refused in (look(world), put(world, []), ask(world), apply(world)):
        with pytest.raises(NotOffered):
            await refused


async def test_a_proposed_rule_was_tried(running):
    await put(running, [RULE])
    await apply(running)
    post = await ask(running, method="post", path="/upload")
    assert post.sentence == (
        "Denied: /usr/bin/curl with POST /upload at docs.example.com:443; POST /upload is not allowed by 'docs'."
    )
    assert post.addition == {
        "name": "docs-example-com", "binaries": [{"path": "/usr/bin/curl"}],
        "endpoints": [
            {"host": "docs.example.com", "ports": [443], "protocol": "rest", "access": "read_write", "path": "/upload"}
        ],
    }  # fmt: skip
    await put(running, [RULE, post.addition])
    assert (await ask(running, method="POST", path="/upload", basis="draft")).allowed
    other = await ask(running, binary="/usr/bin/wget", method="GET")
    assert "not in rule 'docs'" in other.sentence
    assert other.addition["endpoints"][0]["access"] == "read_only"
    inside = await ask(running, host="db.svc.cluster.local")
    assert (inside.addition, inside.note) == (
        None, "No addition can allow this: a name that is not public.",
    )  # fmt: skip
    model = await ask(running, host="api.openai.com", binary="/opt/codex", method="POST")
    assert model.allowed, "the layer of the credential source is part of the answer"
    with pytest.raises(InvalidRequest) as wrong:
        await ask(running, binary="curl", path="/x")
    assert [one.path for one in wrong.value.details] == ["/query/binary", "/query/method"]


async def test_suggestions_are_bounded_and_without_secrets(running):
    hostile = "key sk-0123456789abcdef0123456789 \x1b[2J" + "x" * 500
    running.drivers.sandbox.suggested = tuple(
        PolicyRecommendation(
            id=f"c{number}", state="pending", host="h.example.com", port=443, binary="/b", reason=hostile
        )
        for number in range(9)
    )  # fmt: skip
    found = await queries.recommendations(running.platform, running.admin, "default", "coder", 3)
    assert len(found.items) == 3
    reason = found.items[0].reason
    assert "sk-0123" not in reason
    assert "\x1b" not in reason
    assert len(reason) <= 200


async def test_reading_and_explaining_write_nothing(running):
    async def dump():
        return await running.rows(
            "SELECT (SELECT count(*) FROM occ.audit_events) AS audit,"
            " (SELECT count(*) FROM occ.network_policy_applications) AS applications"
        )

    before = await dump()
    await look(running)
    await ask(running)
    await queries.recommendations(running.platform, running.admin, "default", "coder", 3)
    assert await dump() == before


async def test_a_draft_written_as_a_configuration_is_the_same_draft(running):
    agent = await agents_get(running)
    document = await configuration_queries.get(
        running.platform, running.admin, "default", agent.configuration_id
    )
    change = configurations.ConfigurationChange(
        values={**document.values, "sandbox-network-policy": {"additions": [RULE]}}
    )
    await configurations.update(running.platform, running.admin, "default", document.id, change)
    assert (await look(running)).draft.additions == [RULE]
    await put(running, [])
    document = await configuration_queries.get(
        running.platform, running.admin, "default", document.id
    )
    assert "sandbox-network-policy" not in document.values
