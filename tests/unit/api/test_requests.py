"""The mapping table from a wrong request to its details, through the real pipeline."""

import json

import pytest
from pydantic import ValidationError

from oce.api.requests import AgentCreate, InitialWorkspaceFiles
from oce.domain.resources import WORKSPACE_FILE_MAX, WORKSPACE_FILES

NS = "/namespaces/default"
AGENT = {"name": "a", "configurationId": "c"}

TABLE = [
    # where, body, details
    ("/namespaces", {}, {("/name", "REQUIRED")}),
    ("/namespaces", {"name": ""}, {("/name", "REQUIRED")}),
    ("/namespaces", {"name": 7}, {("/name", "INVALID_TYPE")}),
    ("/namespaces", {"name": "x" * 201}, {("/name", "TOO_LONG")}),
    ("/namespaces", {"name": "x" * 300}, {("/name", "TOO_LONG")}),
    ("/namespaces", {"name": " x"}, {("/name", "INVALID_FORMAT")}),
    ("/namespaces", {"name": "a\u2028b"}, {("/name", "INVALID_FORMAT")}),
    ("/namespaces", {"name": "a", "nme": 1}, {("/nme", "UNKNOWN_FIELD")}),
    (
        "/namespaces",
        {"name": "a", "existingNamespace": "Not_DNS"},
        {("/existingNamespace", "INVALID_FORMAT")},
    ),
    ("/namespaces", [], {("", "INVALID_TYPE")}),
    (
        f"{NS}/agents",
        {**AGENT, "initialWorkspaceFiles": {"README.md": "x", "SOUL.md": 7}},
        {
            ("/initialWorkspaceFiles/README.md", "UNKNOWN_FIELD"),
            ("/initialWorkspaceFiles/SOUL.md", "INVALID_TYPE"),
        },
    ),
    (
        f"{NS}/agents",
        {**AGENT, "initialWorkspaceFiles": {"SOUL.md": "x" * 16_385}},
        {("/initialWorkspaceFiles/SOUL.md", "TOO_LONG")},
    ),
    (f"{NS}/secrets", {"name": "k", "value": "é" * 40_000}, {("/value", "TOO_LONG")}),
    (f"{NS}/configurations", {"kind": "team", "values": {}}, {("/kind", "INVALID_VALUE")}),
    (
        f"{NS}/configurations",
        {
            "kind": "agent",
            "values": {},
            "secretBindings": {
                "1BAD": {"source": {"kind": "secret", "namespaceId": "default", "id": "s"}}
            },
        },
        {("/secretBindings/1BAD", "INVALID_FORMAT")},
    ),
    (
        f"{NS}/configurations",
        {"kind": "agent", "values": {}, "secretBindings": {"A": {"source": {"kind": "file"}}}},
        {
            ("/secretBindings/A/source/kind", "INVALID_VALUE"),
            ("/secretBindings/A/source/namespaceId", "REQUIRED"),
            ("/secretBindings/A/source/id", "REQUIRED"),
        },
    ),
    (
        f"{NS}/agents",
        {**AGENT, "harnessAuth": {"method": "credential_source"}},
        {("/harnessAuth/sourceId", "REQUIRED")},
    ),
    (
        f"{NS}/agents",
        {**AGENT, "harnessAuth": {"method": "telepathy"}},
        {("/harnessAuth/method", "INVALID_VALUE")},
    ),
    (
        f"{NS}/agents",
        {**AGENT, "harnessAuth": {"sourceId": "x"}},
        {("/harnessAuth/method", "REQUIRED")},
    ),
    (
        f"{NS}/agents",
        {**AGENT, "credentialSources": [{"sourceId": "a"}, {"sourceId": "a"}]},
        {("/credentialSources", "INVALID_VALUE")},
    ),
    (
        f"{NS}/agents",
        {**AGENT, "credentialSources": [{"sourceId": str(n)} for n in range(9)]},
        {("/credentialSources", "TOO_LONG")},
    ),
    (f"{NS}/iam/roles", {"permissions": []}, {("/permissions", "INVALID_VALUE")}),
    (
        "/api/auth/service-keys",
        {"servicePrincipalId": "spn_x", "name": "n" * 33, "expiresIn": 5},
        {("/name", "TOO_LONG"), ("/expiresIn", "INVALID_VALUE")},
    ),
]


@pytest.mark.parametrize(("path", "body", "details"), TABLE)
async def test_a_wrong_request_names_each_place_and_code(api, path, body, details):
    answer = await api.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert {(item["path"], item["code"]) for item in error["details"]} == details
    assert 1 <= len(error["message"]) <= 256


async def test_the_message_tells_three_problems_and_counts_the_rest(api):
    answer = await api.post("/namespaces", json={"name": 1} | {f"x{n}": 0 for n in range(9)})
    message = answer.json()["error"]["message"]
    assert message.endswith("; and 7 more.")
    assert message.count(";") == 3


async def test_values_are_never_repeated_and_keys_only_printable(api):
    marker = "s3cr3t-v4lue"
    bodies = [
        ("/namespaces", {"name": f" {marker}"}),
        (f"{NS}/secrets", {"name": marker * 40, "value": marker}),
        (f"{NS}/agents", {**AGENT, "harnessAuth": {"method": marker}}),
    ]
    for path, body in bodies:
        answer = await api.post(path, json=body)
        assert answer.status_code == 400
        assert marker not in answer.text
    answer = await api.post("/namespaces", json={"name": "a", "k\x1b[2J": 1})
    assert "/k?[2J" in answer.json()["error"]["message"]
    assert answer.json()["error"]["details"] == [{"path": "/k?[2J", "code": "UNKNOWN_FIELD"}]


async def test_a_very_long_path_is_shortened_before_the_wording(api):
    values = {"secretBindings": {"A" * 200: {"source": 1}}, "kind": "agent", "values": {}}
    answer = await api.post(f"{NS}/configurations", json=values)
    message = answer.json()["error"]["message"]
    assert message.startswith("/secretBindings/…: a field inside has the wrong type")


async def test_details_stop_at_thirty_two(api):
    answer = await api.post("/namespaces", json={f"x{n}": 0 for n in range(100)})
    assert len(answer.json()["error"]["details"]) == 32


async def test_json_that_cannot_be_kept_is_refused_before_the_schema(api):
    answer = await api.post(
        "/namespaces",
        content=json.dumps({"name": "a\x00b", "unknown": 1}),
        headers={"content-type": "application/json"},
    )
    assert answer.json()["error"]["details"] == [{"path": "/name", "code": "INVALID_FORMAT"}]


def test_first_files_have_exactly_the_platforms_names_and_hide_their_text():
    names = tuple(one.alias for one in InitialWorkspaceFiles.model_fields.values())
    assert names == WORKSPACE_FILES
    body = {"name": "a", "configurationId": "c"}
    given = {**body, "initialWorkspaceFiles": {"SOUL.md": "private", "USER.md": None}}
    found = AgentCreate.model_validate(given)
    assert found.initial_workspace_files.named() == {"SOUL.md": "private"}
    assert "private" not in repr(found)
    for wrong in ({"soul": "x"}, {"README.md": "x"}, {"SOUL.md": "x" * (WORKSPACE_FILE_MAX + 1)}):
        with pytest.raises(ValidationError) as refused:
            AgentCreate.model_validate({**body, "initialWorkspaceFiles": wrong})
        assert "xx" not in str(refused.value)
