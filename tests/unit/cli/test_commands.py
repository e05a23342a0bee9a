import io
import json
import re
import sys

import pytest
import yaml

from oce.cli import lazy
from oce.cli.main import occ as tree
from oce.cli.main import run

AGENT = {
    "id": "agt_1",
    "namespaceId": "ns_1",
    "name": "demo",
    "servicePrincipalId": "spn_1",
    "configurationId": "cfg_1",
    "executionMode": "dedicated",
    "harnessAuth": None,
    "credentialSources": [],
    "desiredRuntimeState": "running",
    "activeRevisionId": "rev_1",
    "status": "active",
    "generation": 1,
}
AGENTS = "/namespaces/default/agents"


def sse(*events):
    return "".join(
        f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n"
        for number, (name, data) in enumerate(events, 1)
    ).encode()


def test_get_shows_what_the_harness_does_now_and_asks_by_name(server, occ):
    server.on(f"GET {AGENTS}/demo", AGENT)
    server.on(
        f"GET {AGENTS}/agt_1/harness-status",
        {
            "status": "observed",
            "revisionId": "rev_1",
            "harness": {"state": "lost", "code": "SANDBOX_MISSING"},
        },
    )
    code, out, _ = occ("agent", "get", "demo")
    assert code == 0
    heading, row = out.splitlines()
    assert heading.split() == [
        *("ID", "NAME", "CONFIGURATION", "MODE", "DESIRED", "STATUS", "ACTIVE", "REVISION"),
        "HARNESS",
    ]
    assert row.endswith("lost SANDBOX_MISSING")
    assert server.requests[0]["headers"]["x-api-key"] == "key_test.secret"


def test_a_state_that_could_not_be_observed_is_never_shown_as_healthy(server, occ):
    server.on(f"GET {AGENTS}/demo", AGENT)
    server.refuse(f"GET {AGENTS}/agt_1/harness-status", 503, "DEPENDENCY_UNAVAILABLE")
    code, out, _ = occ("agent", "get", "demo", "-o", "json")
    assert code == 0
    assert json.loads(out)["harnessStatus"] == {
        "status": "unobserved",
        "reason": "DEPENDENCY_UNAVAILABLE",
    }
    server.refuse(f"GET {AGENTS}/demo/harness-status", 503, "DEPENDENCY_UNAVAILABLE")
    assert occ("agent", "harness-status", "demo")[0] == 1


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"status": "observed", "harness": {"state": "running"}}, 0),
        ({"status": "observed", "harness": {"state": "starting"}}, 0),
        ({"status": "observed", "harness": {"state": "unknown"}}, 1),
        ({"status": "observed", "harness": {"state": "lost"}}, 1),
        ({"status": "unobserved", "reason": "UNDEPLOYED"}, 1),
    ],
)
def test_a_command_that_asserts_health_fails_when_it_cannot(server, occ, report, code):
    server.on(f"GET {AGENTS}/demo/harness-status", report)
    assert occ("agent", "harness-status", "demo")[0] == code


def test_lists_follow_the_cursor_and_say_when_they_are_empty(server, occ):
    path = f"GET {AGENTS}"
    server.on(path, raw={"data": [AGENT], "meta": {"requestId": "r", "nextCursor": "c1"}})
    server.on(path, raw={"data": [{**AGENT, "id": "agt_2"}], "meta": {"requestId": "r"}})
    code, out, _ = occ("-o", "yaml", "agent", "list")
    assert code == 0
    assert [item["id"] for item in yaml.safe_load(out)] == ["agt_1", "agt_2"]
    assert "cursor=c1" in server.requests[1]["path"]
    server.on("GET /namespaces/default/secrets", [])
    assert occ("secret", "list")[1] == "No resources found.\n"
    assert occ("secret", "list", "-o", "json")[1] == "[]\n"


def test_an_error_tells_status_code_message_hint_place_and_request(server, occ):
    server.refuse(
        "POST /namespaces",
        400,
        "INVALID_REQUEST",
        hint="See details.",
        details=[{"path": "/name", "code": "TOO_LONG"}],
    )
    code, out, err = occ("namespace", "create", "n" * 300)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "Error: 400 INVALID_REQUEST: about INVALID_REQUEST",
        "  /name: TOO_LONG",
        "Hint: See details.",
        "Request: req_9",
    ]
    server.refuse("GET /installation", 429, "RATE_LIMITED")
    assert "Retry after: 7 s" in occ("installation", "get")[2]


def test_exit_codes(server, occ):
    server.on("DELETE /namespaces/default/secrets/k", status=204, raw=b"")
    assert occ("secret", "delete", "k")[:2] == (0, "Deleted secret k.\n")
    assert occ("agent", "get", "nobody")[0] == 3
    assert occ("agent", "frobnicate")[0] == 2
    assert occ("agent", "logs", "x", "--limit", "0")[0] == 2
    server.on("GET /namespaces/default/iam/roles", [])
    assert occ("role", "get", "nobody")[0] == 3
    out = occ("secret", "delete", "k", "-o", "json")[1]
    assert json.loads(out) == {"deleted": True, "kind": "secret", "id": "k"}


def test_a_stranger_on_the_port_is_not_taken_for_the_control_plane(server, occ):
    server.on("GET /installation", raw=b"<html>directory listing</html>")
    code, _, err = occ("installation", "get")
    assert code == 1
    assert "it is not the control plane" in err
    server.on("GET /namespaces/x", raw={"data": 1}, status=302, headers={"location": "http://x/"})
    assert "HTTP 302" in occ("namespace", "get", "x")[2]
    assert len(server.requests) == 2


def test_nothing_listening_says_how_to_start_it(occ, monkeypatch, tmp_path):
    code, _, err = occ("--url", "http://127.0.0.1:9", "installation", "get")
    assert code == 1
    assert "nothing listens there" in err
    assert "occ up" in err
    monkeypatch.delenv("OCC_URL")
    assert "occ up" in occ("installation", "get")[2]


def test_a_secret_value_comes_from_a_file_or_standard_input_only(
    server, occ, tmp_path, monkeypatch
):
    server.on("POST /namespaces/default/secrets", {"id": "sec_1", "name": "k"}, status=201)
    (tmp_path / "value").write_text("one\n")
    assert occ("secret", "create", "k", "--value-file", "value")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\n"))
    assert occ("secret", "create", "k", "--value-file", "-")[0] == 0
    assert server.bodies("POST") == [
        {"name": "k", "value": "one"},
        {"name": "k", "value": "two"},
    ]
    keys = {item["headers"]["idempotency-key"] for item in server.requests}
    assert len(keys) == 2
    assert "value" not in {
        option for command in ("create", "update") for option in _options("secret", command)
    }


def _options(group, command):
    found = lazy.load(f"oce.cli.secrets:{group}").commands[command]
    return [parameter.name for parameter in found.params]


def test_a_deploy_shows_its_steps_and_ends_with_the_verdict(server, occ):
    server.on(f"POST {AGENTS}/demo/deploy", {"id": "rev_2", "revision": 2}, status=202)
    waiting = {
        "status": "running",
        "progress": {"lastAttempt": {"at": "t", "code": "REVISION_INCOMPLETE", "message": "m"}},
        "error": None,
    }
    failed = {
        "status": "failed",
        "progress": None,
        "error": {
            "code": "RUNTIME_AUTHENTICATION_FAILED",
            "message": "The provider rejected the credential.",
            "hint": "Check the key.",
        },
    }
    events = f"GET {AGENTS}/demo/deployments/rev_2/events"
    kind = {"content-type": "text/event-stream"}
    first = sse(("step", {"step": "sandbox", "outcome": "success", "durationMs": 40}))
    server.on(events, raw=first, headers=kind)
    server.on(events, raw=sse(("deployment", waiting), ("deployment", failed)), headers=kind)
    code, out, err = occ("agent", "deploy", "demo", "--wait")
    assert (code, out) == (1, "")
    assert re.search(r"\d s  sandbox \(0\.04 s\)", err)
    assert "running: REVISION_INCOMPLETE: m" in err
    assert "Error: RUNTIME_AUTHENTICATION_FAILED: The provider rejected the credential." in err
    assert "Hint: Check the key." in err
    assert server.requests[-1]["headers"]["last-event-id"] == "1"


def test_chat_streams_keeps_its_thread_and_cleans_what_it_prints(server, occ, monkeypatch):
    monkeypatch.setenv("OCC_CONTEXT", "local")
    occ(
        *("context", "create", "local", "--url", server.url, "--gateway-url", f"{server.url}/gw"),
        *("--service-key-file", "key"),
    )
    server.on(f"GET {AGENTS}/demo", AGENT)
    turn = sse(
        ("thread", {"threadId": "thr_1"}),
        ("delta", {"text": "Hello \x1b[2Jthere\nfriend"}),
        ("tool", {"command": "ls", "status": "inProgress"}),
        ("tool", {"command": "ls", "status": "completed", "exitCode": 0}),
        ("delta", {"text": "!"}),
        ("completed", {}),
    )
    server.on("POST /gw/namespaces/ns_1/agents/agt_1/turns", raw=turn)
    code, out, err = occ("agent", "chat", "demo", "hi")
    assert code == 0
    assert out == "Hello ?[2Jthere\nfriend\n!\n"
    assert err == "$ ls\n[ls: completed, exit code 0]\n"
    occ("agent", "chat", "demo", "again")
    occ("agent", "chat", "demo", "fresh", "--new")
    occ("agent", "chat", "demo", "other", "--thread", "thr_9")
    assert server.bodies("POST") == [
        {"input": "hi"},
        {"input": "again", "threadId": "thr_1"},
        {"input": "fresh"},
        {"input": "other", "threadId": "thr_9"},
    ]


def test_a_turn_that_fails_or_breaks_off_is_a_failure(server, occ, monkeypatch):
    monkeypatch.setenv("OCC_CONTEXT", "local")
    occ(
        *("context", "create", "local", "--url", server.url, "--gateway-url", server.url),
        *("--service-key-file", "key"),
    )
    server.on(f"GET {AGENTS}/demo", AGENT)
    turns = "POST /namespaces/ns_1/agents/agt_1/turns"
    failed = ("failed", {"code": "RUNTIME_STARTUP_FAILED", "message": "m", "hint": "h"})
    server.on(turns, raw=sse(failed))
    server.on(turns, raw=sse(("delta", {"text": "half"})))
    code, _, err = occ("agent", "chat", "demo", "hi")
    assert (code, err) == (1, "Error: RUNTIME_STARTUP_FAILED: m\nHint: h\n")
    code, out, err = occ("agent", "chat", "demo", "hi")
    assert (code, out) == (1, "half\n")
    assert "UNKNOWN_OUTCOME" in err


def test_a_key_is_written_to_a_new_private_file_and_never_printed(server, occ, tmp_path):
    issued = {"id": "key_1", "name": "ci", "key": "key_1.hunter2"}
    server.on("POST /api/auth/service-keys", issued, status=201)
    create = ("key", "create", "ci", "--service-principal", "spn_1", "--out", "new.key")
    code, out, err = occ(*create)
    assert code == 0
    assert "hunter2" not in out + err
    path = tmp_path / "new.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["data"]["key"] == "key_1.hunter2"
    count = len(server.requests)
    assert occ(*create)[0] == 1
    assert len(server.requests) == count
    server.answers.clear()
    assert occ(*create[:-1], "other.key")[0] == 3
    assert not (tmp_path / "other.key").exists()


def test_a_missing_room_is_a_sentence_and_harms_no_other_command(occ, monkeypatch, capsys):
    monkeypatch.setitem(tree._table, "up", ("oce.nowhere.commands:up", "Start."))
    code, _, err = occ("up", "--detach")
    assert code == 1
    assert "`occ up` is not part of this installation" in err
    assert run(["--help"]) == 0
    assert "context" in capsys.readouterr().out


def test_help_imports_no_command(capsys):
    before = set(sys.modules)
    assert run(["--help"]) == 0
    assert not {name for name in set(sys.modules) - before if name.startswith("oce.cli.")}
    capsys.readouterr()


def test_contexts_are_listed_and_switched(server, occ):
    for name in ("one", "two"):
        occ("context", "create", name, "--url", server.url, "--service-key-file", "key")
    code, out, _ = occ("context", "use", "one")
    assert (code, out) == (0, "Using context one.\n")
    rows = json.loads(occ("context", "list", "-o", "json")[1])
    assert [(row["name"], row["current"]) for row in rows] == [("one", True), ("two", False)]
    assert occ("context", "use", "three")[0] == 1


def test_a_binding_finds_built_in_roles_and_the_agents_principal(server, occ):
    server.on("GET /namespaces/default/iam/roles", [])
    server.on("GET /iam/roles", [{"id": "role_deployer", "name": "deployer"}])
    server.on(f"GET {AGENTS}/demo", AGENT)
    server.on(
        "POST /namespaces/default/iam/access-bindings",
        {"id": "binding_1", "subjectId": "spn_1", "roleId": "role_deployer"},
        status=201,
    )
    assert occ("binding", "create", "--role", "deployer", "--subject-agent", "demo")[0] == 0
    assert server.bodies("POST") == [
        {"subjectKind": "identity", "subjectId": "spn_1", "roleId": "role_deployer"}
    ]


def test_logs_show_lines_gaps_and_what_was_withheld(server, occ):
    line = {
        "type": "line",
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warn",
        "source": "sandbox",
        "message": "denied \x1b[2J",
        "fields": {"dst_host": "evil.example", "rule_name": "none"},
        "truncated": False,
    }
    page = {
        "revisionId": "rev_1",
        "observedAt": "2026-01-02T03:04:06.000Z",
        "records": [line, {"type": "withheld", "count": 3, "reason": "malformed"}],
        "withheld": 3,
        "truncated": True,
    }
    server.on(f"GET {AGENTS}/demo/logs", page)
    code, out, err = occ("agent", "logs", "demo", "--since", "10m", "--level", "warn")
    assert code == 0
    assert out.splitlines() == [
        "2026-01-02T03:04:05.678Z WARN    sandbox denied ?[2J dst_host=evil.example rule_name=none",
        "[withheld: 3 malformed]",
    ]
    assert err.splitlines() == [
        "3 lines were withheld.",
        "There may be more: raise --limit.",
    ]
    query = server.requests[0]["path"].partition("?")[2]
    assert re.fullmatch(r"since=\d{4}-[^&]+%2B00%3A00&limit=200&minLevel=warn", query)


def test_a_wait_is_over_when_the_resource_is(server, occ):
    path = "GET /namespaces/ns_1"
    server.on("POST /namespaces", {"id": "ns_1", "name": "a", "status": "provisioning"}, status=201)
    server.on(path, {"id": "ns_1", "name": "a", "status": "provisioning"})
    server.on(path, {"id": "ns_1", "name": "a", "status": "failed"})
    code, out, _ = occ("namespace", "create", "a", "--wait")
    assert (code, out.splitlines()[1].split()[2]) == (1, "failed")
    server.on("DELETE /namespaces/a", {"id": "ns_1", "status": "deleting"}, status=202)
    assert occ("namespace", "delete", "a")[:2] == (0, "Deleting namespace a.\n")
    assert occ("namespace", "delete", "a", "--wait")[:2] == (0, "Deleted namespace a.\n")


def test_first_files_of_a_workspace_are_sent_under_their_names(server, occ, tmp_path):
    (tmp_path / "AGENTS.md").write_text("Be brief.\n")
    server.on("POST /namespaces/default/agents", {"id": "agt_1", "name": "demo"}, status=201)
    made = ("agent", "create", "demo", "--configuration", "demo")
    assert occ(*made, "--workspace-file", "AGENTS.md")[0] == 0
    assert server.bodies("POST")[0]["initialWorkspaceFiles"] == {"AGENTS.md": "Be brief.\n"}
    twice = ("--workspace-file", "AGENTS.md", "--workspace-file", str(tmp_path / "AGENTS.md"))
    code, _, err = occ(*made, *twice)
    assert (code, "AGENTS.md is there twice" in err) == (2, True)
    code, _, err = occ(*made, "--workspace-file", "SOUL.md")
    assert (code, "SOUL.md cannot be read" in err) == (1, True)
