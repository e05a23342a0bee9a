"""Invariant 10: reads write nothing. The whole database is compared before and after each of them.

What is sent is made from the OpenAPI documents of the public and the private application, so a new route is either asked here or makes a
test fail. The reads that do leave a trace are named, each with the reason: in `TRACES`, and in the two tests about who asks.
"""

import sys
from collections import ChainMap, Counter
from dataclasses import dataclass
from urllib.parse import parse_qsl

import httpx
import psycopg
import pytest
from psycopg import sql

from oce.api.private import create_private_app
from oce.contracts.sandbox import LogChunk, LogLine
from oce.domain.clock import SystemClock
from oce.domain.secret import SecretText
from oce.observability.metrics import new_registry

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres
BASE = "/namespaces/default"
ONE = "/namespaces/{namespace}/agents/{agent}"
TOKEN = "t" * 32

# Who looked at a log stays visible: one event of kind `access`, written before anything is shown.
TRACES = {f"{ONE}/logs": {"occ.audit_events": (0, 1)}}
# Where success alone says too little. Withdrawal is refused by code in this build; it has no other answer.
SAYS = {
    "/internal/agent-access": '"allowed":true',
    f"{ONE}/deployments/{{revision}}/events": '"status":"succeeded"',
    f"{ONE}/harness-status": '"status":"observed"',
    f"{ONE}/credential-sources/{{source}}/withdraw": '"NOT_IMPLEMENTED"',
    f"{ONE}/credential-sources/{{source}}/withdrawal": '"NOT_IMPLEMENTED"',
}
# Of an Agent that was never deployed there is no log, no policy in force, and nobody who suggests one.
AT_REST = SAYS | {
    f"{ONE}/harness-status": '"status":"unobserved"',
    f"{ONE}/logs": '"RUNTIME_LOGS_SOURCE_UNAVAILABLE"',
    f"{ONE}/network-policy/explain": '"RESOURCE_CONFLICT"',
    f"{ONE}/network-policy/recommendations": '"RESOURCE_CONFLICT"',
}
# Neither a GET nor with `?dryRun`, and sent as it is: the one only asks, the other is refused.
ASKED = {"/internal/agent-access", f"{ONE}/credential-sources/{{source}}/withdraw"}

NAMES = dict(parse_qsl("namespace=default&agent=demo&configuration=demo&secret=k&source=openai"))
QUERY = dict(
    parse_qsl(
        "binary=/usr/bin/curl&host=docs.example.com&port=443&method=GET&path=/&basis=draft"
        "&limit=1&minLevel=debug&since=2020-01-01T00:00:00Z&until=2099-01-01T00:00:00Z"
        "&outcome=success&action=openclaw.agents.create&resourceKind=agent"
    )
)
VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-other"}}}}
RULE = {"name": "docs", "binaries": [{"path": "/usr/bin/curl"}]}
RULE |= {"endpoints": [{"host": "docs.example.com", "ports": [443]}]}
SECRET = {"kind": "secret", "namespaceId": "default", "id": "k"}
SOURCE = {"name": "spare", "type": "openai", "secrets": {"api_key": SECRET}}
BINDING = {"subjectKind": "identity", "roleId": "role_viewer"}
ROLE = {"permissions": [{"action": "read", "resourceKind": "agent"}]}


class LoggingDriver(served.PolicedSandboxDriver):
    async def read_sandbox_logs(self, context, request):
        now = SystemClock().now()
        line = LogLine(time=now, level="info", target="t", message="hello", source="sandbox")
        return LogChunk(sandbox="s", observed_at=now, lines=(line,), examined=1)


class Dump:
    """Every row of every table there is, with the transaction that wrote it: an UPDATE to the same values shows too."""

    def __init__(self, connection):
        self.run = connection.execute
        tables = self.run(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        one = sql.SQL("SELECT {}, t.xmin::text, t::text FROM {} t")
        self._rows = sql.SQL(" UNION ALL ").join(
            one.format(sql.Literal(".".join(name)), sql.Identifier(*name)) for name in tables
        )
        self._last = Counter()
        self.changes()

    def changes(self):
        """Return {table: (rows gone, rows new)} since the last look."""
        before, self._last = self._last, Counter(self.run(self._rows).fetchall())
        gone = Counter(row[0] for row in (before - self._last).elements())
        new = Counter(row[0] for row in (self._last - before).elements())
        return {table: (gone[table], new[table]) for table in gone | new}

    def faults(self, answer, says=None, traces=None):
        """Return a sentence unless the answer is a success (or says that) and nothing but `traces` changed."""
        changes = self.changes()
        right = answer.is_success if says is None else says in answer.text
        if right and changes == (traces or {}):
            return []
        sent = f"{answer.request.method} {answer.request.url}"
        wrong = "" if right else f", and said {answer.text[:300]}"
        return [f"{sent}: {answer.status_code}, changed {changes or 'nothing'}{wrong}"]

    async def settled(self):
        """Wait until the worker has nothing left to do: what it writes is not the doing of a read."""

        async def look():
            unfinished = "SELECT 1 FROM occ.controller_work WHERE completed_at IS NULL"
            return self.run(unfinished).fetchone() is None

        await served.eventually(look)

    def start(self, used="1 hour"):
        """Look from here on. Keys were last used so long from now: a use is noted once a minute, by default not during a test."""
        self.run("UPDATE occ.service_keys SET last_used_at = now() + %s::interval", [used])
        self.changes()


@dataclass(kw_only=True)
class Installed:
    """What was prepared, by parameter: in the Namespace, in the Installation, and what a deletion finds free."""

    clients: dict
    ids: dict
    everywhere: dict
    spare: dict

    def operations(self):
        """Yield (client, method, path, its parameters besides headers, whether it takes a body)."""
        for client, document in self.clients.items():
            for path, methods in document["paths"].items():
                for method, one in methods.items():
                    parameters = {
                        item["name"]: item
                        for item in one.get("parameters", ())
                        if item["in"] != "header"
                    }
                    yield client, method.upper(), path, parameters, "requestBody" in one

    def filled(self, path, parameters, given, *, optional=False):
        """Return path and query with the parameters filled in."""
        here = self.everywhere if path.startswith("/iam/") else {}
        values, url, query = ChainMap(given, here, self.ids, QUERY), path, {}
        for name, one in parameters.items():
            if name in {"cursor", "dryRun"}:
                continue
            assert name in values, f"{path}: this test does not know what to put for `{name}`"
            if one["in"] == "path":
                url = url.replace(f"{{{name}}}", values[name])
            elif one["required"] or optional:
                query[name] = values[name]
        return url, query


@pytest.fixture
async def world(db, monkeypatch):
    monkeypatch.setattr(served, "PolicedSandboxDriver", LoggingDriver)
    async with served.control_plane(db) as world:
        yield world


@pytest.fixture
def dump(test_database):
    with psycopg.connect(test_database.superuser_url, autocommit=True) as connection:
        yield Dump(connection)


async def made(api, path, body=None, method="POST"):
    answer = await api.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json()["data"]


async def access(api, place):
    principal = (await made(api, f"{place}/iam/service-principals"))["id"]
    bound = {**BINDING, "subjectId": principal}
    binding = await made(api, f"{place}/iam/access-bindings", bound)
    return {"principal": principal, "binding": binding["id"]}


async def serving(api, dump):
    """Deploy, put a policy in force, and leave another one in the draft."""
    revision = (await made(api, f"{BASE}/agents/demo/deploy"))["id"]
    await dump.settled()
    policy = f"{BASE}/agents/demo/network-policy"
    await made(api, policy, {"additions": [RULE]}, "PUT")
    await made(api, f"{policy}/apply")
    await made(api, policy, {"additions": []}, "PUT")
    return revision


async def unused(api):
    """Make what nothing refers to, and an Agent that was never deployed."""
    await made(api, f"{BASE}/secrets", {"name": "spare", "value": "v"})
    await made(api, f"{BASE}/credential-sources", SOURCE)
    for name in ("spare", "idle"):
        document = {"name": name, "kind": "agent", "values": VALUES}
        await made(api, f"{BASE}/configurations", document)
    idle = {"name": "idle", "configurationId": "idle", "executionMode": "dedicated"}
    await made(api, f"{BASE}/agents", idle)
    await made(api, "/namespaces", {"name": "empty"})
    spare = dict.fromkeys(("secret", "source", "configuration"), "spare")
    return spare | {"agent": "idle", "namespace": "empty"}


@pytest.fixture
async def installed(world, api, agent, dump):
    ids = {"agent": agent["id"], "resourceId": agent["id"], "actorId": world.administrator}
    ids |= {"namespace": agent["namespaceId"], "configuration": agent["configurationId"]}
    for name, path in (("secret", "secrets/k"), ("source", "credential-sources/openai")):
        ids[name] = (await made(api, f"{BASE}/{path}", method="GET"))["id"]
    ids |= await access(api, BASE) | {"revision": await serving(api, dump)}
    ids["role"] = (await made(api, f"{BASE}/iam/roles", ROLE))["id"]
    everywhere = await access(api, "") | {"role": "role_viewer"}
    key = {"name": "viewer", "servicePrincipalId": everywhere["principal"]}
    ids["key"] = (await made(api, "/api/auth/service-keys", key))["id"]
    spare = await unused(api)
    await dump.settled()
    dump.start()
    private = create_private_app(world.platform, SecretText(TOKEN), new_registry())
    transport = httpx.ASGITransport(private)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://private", headers={"authorization": f"Bearer {TOKEN}"}
    ) as client:
        clients = {api: world.app.openapi(), client: private.openapi()}
        yield Installed(clients=clients, ids=ids, everywhere=everywhere, spare=spare)


def views(path):
    """Yield (parameters, whether optional ones are sent too, what is said) of a read: by name, by id, of an Agent at rest."""
    yield NAMES, False, SAYS
    yield {}, True, SAYS
    if path.startswith(ONE) and "{revision}" not in path:
        yield {"agent": "idle"}, False, AT_REST


async def test_no_read_leaves_a_trace_that_is_not_named(installed, dump):
    faults, asked = [], set()
    for client, method, path, parameters, _ in installed.operations():
        for given, optional, says in views(path) if method == "GET" else ():
            url, query = installed.filled(path, parameters, given, optional=optional)
            answer = await client.get(url, params=query)
            traces = TRACES.get(path) if answer.is_success else None
            faults += dump.faults(answer, says.get(path), traces)
            if "nextCursor" in answer.text:
                query["cursor"] = answer.json()["meta"]["nextCursor"]
                faults += dump.faults(await client.get(url, params=query))
            asked.add(path)
    assert not faults, "\n".join(faults)
    assert asked | ASKED >= TRACES.keys() | AT_REST.keys(), "an exception names no route"


def bodies(principal, key):
    """Return what the other operations are sent, by method and the end of the path."""
    return {
        "POST namespaces": {"name": "fresh"},
        "POST configurations": {"name": "fresh", "kind": "agent", "values": VALUES},
        "PATCH {configuration}": {"values": VALUES},
        "POST secrets": {"name": "fresh", "value": "v"},
        "PATCH {secret}": {"value": "v"},
        "POST credential-sources": {**SOURCE, "name": "fresh"},
        "PATCH {source}": {},
        "POST agents": {"name": "fresh", "configurationId": "demo", "executionMode": "dedicated"},
        "PATCH {agent}": {"configurationId": "demo"},
        "PUT network-policy": {"additions": [RULE]},
        "POST roles": ROLE,
        "POST access-bindings": {**BINDING, "subjectId": principal},
        "POST service-principals": {},
        "POST service-keys": {"name": "fresh", "servicePrincipalId": principal},
        "POST agent-access": {"apiKey": key, "namespace": "default", "agent": "demo"},
    }


async def test_no_dry_run_leaves_a_trace_and_no_question_that_is_a_post(installed, world, dump):
    faults, known = [], bodies(installed.everywhere["principal"], world.key)
    for client, method, path, parameters, takes_body in installed.operations():
        if method == "GET":
            continue
        end = path.rpartition("/")[2]
        free = installed.spare if method == "DELETE" else {}
        last = {name: one for name, one in free.items() if f"{{{name}}}" == end}
        url, _ = installed.filled(path, parameters, last)
        body = known.get(f"{method} {end}")
        assert takes_body == (body is not None), f"this test knows no body for {method} {path}"
        dry = {"dryRun": "true"} if "dryRun" in parameters else {}
        assert dry or path in ASKED, f"{method} {path} takes no ?dryRun: does it only ask?"
        headers = {"idempotency-key": "dry"}
        answer = await client.request(method, url, params=dry, json=body, headers=headers)
        faults += dump.faults(answer, '"dryRun":true' if dry else SAYS[path])
    assert not faults, "\n".join(faults)


async def test_a_refused_read_leaves_the_denial_and_nothing_else(world, api, agent, dump):
    principal = (await made(api, "/iam/service-principals"))["id"]
    key = {"servicePrincipalId": principal, "name": "nobody"}
    key = (await made(api, "/api/auth/service-keys", key))["key"]
    dump.start()
    faults = dump.faults(await api.get(f"{BASE}/agents/absent"), '"NOT_FOUND"')
    denial = {"occ.audit_events": (0, 1)}  # who tries what is not allowed is heard
    for text, says, traces in (("key_x.y", "UNAUTHENTICATED", {}), (key, "FORBIDDEN", denial)):
        async with world.client(text) as client:
            answer = await client.get(f"{BASE}/agents/demo")
            faults += dump.faults(answer, f'"{says}"', traces)
    assert not faults, "\n".join(faults)


async def test_a_key_notes_when_it_was_last_used_and_nothing_else(api, ready, dump):
    """At most once a minute, so that a forgotten key can be told from one in use."""
    rest = "SELECT to_jsonb(k) - 'last_used_at' FROM occ.service_keys k"
    before = dump.run(rest).fetchall()
    await dump.settled()
    dump.start(used="-2 minutes")
    faults = dump.faults(await api.get("/backends"), traces={"occ.service_keys": (1, 1)})
    faults += dump.faults(await api.get("/backends"))
    assert not faults, "\n".join(faults)
    assert dump.run(rest).fetchall() == before


async def test_the_comparison_sees_an_update_that_changes_nothing(dump):
    same = "UPDATE occ.iam_roles SET name = name WHERE id = 'role_viewer'"
    dump.run(same)
    assert dump.changes() == {"occ.iam_roles": (1, 1)}
    dump.run(f"BEGIN; {same}; ROLLBACK")
    assert dump.changes() == {}
