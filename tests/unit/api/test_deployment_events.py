"""The rhythm of an event stream on a scripted clock; what it carries is tested over the real core."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

from oce.api.deployment_events import HEARTBEAT, PAUSE_MAX, PAUSE_MIN, Watch
from oce.core.errors import Forbidden
from oce.core.platform import Actor
from oce.core.revisions import queries
from oce.core.revisions.queries import Deployment, DeploymentStep
from oce.domain.resources import DeploymentStatus


class Clock:
    def __init__(self):
        self.time = 0.0
        self.pauses = []

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        self.time += seconds


def view(status):
    return Deployment(
        deployment_id="rev_1",
        namespace_id="ns_1",
        agent_id="agt_1",
        status=status,
        progress=None,
        error=None,
    )


def step(seq):
    return DeploymentStep(
        seq=seq,
        at=datetime(2026, 1, 2, tzinfo=UTC),
        step="sandbox",
        outcome="success",
        code=None,
        duration_ms=4,
    )


async def watched(monkeypatch, looks, steps=lambda _time, _after: []):
    clock = Clock()

    async def deployment(*_given):
        found = looks(clock.time)
        if isinstance(found, Exception):
            raise found
        return view(found)

    async def deployment_steps(*_given, after):
        return steps(clock.time, after)

    monkeypatch.setattr(queries, "deployment", deployment)
    monkeypatch.setattr(queries, "deployment_steps", deployment_steps)
    actor = Actor(principal_id="spn_1", request_id="req_1")
    watch = Watch(SimpleNamespace(clock=clock), actor, "ns", "agent", "rev_1")
    return clock, [piece async for piece in watch.frames(0)]


async def test_a_quiet_stream_slows_down_and_shows_that_it_lives(monkeypatch):
    clock, pieces = await watched(
        monkeypatch,
        lambda time: DeploymentStatus.RUNNING if time < 35 else DeploymentStatus.SUCCEEDED,
    )
    assert pieces[1:-1] == [b": still here\n\n"] * 3
    assert pieces[0].startswith(b"event: deployment\nid: 0\n")
    assert b'"status":"succeeded"' in pieces[-1]
    assert (clock.pauses[0], clock.pauses[-1]) == (PAUSE_MIN, PAUSE_MAX)
    assert HEARTBEAT > PAUSE_MAX


async def test_steps_come_before_the_verdict_once_each_and_in_order(monkeypatch):
    def steps(time, after):
        return [step(seq) for seq in range(1, 4) if seq > after and time >= seq]

    _, pieces = await watched(
        monkeypatch,
        lambda time: DeploymentStatus.RUNNING if time < 3 else DeploymentStatus.FAILED,
        steps,
    )
    names = [piece.split(b"\n")[0].removeprefix(b"event: ") for piece in pieces]
    assert names == [b"deployment", b"step", b"step", b"step", b"deployment"]
    data = json.loads(pieces[1].split(b"data: ")[1])
    assert data == {
        "seq": 1,
        "at": "2026-01-02T00:00:00.000Z",
        "step": "sandbox",
        "outcome": "success",
        "durationMs": 4,
    }


async def test_more_steps_than_one_read_gives_are_all_told(monkeypatch):
    def steps(_time, after):
        return [step(seq) for seq in range(after + 1, min(after + 500, 1200) + 1)]

    _, pieces = await watched(monkeypatch, lambda _time: DeploymentStatus.SUCCEEDED, steps)
    assert len(pieces) == 1201


async def test_a_refusal_in_the_middle_is_the_last_event(monkeypatch):
    _, pieces = await watched(
        monkeypatch, lambda time: DeploymentStatus.RUNNING if time < 1 else Forbidden()
    )
    assert pieces[-1].startswith(b"event: error\n")
    assert json.loads(pieces[-1].split(b"data: ")[1])["code"] == "FORBIDDEN"
