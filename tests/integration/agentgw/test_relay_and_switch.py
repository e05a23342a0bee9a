"""The relay, its refusals, and the switch from one revision to the next: a scripted Harness over real TLS."""

import asyncio
import json
import stat
import sys

import httpx
import pytest
from websockets.exceptions import InvalidStatus

NS = "ns_00000000-0000-4000-8000-000000000001"
AGENT = "agt_00000000-0000-4000-8000-000000000001"
OTHER_AGENT = "agt_00000000-0000-4000-8000-000000000002"
PATH = f"/namespaces/{NS}/agents/{AGENT}"
GOOD, WEAK = {"x-api-key": "key-good-7f3a"}, {"x-api-key": "key-weak-91bc"}
PATHS = ("tls_cert", "tls_key", "routes_dir", "api_token_file")
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def ask(socket, number=1):
    await socket.send(json.dumps({"id": number, "method": "who"}))
    return json.loads(await socket.recv())["result"]


async def start_turn(socket, number=7):
    await socket.send(json.dumps({"id": number, "method": "turn/start", "params": {}}))
    await socket.recv()
    assert json.loads(await socket.recv())["method"] == "turn/started"
    return f"turn-{number}"


async def close_code(socket):
    await socket.wait_closed()
    return socket.close_code


async def refused(gateway, headers, path=PATH):
    async with httpx.AsyncClient(verify=gateway.client_context, trust_env=False) as client:
        response = await client.get(
            f"https://{gateway.address}{path}", headers={**UPGRADE, **headers}
        )
    body = response.json()
    assert body["meta"]["requestId"] == response.headers["x-request-id"]
    assert set(body["error"]) <= {"code", "message", "hint"}
    return response.status_code, body["error"]["code"]


async def test_messages_pass_both_ways_and_only_the_token_reaches_the_harness(gateway, harnesses):
    gateway.route(harnesses[0].port)
    async with gateway.connect("/namespaces/default/agents/helper") as socket:
        assert await ask(socket) == "first"
        large = {"id": 2, "method": "echo", "params": {"text": "x" * 300_000}}
        await socket.send(json.dumps(large))
        assert await ask(socket, 3) == "first"
    assert harnesses[0].received[1] == large
    seen = harnesses[0].requests[0].headers
    assert seen["authorization"] == "Bearer transport-token-5d1e"
    assert seen["host"].startswith("w--s.openshell.localhost:")
    assert "x-api-key" not in seen
    assert "sec-websocket-extensions" not in seen


@pytest.mark.parametrize(
    ("headers", "path", "expected"),
    [
        ({}, PATH, (401, "UNAUTHENTICATED")),
        ({"x-api-key": "key-unknown"}, PATH, (401, "UNAUTHENTICATED")),
        ({**GOOD, "authorization": "Bearer x"}, PATH, (401, "UNAUTHENTICATED")),
        (WEAK, PATH, (403, "FORBIDDEN")),
        ({**GOOD, "origin": "https://evil.example"}, PATH, (403, "FORBIDDEN")),
        ({**GOOD, "origin": "https://evil.example"}, "/healthz", (403, "FORBIDDEN")),
        (GOOD, f"/namespaces/{NS}/agents/nobody", (404, "NOT_FOUND")),
        # Allowed, but Compute has written no route for it.
        (GOOD, f"/namespaces/{NS}/agents/{OTHER_AGENT}", (404, "NOT_FOUND")),
        # Nobody learns without a key that there is no route.
        ({}, f"/namespaces/{NS}/agents/{OTHER_AGENT}", (401, "UNAUTHENTICATED")),
        (GOOD, PATH + "?x=1", (404, "NOT_FOUND")),
        ({**GOOD, "sec-websocket-version": "8"}, PATH, (400, "INVALID_REQUEST")),
    ],
)
async def test_refusals(gateway, harnesses, headers, path, expected):
    gateway.route(harnesses[0].port)
    assert await refused(gateway, headers, path) == expected
    assert not harnesses[0].requests


async def test_an_agent_without_a_serving_revision_answers_503(gateway, harnesses):
    gateway.route(None)
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")
    gateway.route(harnesses[0].port, token="stale")
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")
    gateway.route(1)
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")
    (gateway.routes / f"{AGENT}.json").write_text("{")
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")


@pytest.mark.parametrize("status", [412, 502, 503])
async def test_a_harness_that_starts_is_waited_for(gateways, harnesses, status):
    gateway = await gateways(start_seconds=10)
    gateway.route(harnesses[0].port)
    harnesses[0].starting = [status] * 3
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"
    assert len(harnesses[0].requests) == 4


async def test_a_connection_that_waits_follows_the_route(gateways, harnesses):
    gateway = await gateways(start_seconds=10)
    gateway.route(1)  # nothing ever listens there
    waiting = asyncio.create_task(_who(gateway))
    await asyncio.sleep(0)
    gateway.route(harnesses[1].port, revision="rev_2")
    assert await asyncio.wait_for(waiting, 10) == "second"


async def _who(gateway):
    async with gateway.connect() as socket:
        return await ask(socket)


async def test_a_harness_that_never_starts_is_named_with_what_to_do(gateway, harnesses):
    gateway.route(harnesses[0].port)
    harnesses[0].starting = [502] * 1000
    with pytest.raises(InvalidStatus) as refused_:
        await gateway.connect(headers=GOOD)
    error = json.loads(refused_.value.response.body)["error"]
    assert "harness-status" in error["hint"]
    assert 1 < len(harnesses[0].requests) < 10
    harnesses[0].starting = [404]  # it holds a startup failure
    with pytest.raises(InvalidStatus) as refused_:
        await gateway.connect(headers=GOOD)
    assert "logs" in json.loads(refused_.value.response.body)["error"]["hint"]
    assert harnesses[0].starting == []


async def test_a_turn_waits_for_a_harness_that_starts_too(gateways, harnesses):
    gateway = await gateways(start_seconds=10)
    gateway.route(harnesses[0].port)
    harnesses[0].starting = [502, 412, 404]
    async with httpx.AsyncClient(verify=gateway.client_context, trust_env=False) as client:
        url = f"https://{gateway.address}{PATH}/turns"
        answer = await client.post(url, json={"input": "hello"}, headers=GOOD)
    assert (answer.status_code, "logs" in answer.json()["error"]["hint"]) == (503, True)
    assert len(harnesses[0].requests) == 3


async def test_a_target_of_another_authority_gets_no_token(gateway, harnesses, tmp_path_factory):
    from_elsewhere = (await asyncio.to_thread(_other_authority, tmp_path_factory)).read_text()
    gateway.route(harnesses[0].port, bundle=from_elsewhere)
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")
    assert not harnesses[0].requests


def _other_authority(tmp_path_factory):
    import subprocess  # noqa: PLC0415 - only here

    folder = tmp_path_factory.mktemp("other")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", folder / "k", "-out", folder / "c", "-subj", "/CN=other"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "c"


async def test_the_api_away_keeps_a_yes_and_gives_nobody_else_one(gateways, harnesses, api):
    gateway = await gateways(remember_yes_seconds=0)
    gateway.route(harnesses[0].port)
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"
    await api.stop()
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"
    assert await refused(gateway, WEAK) == (503, "DEPENDENCY_UNAVAILABLE")
    await api.start(api.port)
    assert await refused(gateway, WEAK) == (403, "FORBIDDEN")


async def test_a_switch_lets_the_running_turn_end_and_then_the_waiting_client_in(
    gateway, harnesses, until
):
    first, second = harnesses
    gateway.route(first.port, "rev_1")
    busy, idle = await gateway.connect(), await gateway.connect()
    assert await ask(idle) == "first"
    turn = await start_turn(busy)
    assert await gateway.status() == {
        "generation": 1,
        "revisionId": "rev_1",
        "draining": False,
        "connections": 2,
        "turns": 1,
    }
    gateway.route(second.port, "rev_2")
    assert (await gateway.status())["draining"] is True
    assert await close_code(idle) == 1012
    waiting = asyncio.create_task(gateway.connect().__aenter__())
    await until(lambda: len(first.sockets) == 1)
    assert not second.requests
    assert (await gateway.status())["revisionId"] == "rev_1"
    await first.finish(turn)
    assert json.loads(await busy.recv())["method"] == "turn/completed"
    assert await close_code(busy) == 1012
    socket = await waiting
    assert await ask(socket) == "second"
    status = await gateway.status()
    assert (status["generation"], status["revisionId"], status["draining"]) == (2, "rev_2", False)
    await socket.close()


async def test_a_turn_that_outlives_the_drain_is_interrupted_and_closed(
    gateway, harnesses, monkeypatch
):
    monkeypatch.setattr("oce.agentgw.switch.INTERRUPT_SECONDS", 0.2)
    gateway.route(harnesses[0].port, "rev_1", drain=0.1)
    socket = await gateway.connect()
    turn = await start_turn(socket)
    gateway.route(harnesses[1].port, "rev_2")
    async with gateway.connect() as successor:
        assert await ask(successor) == "second"
    assert await close_code(socket) == 1012
    interrupts = [each for each in harnesses[0].received if each["method"] == "turn/interrupt"]
    assert interrupts[0]["params"] == {"threadId": "t", "turnId": turn}
    assert not harnesses[0].sockets


async def test_withdrawing_a_route_closes_at_once_and_answers_503(gateway, harnesses):
    gateway.route(harnesses[0].port)
    socket = await gateway.connect()
    gateway.route(None)
    assert await close_code(socket) == 1012  # the watch notices without anybody asking
    assert await refused(gateway, GOOD) == (503, "DEPENDENCY_UNAVAILABLE")


async def test_a_renamed_agent_keeps_its_connections(gateway, harnesses):
    gateway.route(harnesses[0].port)
    async with gateway.connect() as socket:
        gateway.route(harnesses[0].port)
        assert (await gateway.status())["generation"] == 2
        assert await ask(socket) == "first"


async def test_a_turn_outlives_its_client_and_still_holds_the_switch(gateway, harnesses, until):
    gateway.route(harnesses[0].port, "rev_1")
    socket = await gateway.connect()
    turn = await start_turn(socket)
    await socket.close()
    gateway.route(harnesses[1].port, "rev_2")
    assert (await gateway.status())["draining"] is True
    assert harnesses[0].sockets
    await harnesses[0].finish(turn)
    await until(lambda: not harnesses[0].sockets)
    async with gateway.connect() as successor:
        assert await ask(successor) == "second"


async def test_a_dead_harness_closes_the_client_with_1012(gateway, harnesses):
    gateway.route(harnesses[0].port)
    socket = await gateway.connect()
    for each in list(harnesses[0].sockets):
        each.transport.abort()
    assert await close_code(socket) == 1012


async def test_a_restarted_gateway_serves_from_the_documents_alone(gateways, harnesses):
    gateway = await gateways()
    gateway.route(harnesses[0].port)
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"
    await gateway.stop()
    gateway.stop_event.clear()
    await gateway.start()
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"


async def test_the_program_serves_and_drains_on_sigterm(gateway, harnesses, tmp_path, until):
    """The same as a process of its own, on the event loop that production uses."""
    gateway.route(harnesses[0].port)
    values = {
        **{name: str(getattr(gateway.config, name)) for name in PATHS},
        "api_url": gateway.config.api_url,
        "listen": "127.0.0.1:0",
        "control_socket": str(tmp_path / "ctl"),
        "ready_file": str(tmp_path / "ready"),
    }
    file = tmp_path / "gateway.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    command = (sys.executable, "-m", "oce.agentgw", "--config", str(file))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    await until((tmp_path / "ready").exists)
    gateway.address = (tmp_path / "ready").read_text().strip()
    socket = await gateway.connect()
    assert await ask(socket) == "first"
    turn = await start_turn(socket)
    process.terminate()
    await asyncio.wait_for(process.stdout.readuntil(b"gateway.stopping"), 10)
    await harnesses[0].finish(turn)
    assert json.loads(await socket.recv())["method"] == "turn/completed"
    assert await close_code(socket) == 1012
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, b" 431 "),
        (
            b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 300000\r\n\r\n" + b"z" * 300_000,
            b" 413 ",
        ),
        (b"DELETE /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b" 404 "),
        (b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b" 200 "),
    ],
)
async def test_hostile_and_plain_http(gateway, sent, status):
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=gateway.client_context, server_hostname="localhost"
    )
    writer.write(sent)
    line = await asyncio.wait_for(reader.readline(), 5)
    assert status in line
    writer.close()


async def test_the_control_socket_is_private_and_the_log_holds_no_secret(
    gateway, harnesses, capsys
):
    assert stat.S_IMODE(gateway.config.control_socket.stat().st_mode) == 0o600
    gateway.route(harnesses[0].port)
    async with gateway.connect() as socket:
        assert await ask(socket) == "first"
    await refused(gateway, {"x-api-key": "key-unknown-4411"})
    assert await gateway.status("../../etc/passwd") == {"error": "agentId"}
    written = capsys.readouterr().out
    assert '"event":"gateway.relayed"' in written
    for secret in (
        "key-good-7f3a",
        "key-unknown-4411",
        "transport-token-5d1e",
        "internal-token-aa02",
    ):
        assert secret not in written
