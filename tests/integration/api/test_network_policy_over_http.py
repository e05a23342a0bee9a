"""The network policy's routes, and `?dryRun=true` on any route that changes something."""

import sys

import pytest

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres

ONE = "/namespaces/default/agents/demo"
POLICY = f"{ONE}/network-policy"
RULE = {
    "name": "docs",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [{"host": "docs.example.com", "ports": [443]}],
}
QUESTION = {"binary": "/usr/bin/curl", "host": "docs.example.com"}


@pytest.fixture
async def serving(api, agent):
    answer = await api.post(f"{ONE}/deploy")
    assert answer.status_code == 202, answer.text

    async def look():
        found = (await api.get(ONE)).json()["data"]
        return found.get("activeRevisionId")

    return await served.eventually(look)


async def test_from_denied_to_in_force(api, serving):
    why = (await api.get(f"{POLICY}/explain", params=QUESTION)).json()["data"]
    assert (why["allowed"], why["revisionId"]) == (False, serving)
    assert why["addition"]["name"] == "docs-example-com"
    first = await api.get(POLICY)
    assert first.headers["etag"] == '"1"'
    assert first.json()["data"]["inForce"]["origin"] == "admitted"

    stale = await api.put(POLICY, json={"additions": [RULE]}, headers={"if-match": '"9"'})
    assert stale.status_code == 412
    wrong = await api.put(
        POLICY, json={"additions": [{**RULE, "endpoints": [{"host": "10.0.0.1", "ports": [1]}]}]}
    )
    assert wrong.status_code == 400
    assert wrong.json()["error"]["details"] == [
        {"path": "/additions/0/endpoints/0/host", "code": "INVALID_VALUE"}
    ]
    put = await api.put(POLICY, json={"additions": [RULE]}, headers={"if-match": '"1"'})
    assert (put.status_code, put.headers["etag"]) == (200, '"2"'), put.text
    draft = await api.get(f"{POLICY}/explain", params={**QUESTION, "basis": "draft"})
    assert draft.json()["data"]["allowed"] is True

    applied = await api.post(f"{POLICY}/apply", headers={"if-match": '"2"'})
    assert applied.status_code == 200, applied.text
    assert applied.json()["data"]["state"] == "confirmed"
    after = (await api.get(POLICY)).json()["data"]
    assert after["draftApplied"] is True
    assert after["inForce"]["operationId"] == applied.json()["data"]["operationId"]
    assert after["live"]["observation"]["matches"] is True
    suggested = (await api.get(f"{POLICY}/recommendations")).json()["data"]
    assert suggested["untrusted"] is True
    assert suggested["recommendations"][0]["host"] == "h.example.com"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"port": 0}, "/query/port"),
        ({"binary": "curl"}, "/query/binary"),
        ({"basis": "other"}, "/query/basis"),
        ({"method": "GET", "path": "/%zz"}, "/query/path"),
    ],
)
async def test_a_question_that_makes_no_sense(api, serving, change, path):
    answer = await api.get(f"{POLICY}/explain", params={**QUESTION, **change})
    assert answer.status_code == 400, answer.text
    assert [one["path"] for one in answer.json()["error"]["details"]] == [path]


async def test_dry_runs(api, agent):
    dry = {"dryRun": "true"}
    for method, path, body in (
        ("POST", f"{ONE}/deploy", None),
        ("POST", f"{ONE}/stop", None),
        ("PUT", POLICY, {"additions": [RULE]}),
        ("DELETE", ONE, None),
        ("POST", "/namespaces", {"name": "team"}),
        ("POST", "/namespaces/default/secrets", {"name": "k2", "value": "v"}),
        ("PATCH", "/namespaces/default/secrets/k", {"value": "v"}),
        ("POST", "/api/auth/service-keys", None),
    ):
        answer = await api.request(method, path, params=dry, json=body)
        if path.startswith("/api"):
            assert answer.status_code == 400, "the schema is checked too"
            continue
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"] is None
        assert answer.json()["meta"]["dryRun"] is True
    refused = await api.post(
        "/namespaces/default/secrets", params=dry, json={"name": "k", "value": "v"}
    )
    assert refused.status_code == 409
    assert (await api.get(f"{ONE}/revisions")).json()["data"] == []
    assert (await api.get("/namespaces/team")).status_code == 404
    odd = await api.post(f"{ONE}/deploy", params={"dryRun": "yes"})
    assert odd.json()["error"]["details"] == [{"path": "/query/dryRun", "code": "INVALID_TYPE"}]
    unknown = await api.get(ONE, params=dry)
    assert unknown.status_code == 400, "a read has nothing to rehearse"
