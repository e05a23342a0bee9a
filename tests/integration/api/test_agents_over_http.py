"""An Agent's life through the real API, core, worker and PostgreSQL; only the Sandbox provider is in memory."""

import asyncio
import json
import sys

import pytest

from oce.contracts.sandbox import HarnessStatus

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres
BASE = "/namespaces/default"


async def events(response):
    """Return (name, id, data) of each event of a finished stream, and how many comments came between."""
    found, name, identifier, comments = [], "", "", 0
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        if line.startswith(":"):
            comments += 1
        elif field == "event":
            name = value.strip()
        elif field == "id":
            identifier = value.strip()
        elif field == "data":
            found.append((name, identifier, json.loads(value)))
    return found, comments


async def deployed(api, agent="demo"):
    revision = await api.post(f"{BASE}/agents/{agent}/deploy")
    assert revision.status_code == 202, revision.text
    path = f"{BASE}/agents/{agent}/deployments/{revision.json()['data']['id']}/events"
    async with api.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found, _ = await events(response)
    return revision.json()["data"], found


async def test_a_deploy_is_followed_to_its_end_and_taken_up_again(api, agent):
    revision, found = await deployed(api)
    assert revision["revision"] == 1
    name, last, view = found[-1]
    assert (name, view["status"], view["progress"], view["error"]) == (
        *("deployment", "succeeded", None, None),
    )
    steps = [item for item in found if item[0] == "step"]
    assert [int(item[1]) for item in steps] == sorted(item[2]["seq"] for item in steps)
    assert steps
    path = f"{BASE}/agents/demo/deployments/{revision['id']}/events"
    async with api.stream("GET", path, headers={"last-event-id": steps[-1][1]}) as response:
        again, _ = await events(response)
    assert [item[0] for item in again] == ["deployment"]
    assert again[0][1] == last

    agent = (await api.get(f"{BASE}/agents/demo")).json()["data"]
    assert agent["activeRevisionId"] == revision["id"]
    assert agent["desiredRuntimeState"] == "running"
    status = (await api.get(f"{BASE}/agents/demo/harness-status")).json()["data"]
    assert (status["status"], status["harness"]["state"]) == ("observed", "running")
    listed = (await api.get(f"{BASE}/agents/demo/revisions")).json()["data"]
    assert [item["id"] for item in listed] == [revision["id"]]
    assert "configuration" not in listed[0]
    full = (await api.get(f"{BASE}/agents/demo/revisions/{revision['id']}")).json()["data"]
    assert full["configuration"]["agents"]["defaults"]["model"]["primary"] == "openai/gpt-test"
    assert "sk-value" not in json.dumps(full)

    stopped = await api.post(f"{BASE}/agents/demo/stop")
    assert (stopped.status_code, stopped.json()["data"]["desiredRuntimeState"]) == (202, "stopped")

    async def idle():
        return "activeRevisionId" not in (await api.get(f"{BASE}/agents/demo")).json()["data"]

    await served.eventually(idle)
    assert (await api.delete(f"{BASE}/agents/demo")).status_code == 202

    async def gone():
        return (await api.get(f"{BASE}/agents/demo")).status_code == 404

    await served.eventually(gone)


async def test_a_stream_ends_when_its_key_is_revoked(world, api, agent):
    world.provider.statuses = [HarnessStatus(state="starting")]
    principal = (await api.post("/iam/service-principals")).json()["data"]["id"]
    bound = await api.post(
        "/iam/access-bindings",
        json={"subjectKind": "identity", "subjectId": principal, "roleId": "role_viewer"},
    )
    assert bound.status_code == 201, bound.text
    issued = await api.post(
        "/api/auth/service-keys", json={"servicePrincipalId": principal, "name": "watcher"}
    )
    revision = (await api.post(f"{BASE}/agents/demo/deploy")).json()["data"]["id"]
    path = f"{BASE}/agents/demo/deployments/{revision}/events"
    async with world.client(issued.json()["data"]["key"]) as watcher:
        watching = asyncio.create_task(collected(watcher, path))
        await asyncio.sleep(0.1)
        binding = bound.json()["data"]["id"]
        assert (await api.delete(f"/iam/access-bindings/{binding}")).status_code == 204
        found = await asyncio.wait_for(watching, 10)
    assert found[-1][0] == "error"
    assert found[-1][2]["code"] in {"FORBIDDEN", "NOT_FOUND"}


async def collected(client, path):
    async with client.stream("GET", path) as response:
        return (await events(response))[0]


async def test_a_stream_of_nothing_is_an_ordinary_refusal(api, agent):
    revision = "rev_00000000-0000-4000-8000-000000000000"
    answer = await api.get(f"{BASE}/agents/demo/deployments/{revision}/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")


async def test_generations_guard_a_configuration_and_an_agent(api, agent):
    read = await api.get(f"{BASE}/configurations/demo")
    assert read.headers["etag"] == '"1"'
    values = {"values": {**read.json()["data"]["values"], "logging": {"level": "debug"}}}
    path = f"{BASE}/configurations/demo"
    first = await api.patch(path, json=values, headers={"if-match": read.headers["etag"]})
    assert (first.status_code, first.headers["etag"]) == (200, '"2"')
    late = await api.patch(path, json=values, headers={"if-match": read.headers["etag"]})
    assert (late.status_code, late.json()["error"]["code"]) == (412, "PRECONDITION_FAILED")
    assert (await api.patch(path, json=values, headers={"if-match": "*"})).status_code == 200

    read = await api.get(f"{BASE}/agents/demo")
    change = {"configurationId": "demo", "harnessAuth": None, "credentialSources": []}
    path = f"{BASE}/agents/demo"
    first = await api.patch(path, json=change, headers={"if-match": read.headers["etag"]})
    assert first.status_code == 200
    assert first.json()["data"]["harnessAuth"] is None
    late = await api.patch(path, json=change, headers={"if-match": read.headers["etag"]})
    assert late.status_code == 412
    late = await api.post(f"{path}/deploy", headers={"if-match": read.headers["etag"]})
    assert late.status_code == 412


async def test_an_idempotency_key_gives_the_same_resource_and_refuses_another_request(api, agent):
    headers = {"idempotency-key": "once-1"}
    body = {"name": "again", "value": "one"}
    first = await api.post(f"{BASE}/secrets", json=body, headers=headers)
    second = await api.post(f"{BASE}/secrets", json=body, headers=headers)
    assert first.json()["data"]["id"] == second.json()["data"]["id"]
    other = await api.post(f"{BASE}/secrets", json={**body, "name": "other"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")
    first = await api.post(f"{BASE}/agents/demo/deploy", headers=headers)
    second = await api.post(f"{BASE}/agents/demo/deploy", headers=headers)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["data"]["id"] == second.json()["data"]["id"]


async def test_pages_follow_each_other_and_a_foreign_cursor_is_refused(api, ready):
    for number in range(5):
        body = {"kind": "agent", "values": {}, "name": f"c{number}"}
        assert (await api.post(f"{BASE}/configurations", json=body)).status_code == 201
    names, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await api.get(f"{BASE}/configurations", params=query)).json()
        names += [item["name"] for item in page["data"]]
        assert all("values" not in item for item in page["data"])
        cursor = page["meta"].get("nextCursor")
        if cursor is None:
            break
        foreign = await api.get(f"{BASE}/secrets", params={"cursor": cursor})
        assert foreign.status_code == 400
    assert names == [f"c{number}" for number in range(5)]


async def test_refusals_of_the_real_core_name_the_place(api, ready):
    long = await api.post(f"{BASE}/agents", json={"name": "n" * 300, "configurationId": "c"})
    assert long.json()["error"]["details"] == [{"path": "/name", "code": "TOO_LONG"}]
    secret = (await api.post(f"{BASE}/secrets", json={"name": "k", "value": "v"})).json()["data"]
    body = {
        "kind": "agent",
        "values": {},
        "secretBindings": {"LD_PRELOAD": {"source": secret["ref"]}},
    }
    reserved = await api.post(f"{BASE}/configurations", json=body)
    assert reserved.status_code == 400
    assert reserved.json()["error"]["details"] == [
        {"path": "/secretBindings/LD_PRELOAD", "code": "INVALID_VALUE"}
    ]
    assert "reserved" in reserved.json()["error"]["message"]
    foreign = {**secret["ref"], "namespaceId": "ns_00000000-0000-4000-8000-000000000000"}
    body["secretBindings"] = {"TOKEN": {"source": foreign}}
    refused = await api.post(f"{BASE}/configurations", json=body)
    assert refused.json()["error"]["details"] == [
        {"path": "/secretBindings/TOKEN/source/namespaceId", "code": "INVALID_VALUE"}
    ]
    unknown = await api.post(
        f"{BASE}/configurations",
        json={"kind": "agent", "values": {"agents": {"defaults": {"x": 1}}}},
    )
    assert unknown.json()["error"]["details"] == [
        {"path": "/values/agents/defaults/x", "code": "UNKNOWN_FIELD"}
    ]
    twice = await api.post(f"{BASE}/secrets", json={"name": "k", "value": "v"})
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "RESOURCE_CONFLICT")
    full = await api.delete("/namespaces/default")
    assert (full.status_code, full.json()["error"]["code"]) == (409, "NAMESPACE_NOT_EMPTY")
    assert secret["id"] in full.json()["error"]["message"]


async def test_somebody_without_grants_is_refused_alike_for_what_is_there_and_what_is_not(
    world, api, agent
):
    principal = (await api.post("/iam/service-principals")).json()["data"]["id"]
    issued = await api.post(
        "/api/auth/service-keys", json={"servicePrincipalId": principal, "name": "nobody"}
    )
    async with world.client(issued.json()["data"]["key"]) as nobody:
        there = await nobody.get(f"{BASE}/agents/demo")
        absent = await nobody.get(f"{BASE}/agents/absent")
        assert there.status_code == absent.status_code == 403
        assert there.json()["error"] == absent.json()["error"]
        assert (await nobody.get("/namespaces")).json()["data"] == []
        assert (await nobody.get("/audit")).status_code == 403
        revoked = await api.delete(f"/api/auth/service-keys/{issued.json()['data']['id']}")
        assert revoked.json()["data"] == {"id": issued.json()["data"]["id"], "revoked": True}
        assert (await nobody.get("/namespaces")).status_code == 401


async def test_what_was_done_is_in_the_audit_trail(api, agent):
    page = (await api.get("/audit", params={"resourceId": agent["id"]})).json()["data"]
    assert [(item["action"], item["outcome"]) for item in page] == [
        ("openclaw.agents.create", "success")
    ]
    assert page[0]["requestId"].startswith("req_")
    assert "sk-value" not in json.dumps((await api.get("/audit")).json())
