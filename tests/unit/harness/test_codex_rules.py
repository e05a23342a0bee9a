"""The pure rules of the Codex Harness: environment, probe verdict, held document, restart pauses."""

import hashlib
import json
import stat

import pytest

from oce.harness import install
from oce.harness.codex import appserver, probe
from oce.harness.codex.environment import (
    Unpublishable,
    child_environment,
    read_listener,
    read_settings,
)
from oce.harness.codex.failure import Cause, HeldFailure, process_exit
from oce.harness.codex.held import answer, document

SHA = hashlib.sha256(b"token").hexdigest()


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "runtime.json").write_text(
        '{"kind": "codex", "openaiBaseUrl": "https://m.test/v1"}'
    )
    return {
        "APP_SERVER_PORT": "18790",
        "APP_TOKEN_SHA": SHA,
        "CODEX_BINARY": "/bin/true",
        "CODEX_HOME": str(tmp_path / ".codex"),
        "CODEX_LOGIN_MODE": "api_key",
        "OPENAI_API_KEY": "openshell:resolve:env:OPENAI_API_KEY",
        "OPENCLAW_HARNESS_MODEL": "gpt-5",
        "OPENCLAW_WORKSPACE_DIR": str(tmp_path),
        "OPENCLAW_PLUGIN_CODEX_CONFIG_TOML": str(tmp_path / "config.toml"),
        "OPENCLAW_PLUGIN_RUNTIME_MANIFEST": str(tmp_path / "runtime.json"),
    }


def settings(environ):
    return read_settings(environ, read_listener(environ))


def test_a_complete_environment_is_read_and_shows_no_placeholder(environ):
    found = settings(environ)
    assert (found.model, found.base_url, found.sessions) == ("gpt-5", "https://m.test/v1", None)
    assert "resolve" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APP_SERVER_TOKEN", "raw"),
        ("CODEX_LOGIN_MODE", "codex_pat"),
        ("CODEX_LOGIN_MODE", None),
        ("OPENAI_API_KEY", None),
        ("OPENAI_API_KEY", "two\nlines"),
        ("CODEX_ACCESS_TOKEN", "at-x"),
        ("OPENCLAW_HARNESS_MODEL", "--flag"),
        ("CODEX_HOME", "relative"),
        ("CODEX_BINARY", "/nowhere"),
        ("OPENCLAW_WORKSPACE_DIR", "/nowhere"),
        ("OCE_CODEX_SESSIONS_DIR", "/nowhere"),
        ("OPENCLAW_PLUGIN_CODEX_CONFIG_TOML", "/nowhere"),
        ("OPENCLAW_PLUGIN_RUNTIME_MANIFEST", "/etc/passwd"),
    ],
)
def test_a_wrong_variable_is_named_and_held(environ, name, value):
    environ.pop(name, None)
    if value is not None:
        environ[name] = value
    with pytest.raises(HeldFailure) as caught:
        settings(environ)
    assert (caught.value.code, caught.value.variable) == ("NOT_CONFIGURED", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("APP_SERVER_PORT", "80"), ("APP_SERVER_PORT", "x"), ("APP_TOKEN_SHA", SHA.upper())],
)
def test_without_port_or_digest_nothing_can_be_published(environ, name, value):
    with pytest.raises(Unpublishable, match=name):
        read_listener({**environ, name: value})


def test_children_inherit_no_credential(environ):
    kept = child_environment({**environ, "APP_SERVER_TOKEN": "raw"})
    assert not {"OPENAI_API_KEY", "APP_TOKEN_SHA", "APP_SERVER_TOKEN"} & set(kept)


def test_command_lines_carry_the_digest_and_no_credential(environ):
    found = settings(environ)
    server = appserver.command(found)
    assert server[server.index("--ws-token-sha256") + 1] == SHA
    assert "ws://127.0.0.1:18790" in server
    assert not any("resolve" in part for part in server + probe.command(found))
    assert set(probe.environment(found, "/h")) <= {"PATH", "HOME", "CODEX_HOME", "RUST_LOG"}


def lines(*events):
    return [json.dumps(each).encode() for each in events]


STARTED, COMPLETED = {"type": "turn.started"}, {"type": "turn.completed"}
REPLY = {"type": "item.completed", "item": {"type": "agent_message", "text": "READY"}}
LOST = {"type": "error", "message": "Reconnecting... 2/5 (stream disconnected)"}
REFUSED = {"type": "error", "message": "Reconnecting... 2/5 (unexpected status 401 Unauthorized)"}
WS_403 = {"type": "error", "message": "unexpected status 403 Forbidden, url: wss://api.test/v1"}
TOOL = {"type": "item.started", "item": {"type": "command_execution"}}
FAILED = {"type": "turn.failed", "error": {"message": "the model is gone"}}
FAILED_401 = {"type": "turn.failed", "error": {"message": "unexpected status 401 Unauthorized"}}


@pytest.mark.parametrize(
    ("events", "status", "expected"),
    [
        ([STARTED, REPLY, COMPLETED], 0, None),
        ([STARTED, *[LOST] * 10, REPLY, COMPLETED], 0, None),
        ([STARTED, *[WS_403] * 5, REPLY, COMPLETED], 0, None),
        ([STARTED, *[LOST] * 11], -9, ("MODEL_PROBE_FAILED", ("PROBE_STATUS", "error-event"))),
        ([STARTED, *[REFUSED] * 3], -9, ("AUTHENTICATION_FAILED", None)),
        ([STARTED, REFUSED, LOST, REFUSED, REPLY, COMPLETED], 0, None),
        ([STARTED, FAILED_401], 1, ("AUTHENTICATION_FAILED", None)),
        ([STARTED, FAILED], 1, ("MODEL_PROBE_FAILED", ("PROBE_STATUS", "turn-failed"))),
        ([STARTED, TOOL], 0, ("MODEL_PROBE_FAILED", ("PROBE_STATUS", "tool-event"))),
        ([STARTED, COMPLETED], 0, ("MODEL_PROBE_FAILED", ("PROBE_STATUS", "no-reply"))),
        (
            [STARTED, REPLY, COMPLETED, STARTED],
            0,
            ("MODEL_PROBE_FAILED", ("PROBE_STATUS", "unexpected-event")),
        ),
        (["text"], 0, ("MODEL_PROBE_FAILED", ("INVALID_OUTPUT", "shape"))),
        ([], 3, ("MODEL_PROBE_FAILED", ("PROCESS_EXIT", "exit-3"))),
        ([], -11, ("MODEL_PROBE_FAILED", ("PROCESS_EXIT", "signal-SIGSEGV"))),
    ],
)
def test_the_probe_verdict(events, status, expected):
    reading = probe.Reading()
    for line in lines(*events):
        reading.feed(line)
    found = reading.verdict(status)
    assert expected == (found and (found.code, found.cause))


def test_output_that_is_not_json_is_a_failed_probe():
    reading = probe.Reading()
    reading.feed(b"panicked at")
    assert reading.decided
    assert reading.verdict(0).cause == Cause("INVALID_OUTPUT", "json")


def test_the_held_document_has_exactly_the_documented_members():
    failure = HeldFailure("MODEL_PROBE_FAILED", check="model-probe", cause=process_exit(1))
    assert document(failure, 1_700_000_000.25) == {
        "runtimeFailure": {
            "component": "agent",
            "check": "model-probe",
            "checkedAt": "2023-11-14T22:13:20.250Z",
            "code": "MODEL_PROBE_FAILED",
            "cause": {"kind": "PROCESS_EXIT", "detail": "exit-1"},
        }
    }


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /openclaw/runtime/status HTTP/1.1\r\nAuthorization: bEaReR token", 200),
        ("GET /openclaw/runtime/status HTTP/1.1\r\nAuthorization: Bearer  token", 401),
        ("GET /openclaw/runtime/status HTTP/1.1\r\nAuthorization: Bearer token2", 401),
        ("GET /openclaw/runtime/status HTTP/1.1", 401),
        (
            "GET /openclaw/runtime/status HTTP/1.1" + 2 * "\r\nAuthorization: Bearer token",
            401,
        ),
        ("GET / HTTP/1.1\r\nAuthorization: Bearer token", 404),
        ("POST /openclaw/runtime/status HTTP/1.1\r\nAuthorization: Bearer token", 404),
        ("GET / HTTP/1.1\r\nOrigin: https://evil.example", 403),
        ("nonsense", 400),
    ],
)
def test_who_may_read_the_held_document(head, status):
    assert answer(head.encode(), SHA, {})[0] == status


def test_pauses_double_to_a_limit_and_start_over_after_a_steady_run():
    pauses, pause = [], 0.0
    for _ in range(7):
        pause = appserver.next_pause(pause, 0.1)
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert appserver.next_pause(30, 61) == 1


def test_an_installed_copy_is_readable_by_every_uid_whatever_the_umask(tmp_path):
    program = install(tmp_path / "programs")
    assert install(tmp_path / "programs") == program
    assert [each.name for each in (tmp_path / "programs").iterdir()] == ["codex"]
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in program.parent.rglob("*")
    }
    assert modes == {(True, 0o755), (False, 0o644)}
    assert list(program.parent.rglob("*.pyc"))
