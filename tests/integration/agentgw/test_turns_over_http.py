"""``POST …/turns`` against a real Codex in a real Harness: what a person with curl gets."""

import asyncio
import json

import httpx
import pytest

NS = "ns_00000000-0000-4000-8000-000000000001"
AGENT = "agt_00000000-0000-4000-8000-000000000001"
GOOD = {"x-api-key": "key-good-7f3a"}

pytestmark = pytest.mark.codex


class Person:
    """Posts turns and reads the events."""

    def __init__(self, gateway):
        self.client = httpx.AsyncClient(
            verify=gateway.client_context, trust_env=False, timeout=30, headers=GOOD
        )
        self.url = f"https://{gateway.address}/namespaces/{NS}/agents/{AGENT}/turns"

    def stream(self, **body):
        return self.client.stream("POST", self.url, json=body)

    async def turn(self, **body):
        async with self.stream(**body) as response:
            assert response.status_code == 200
            return [event async for event in events(response)]


async def events(response):
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


@pytest.fixture
async def person(gateway, codex, tls_front, until):
    harness = await codex()
    await until(harness.listening)
    gateway.route(await tls_front(harness.port))
    found = Person(gateway)
    yield found
    await found.client.aclose()


async def test_a_conversation_goes_on_with_its_thread_id(person):
    first = await person.turn(input="hello")
    thread = first[0][1]["threadId"]
    assert first[0][0] == "thread"
    assert "".join(data["text"] for name, data in first if name == "delta") == (
        "You said: hello (message 1)"
    )
    name, data = first[-1]
    assert (name, data["threadId"], data["text"]) == (
        "completed",
        thread,
        "You said: hello (message 1)",
    )
    assert data["usage"]["totalTokens"] > 0
    second = await person.turn(input="run: echo $((6*7))", threadId=thread)
    assert second[0] == ("thread", {"threadId": thread})
    tools = [data for name, data in second if name == "tool"]
    assert tools[-1]["command"].endswith("'echo $((6*7))'")
    assert (tools[-1]["status"], tools[-1]["exitCode"], tools[-1]["output"]) == (
        "completed",
        0,
        "42\n",
    )
    assert second[-1][1]["text"] == "The command said: 42"
    third = await person.turn(input="again", threadId=thread)
    assert third[-1][1]["text"] == "You said: again (message 3)"


async def test_one_turn_of_a_thread_at_a_time_and_a_leaving_caller_interrupts_it(
    person, gateway, tmp_path, until
):
    thread = (await person.turn(input="hello"))[-1][1]["threadId"]
    gate = tmp_path / "gate"
    alive = tmp_path / "alive"
    command = f"run: until test -e {gate}; do touch {alive}; sleep 0.02; done"
    async with person.stream(input=command, threadId=thread) as response:
        stream = events(response)
        async for name, _ in stream:
            if name == "tool":
                break
        busy = await person.client.post(person.url, json={"input": "x", "threadId": thread})
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "RESOURCE_CONFLICT")
        assert (await gateway.status())["turns"] == 1
        await stream.aclose()
    for _ in range(1000):
        if (await gateway.status())["connections"] == 0:
            break
        await asyncio.sleep(0.01)
    assert (await gateway.status())["connections"] == 0
    after = await person.turn(input="and now", threadId=thread)
    assert after[-1][0] == "completed"
    alive.unlink(missing_ok=True)
    assert (await person.turn(input="run: sleep 0.1"))[-1][0] == "completed"
    assert not alive.exists()  # the interrupted command is really gone
    gate.touch()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": ""}, 400),
        ({"input": "x", "extra": 1}, 400),
        ({"input": "x", "threadId": "../x"}, 400),
        ({"input": "x", "threadId": "01a228b1-b0b8-7b51-b05a-f0ebfcfb842f"}, 404),
        ({"input": "x" * 300_000}, 413),
    ],
)
async def test_bad_turns(person, body, expected):
    assert (await person.client.post(person.url, json=body)).status_code == expected


async def test_a_turn_has_a_deadline_of_its_own(gateways, codex, tls_front, until, tmp_path):
    gateway = await gateways(turn_seconds=0.5)
    harness = await codex()
    await until(harness.listening)
    gateway.route(await tls_front(harness.port))
    person = Person(gateway)
    found = await person.turn(input=f"run: until test -e {tmp_path}/gate; do sleep 0.02; done")
    assert found[-1][0] == "failed"
    assert found[-1][1]["code"] == "TURN_TIMEOUT"
    await person.client.aclose()
