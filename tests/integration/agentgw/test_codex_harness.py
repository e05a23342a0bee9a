"""The Harness program with the real Codex, unconfined: serve, hold, restart, stop, and keep threads across revisions."""

import asyncio
import json
import os
import signal
import stat
from pathlib import Path

import httpx
import pytest
import websockets

TOKEN = "transport-token-5d1e"
MODEL_KEY = "sk-model-key-c0de"
BEARER = {"authorization": f"Bearer {TOKEN}"}
STATUS = "/openclaw/runtime/status"

pytestmark = pytest.mark.codex


def connect(harness, headers=BEARER):
    return websockets.connect(
        f"ws://127.0.0.1:{harness.port}", additional_headers=headers, proxy=None
    )


async def held(harness, until):
    await until(lambda: harness.events("runtime.held_failure"))
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        while True:
            try:
                response = await client.get(
                    f"http://127.0.0.1:{harness.port}{STATUS}", headers=BEARER
                )
                return response.json()["runtimeFailure"]
            except httpx.ConnectError:
                await asyncio.sleep(0.01)


async def rpc(socket, method, params):
    await socket.send(json.dumps({"id": method, "method": method, "params": params}))
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if message.get("id") == method:
            return message["result"]


async def say(socket, thread, text):
    await rpc(socket, "turn/start", {"threadId": thread, "input": [{"type": "text", "text": text}]})
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if message.get("method") == "turn/completed":
            return message["params"]["turn"]["items"][-1]["text"]


async def introduce(socket):
    client = {"name": "test", "title": "test", "version": "1"}
    await rpc(socket, "initialize", {"clientInfo": client})
    await socket.send(json.dumps({"method": "initialized"}))


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def seen_of(pid):
    """Return what others can see of a process: environment and arguments."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


async def test_it_serves_only_the_holder_of_the_token_and_keeps_no_credential_around(
    codex, until, model
):
    harness = await codex()
    await until(harness.listening)
    async with connect(harness):
        pass
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({**BEARER, "origin": "https://evil.example"}, 403),
    ):
        with pytest.raises(websockets.InvalidStatus) as caught:
            await connect(harness, headers)
        assert caught.value.response.status_code == status
    (server,) = children(harness.process.pid)
    for secret in (MODEL_KEY, TOKEN):
        assert secret.encode() not in seen_of(server)
        assert secret not in harness.log.read_text()
    home = Path(harness.environment["CODEX_HOME"])
    assert (mode(home), mode(home / "config.toml")) == (0o700, 0o600)
    assert model.stats.encodings == {"identity"}
    assert await harness.stop() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_a_thread_goes_on_in_the_next_revision(codex, until):
    threads = []
    for text, answer in (("hello", "(message 1)"), ("again", "(message 2)")):
        harness = await codex()
        await until(harness.listening)
        async with connect(harness) as socket:
            await introduce(socket)
            if not threads:
                threads.append((await rpc(socket, "thread/start", {}))["thread"]["id"])
            else:
                params = {"threadId": threads[0], "excludeTurns": True}
                await rpc(socket, "thread/resume", params)
            assert (await say(socket, threads[0], text)).endswith(answer)
        await harness.stop()


async def test_a_wrong_key_is_held_and_told_to_the_token_holder_only(codex, until):
    harness = await codex(OPENAI_API_KEY="sk-wrong")
    failure = await held(harness, until)
    checked = failure.pop("checkedAt")
    assert checked.endswith("Z")
    assert failure == {
        "component": "agent",
        "check": "model-probe",
        "code": "AUTHENTICATION_FAILED",
    }
    url = f"http://127.0.0.1:{harness.port}"
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url + STATUS)).status_code == 401
        wrong = await client.get(url + STATUS, headers={"authorization": f"Bearer {TOKEN}x"})
        assert (wrong.status_code, wrong.json()) == (401, {"error": "unauthorized"})
        assert (await client.get(url + "/", headers=BEARER)).status_code == 404
        evil = await client.get(url + STATUS, headers={**BEARER, "origin": "https://evil.example"})
        assert evil.status_code == 403
    with pytest.raises(websockets.InvalidStatus):
        await connect(harness)
    assert await harness.stop() == 0


@pytest.mark.parametrize(
    ("overrides", "code", "check"),
    [
        ({"CODEX_BINARY": "/bin/false"}, "UNAVAILABLE", "app-server"),
        ({"CODEX_BINARY": "/nowhere/codex"}, "NOT_CONFIGURED", "login"),
        ({"CODEX_LOGIN_MODE": "codex_pat"}, "NOT_CONFIGURED", "login"),
        ({"APP_SERVER_TOKEN": "raw"}, "NOT_CONFIGURED", "login"),
    ],
)
async def test_what_cannot_start_is_held(codex, until, overrides, code, check):
    failure = await held(await codex(**overrides), until)
    assert (failure["code"], failure["check"]) == (code, check)


async def test_an_app_server_that_never_listens_is_held_after_three_exits(codex, until, tmp_path):
    broken = tmp_path / "codex-without-server"
    real = (await codex(APP_TOKEN_SHA="x")).environment["CODEX_BINARY"]
    broken.write_text(
        f'#!/bin/sh\nfor each in "$@"; do test "$each" = app-server && exit 3; done\nexec {real} "$@"\n'
    )
    broken.chmod(0o755)
    harness = await codex(CODEX_BINARY=str(broken))
    failure = await held(harness, until)
    assert (failure["code"], failure["check"]) == ("UNAVAILABLE", "app-server")
    exits = harness.events("codex.app_server_exited")
    assert [each["detail"] for each in exits] == ["exit-3"] * 3


async def test_a_killed_app_server_comes_back_and_its_group_does_not_survive(codex, until):
    harness = await codex()
    await until(harness.listening)
    (server,) = children(harness.process.pid)
    os.kill(server, signal.SIGKILL)
    await until(lambda: len(harness.listening()) == 2)
    assert harness.events("codex.app_server_exited")[0]["detail"] == "signal-SIGKILL"
    async with connect(harness):
        pass
    assert await harness.stop() == 0


async def test_an_unusable_port_or_digest_ends_the_program(codex):
    harness = await codex(APP_TOKEN_SHA="ABC")
    assert await harness.process.wait() == 78
    assert harness.events("runtime.environment_refused")[0]["variable"] == "APP_TOKEN_SHA"
