"""What every request meets: keys, media types, sizes, queries, and the one error shape."""

import asyncio
import io
import json

import pytest

from oce.api import pipeline
from oce.api.errors import ApiError
from oce.api.refusals import translate
from oce.contracts.refusals import TransientDependency, UnsupportedByDriver
from oce.core.namespaces import commands, queries
from oce.core.paging import Page
from oce.domain.failures import CATALOGUE
from oce.observability import logging
from oce.store.errors import StorageFull, StoreTimeout, StoreUnavailable, UnknownOutcome

STATUSES = [
    ("GET", "/namespaces", {"headers": {"x-api-key": "wrong"}}, 401, "UNAUTHENTICATED"),
    ("GET", "/namespaces", {"headers": {"authorization": "Bearer x"}}, 401, "UNAUTHENTICATED"),
    ("GET", "/nowhere", {"headers": {"authorization": "Bearer x"}}, 401, "UNAUTHENTICATED"),
    ("GET", "/nowhere", {}, 404, "NOT_FOUND"),
    ("PUT", "/namespaces", {}, 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/namespaces/", {}, 404, "NOT_FOUND"),
    ("GET", "/namespaces?colour=red", {}, 400, "INVALID_REQUEST"),
    ("GET", "/namespaces?limit=1&limit=2", {}, 400, "INVALID_REQUEST"),
    ("GET", "/namespaces?limit=0", {}, 400, "INVALID_REQUEST"),
    ("GET", "/namespaces?limit=+5", {}, 400, "INVALID_REQUEST"),
    ("GET", "/namespaces?cursor=%00", {}, 400, "INVALID_REQUEST"),
    ("GET", "/namespaces/a%00b", {}, 400, "INVALID_REQUEST"),
    ("GET", "/audit?since=yesterday", {}, 400, "INVALID_REQUEST"),
    ("GET", "/audit?since=2026-01-01T00:00:00", {}, 400, "INVALID_REQUEST"),
    ("POST", "/namespaces", {}, 400, "INVALID_REQUEST"),
    ("POST", "/namespaces", {"content": "name=a"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    (
        "POST",
        "/namespaces",
        {"content": "{}", "headers": {"content-type": "text/json"}},
        415,
        "UNSUPPORTED_MEDIA_TYPE",
    ),
    ("DELETE", "/namespaces/a", {"content": "x"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ("DELETE", "/namespaces/a", {"json": {}}, 400, "INVALID_REQUEST"),
    ("POST", "/namespaces/a/agents/b/deploy", {"json": {}}, 400, "INVALID_REQUEST"),
    ("POST", "/namespaces", {"json": {"name": "x" * 1_048_576}}, 413, "PAYLOAD_TOO_LARGE"),
    (
        "POST",
        "/namespaces/a/agents",
        {"json": {"name": "x" * 458_752}},
        413,
        "PAYLOAD_TOO_LARGE",
    ),
    (
        "PATCH",
        "/namespaces/a/agents/b",
        {"json": {"configurationId": "c"}, "headers": {"if-match": "W/5"}},
        400,
        "INVALID_REQUEST",
    ),
    (
        "POST",
        "/namespaces",
        {"json": {"name": "a"}, "headers": {"idempotency-key": "no spaces"}},
        400,
        "INVALID_REQUEST",
    ),
    ("POST", "/namespaces/a/agents/b/credential-sources/c/withdraw", {}, 501, "NOT_IMPLEMENTED"),
]


@pytest.mark.parametrize(("method", "path", "given", "status", "code"), STATUSES)
async def test_each_status_has_its_code_in_the_one_shape(api, method, path, given, status, code):
    answer = await api.request(method, path, **given)
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code)
    assert set(body) == {"error", "meta"}
    assert set(body["error"]) <= {"code", "message", "details", "hint", "docs"}
    assert answer.headers["x-request-id"] == body["meta"]["requestId"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/json; charset=utf-8"


async def test_a_stranger_learns_nothing_from_a_bad_request(api):
    for given in ({"json": {"name": 1}}, {"content": "x"}, {"json": {"name": "x" * 2_000_000}}):
        answer = await api.post("/namespaces?colour=red", headers={"x-api-key": "no"}, **given)
        assert answer.json()["error"]["code"] == "UNAUTHENTICATED"


async def test_two_keys_and_cookies_open_nothing(app, api, monkeypatch):
    answer = await api.get(
        "/namespaces", headers=[("x-api-key", "a"), ("cookie", "openclaw_occ.session_token=x")]
    )
    assert answer.status_code == 401

    async def listing(_platform, _actor, _page):
        return Page(())

    monkeypatch.setattr(queries, "list_page", listing)
    answer = await api.get("/namespaces", headers={"cookie": "openclaw_occ.session_token=x"})
    assert answer.status_code == 200
    assert answer.json() == {
        "data": [],
        "meta": {"requestId": answer.headers["x-request-id"]},
    }


async def test_a_body_without_a_length_is_cut_off_at_the_limit(api):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 64 * 1_048_576:
            sent += 65_536
            yield b"x" * 65_536
            await asyncio.sleep(0)

    answer = await api.post(
        "/namespaces", content=endless(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert sent < 3 * 1_048_576


OUTAGES = [
    (StoreUnavailable("gone"), 503, "DEPENDENCY_UNAVAILABLE"),
    (StoreTimeout("57014"), 503, "DEPENDENCY_UNAVAILABLE"),
    (StorageFull("disk"), 503, "STORAGE_FULL"),
    (UnknownOutcome("commit"), 503, "UNKNOWN_OUTCOME"),
    (UnsupportedByDriver("x"), 501, "NOT_IMPLEMENTED"),
    (TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE"), 503, "DEPENDENCY_UNAVAILABLE"),
    (ValueError("postgresql://occ:hunter2@db"), 500, "INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("error", "status", "code"), OUTAGES)
async def test_what_a_handler_raises_becomes_the_shape_and_nothing_of_itself(
    api, monkeypatch, error, status, code
):
    async def broken(_platform, _actor, **_given):
        raise error

    monkeypatch.setattr(commands, "create", broken)
    answer = await api.post("/namespaces", json={"name": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "hunter2" not in answer.text


def test_every_code_with_a_status_has_a_sentence():
    for row in CATALOGUE.values():
        if row.http:
            refusal = translate(ApiError(row.code))
            assert refusal.status == row.http
            assert refusal.message


async def test_the_log_line_says_what_happened_and_nothing_that_was_sent(api, monkeypatch):
    stream = io.StringIO()
    logging.configure("api", stream=stream)

    async def broken(_platform, _actor, **_given):
        raise ValueError("hunter2")

    monkeypatch.setattr(commands, "create", broken)
    answer = await api.post("/namespaces", json={"name": "hunter2"})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    failed, completed = lines
    request_id = answer.headers["x-request-id"]
    assert failed["event"] == "http.handler-failed"
    assert failed["errorClass"] == "ValueError"
    assert "test_pipeline:" in failed["frames"][-1]
    assert completed == {
        "time": completed["time"],
        "severity": "INFO",
        "service": "api",
        "event": "http.completed",
        "requestId": request_id,
        "route": "/namespaces",
        "method": "POST",
        "status": 500,
        "durationMs": completed["durationMs"],
        "code": "INTERNAL_ERROR",
    }
    assert "hunter2" not in stream.getvalue()


def test_the_agent_route_has_its_own_limit():
    assert pipeline.AGENT_BODY_MAX == 448 * 1024
