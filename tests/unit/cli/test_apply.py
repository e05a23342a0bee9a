import json

import yaml

from oce.cli.manifests import parse, request
from oce.cli.starter import DEFAULT_MODEL, manifest
from oce.core.configurations.schema import value_problems

DOCUMENTS = """
kind: Agent
name: demo
configuration: demo
harnessAuth: {method: credential_source, source: openai}
credentialSources: [openai]
---
kind: Configuration
name: demo
values: {agents: {defaults: {model: new}}, kept: true}
---
kind: CredentialSource
name: openai
secrets: {api_key: openai-key}
---
kind: Secret
name: openai-key
valueFrom: {file: key.txt}
"""
BASE = "/namespaces/default"
SECRET = {"id": "sec_1", "name": "openai-key"}
SOURCE = {
    "id": "cs_1",
    "name": "openai",
    "type": "openai",
    "config": {},
    "secrets": {"api_key": {"kind": "secret", "namespaceId": "ns_1", "id": "sec_1"}},
}
CONFIGURATION = {
    "id": "cfg_1",
    "name": "demo",
    "generation": 4,
    "values": {"agents": {"defaults": {"model": "old"}}, "kept": True},
    "secretBindings": {},
}
AGENT = {
    "id": "agt_1",
    "name": "demo",
    "generation": 2,
    "configurationId": "cfg_1",
    "executionMode": "dedicated",
    "harnessAuth": {"method": "credential_source", "sourceId": "cs_1"},
    "credentialSources": [{"sourceId": "cs_1"}],
    "desiredRuntimeState": "running",
}


def there(server):
    server.on(f"GET {BASE}/secrets/openai-key", SECRET)
    server.on(f"GET {BASE}/credential-sources/openai", SOURCE)
    server.on(f"GET {BASE}/configurations/demo", CONFIGURATION)
    server.on(f"GET {BASE}/agents/demo", AGENT)


def written(tmp_path, text=DOCUMENTS):
    (tmp_path / "key.txt").write_text("sk-value\n")
    (tmp_path / "all.yaml").write_text(text)


def test_everything_new_is_created_in_the_order_of_references(server, occ, tmp_path):
    written(tmp_path)
    for path in ("secrets", "credential-sources", "configurations", "agents"):
        server.on(f"POST {BASE}/{path}", {"id": f"new_{path}"}, status=201)
    server.on(f"POST {BASE}/agents/demo/deploy", {"id": "rev_1"}, status=202)
    code, out, err = occ("apply", "-f", "all.yaml", "--deploy")
    assert code == 0, err
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["created", "secret"],
        ["created", "credential-source"],
        ["created", "configuration"],
        ["created", "agent"],
    ]
    bodies = server.bodies("POST")
    assert bodies[0] == {"name": "openai-key", "value": "sk-value"}
    assert bodies[3]["harnessAuth"] == {"method": "credential_source", "sourceId": "openai"}
    assert "rev_1" in err
    assert "sk-value" not in out + err


def test_only_what_differs_is_changed_and_names_equal_ids(server, occ, tmp_path):
    written(tmp_path)
    there(server)
    server.on(f"PATCH {BASE}/configurations/cfg_1", {"id": "cfg_1"})
    code, out, _ = occ("apply", "-f", "all.yaml", "-o", "json")
    assert code == 0
    assert [row["action"] for row in json.loads(out)] == [
        *("unchanged", "unchanged", "updated", "unchanged")
    ]
    changed = [item for item in server.requests if item["method"] != "GET"]
    assert len(changed) == 1
    assert changed[0]["headers"]["if-match"] == '"4"'
    assert changed[0]["body"]["values"]["agents"]["defaults"]["model"] == "new"


def test_diff_and_dry_run_show_the_same_and_write_nothing(server, occ, tmp_path):
    written(tmp_path)
    there(server)
    code, out, _ = occ("diff", "-f", "all.yaml", "--exit-code")
    assert code == 1
    assert out.splitlines() == [
        "= secret openai-key (its value is not compared)",
        "= credential-source openai",
        "~ configuration demo",
        '    /values/agents/defaults/model: "old" → "new"',
        "= agent demo",
    ]
    server.on(f"PATCH {BASE}/configurations/cfg_1", None)
    assert occ("apply", "-f", "all.yaml", "--dry-run")[1] == out
    (judged,) = [item for item in server.requests if item["method"] != "GET"]
    assert judged["path"] == f"{BASE}/configurations/cfg_1?dryRun=true"


def test_a_dry_run_is_judged_by_the_server_without_the_secret(server, occ, tmp_path):
    written(tmp_path)
    server.on(f"POST {BASE}/secrets", None)
    server.on(f"POST {BASE}/configurations", None)
    code, _, err = occ("apply", "-f", "all.yaml", "--dry-run", "--deploy")
    assert code == 0
    assert [item["path"] for item in server.requests if item["method"] != "GET"] == [
        f"{BASE}/secrets?dryRun=true",
        f"{BASE}/configurations?dryRun=true",
    ]
    assert server.bodies("POST")[0] == {"name": "openai-key", "value": "dry-run"}
    assert "Not judged yet: credential-source openai needs secret openai-key." in err
    assert "Not judged yet: the deploy of agent demo" in err
    server.refuse(f"PATCH {BASE}/configurations/cfg_1", 400, "INVALID_REQUEST")
    there(server)
    code, out, err = occ("apply", "-f", "all.yaml", "--dry-run")
    assert (code, "~ configuration demo" in out, "INVALID_REQUEST" in err) == (1, True, True)


def test_what_cannot_change_stops_everything_before_the_first_write(server, occ, tmp_path):
    written(
        tmp_path,
        DOCUMENTS.replace(
            "name: openai\nsecrets", "name: openai\nconfig: {base_url: 'https://x/v1'}\nsecrets"
        ),
    )
    there(server)
    code, _, err = occ("apply", "-f", "all.yaml")
    assert code == 1
    assert "! credential-source openai (cannot be changed; delete it and apply again)" in err
    assert all(item["method"] == "GET" for item in server.requests)


def test_a_wrong_document_is_named_by_file_number_and_member(occ, tmp_path):
    cases = {
        "kind: Robot\nname: x": "document 1: kind must be one of",
        "kind: Agent": "document 1: an agent needs a name",
        "kind: Agent\nname: x\nmodel: y": "unknown members model",
        "kind: Secret\nname: x\nvalueFrom: {value: hunter2}": "either a file or an env variable",
        "kind: Secret\nname: x\nvalue: hunter2": "unknown members value",
        "kind: [": "bad.yaml line 2, column 1",
        "- 1": "document 1 is not an object",
        DOCUMENTS + "---\nkind: Agent\nname: demo": "agent demo is there twice",
    }
    for text, words in cases.items():
        (tmp_path / "bad.yaml").write_text(text)
        code, _, err = occ("apply", "-f", "bad.yaml")
        assert code == 1
        assert words in err
        assert "hunter2" not in err


def test_the_starter_is_what_apply_takes(occ, tmp_path):
    documents = list(yaml.safe_load_all(manifest("my agent", "gpt-5")))
    parsed = [parse(document, ".") for document in documents]
    assert [item.kind.word for item in parsed] == [
        *("secret", "credential-source", "configuration", "agent")
    ]
    assert request(parsed[3], "default")["configurationId"] == "my agent"
    assert value_problems(parsed[2].members["values"]) == ()
    assert occ("agent", "init", "demo") == (0, manifest("demo", DEFAULT_MODEL), "")
    assert occ("agent", "init", "demo", "-f", "demo.yaml")[0] == 0
    assert (tmp_path / "demo.yaml").read_text() == manifest("demo", DEFAULT_MODEL)
    code, _, err = occ("agent", "init", "demo", "-f", "demo.yaml")
    assert code == 1
    assert "left alone" in err


def test_a_source_reads_a_secret_again_whose_value_was_written(server, occ, tmp_path):
    written(tmp_path)
    there(server)
    server.on(f"PATCH {BASE}/secrets/openai-key", SECRET)
    server.on(f"PATCH {BASE}/credential-sources/cs_1", SOURCE)
    server.on(f"PATCH {BASE}/configurations/cfg_1", {"id": "cfg_1"})
    assert "(reads its Secret again)" in occ("diff", "-f", "all.yaml", "--update-secrets")[1]
    code, _, err = occ("apply", "-f", "all.yaml", "--update-secrets")
    assert code == 0, err
    changed = [item for item in server.requests if item["method"] == "PATCH"]
    assert [item["path"].rpartition("/")[2] for item in changed] == ["openai-key", "cs_1", "cfg_1"]
    assert changed[1]["body"] == {}


def test_first_files_are_given_once_and_not_compared(server, occ, tmp_path):
    text = DOCUMENTS.replace(
        "credentialSources: [openai]",
        "credentialSources: [openai]\ninitialWorkspaceFiles: {AGENTS.md: brief}",
    )
    written(tmp_path, text)
    for path in ("secrets", "credential-sources", "configurations", "agents"):
        server.on(f"POST {BASE}/{path}", {"id": f"new_{path}"}, status=201)
    assert occ("apply", "-f", "all.yaml")[0] == 0
    assert server.bodies("POST")[-1]["initialWorkspaceFiles"] == {"AGENTS.md": "brief"}
    there(server)
    code, out, _ = occ("diff", "-f", "all.yaml")
    assert code == 0
    assert "= agent demo (its initial files are not compared)" in out
    written(tmp_path, text.replace("brief}", "[x]}"))
    code, _, err = occ("diff", "-f", "all.yaml")
    assert (code, "maps file names to text" in err) == (1, True)
