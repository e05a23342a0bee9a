"""Keeping a claim: what is renewed, recorded, and when it is given up."""

import asyncio
import time

import pytest

from oce.store.errors import StoreUnavailable
from oce.store.queue import Claim, ClaimLost, WorkKind
from oce.worker.lease import LeaseKeeper, StepRecorder


class Beats:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.steps = []
        self.fourth = asyncio.Event()

    async def __call__(self, steps):
        self.steps.append([(step.step, step.outcome, step.code) for step in steps])
        if len(self.steps) == 4:
            self.fourth.set()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer == "silence":
            await asyncio.Event().wait()


def keeper_of(beats, lease=60.0, age=0.0):
    return LeaseKeeper(beats, lease=lease, sent=time.monotonic() - age)


def claim_of(revision="rev_1", steps=None):
    return Claim(
        key="k",
        kind=WorkKind.AGENT_REVISION,
        namespace_id="ns",
        agent_id="agt",
        revision_id=revision,
        actor_id="spn",
        attempt=1,
        token="t",
        age=0,
        sent=time.monotonic(),
        steps=steps or {},
    )


async def test_a_fresh_lease_is_not_renewed_and_an_older_one_is():
    beats = Beats()
    await keeper_of(beats).renew()
    assert beats.steps == []
    keeper = keeper_of(beats, age=10)
    await keeper.renew()
    assert len(beats.steps) == 1
    assert keeper.left() > 59


async def test_a_database_that_fails_is_asked_again_while_the_lease_lasts():
    beats = Beats(StoreUnavailable("08006"), StoreUnavailable("08006"))
    await keeper_of(beats, age=30).renew()
    assert len(beats.steps) == 3


@pytest.mark.parametrize("answer", [ClaimLost("k"), "silence"])
async def test_a_lost_or_unanswered_renewal_ends_the_claim(answer):
    keeper = keeper_of(Beats(*[answer] * 100), lease=0.2, age=0.1)
    with pytest.raises(ClaimLost):
        await keeper.renew()
    assert keeper.left() < 0.2


async def test_an_expired_lease_is_not_renewed_any_more():
    beats = Beats()
    with pytest.raises(ClaimLost):
        await keeper_of(beats, age=61).renew()
    assert beats.steps == []


async def test_the_keeper_renews_by_itself_and_only_watches_while_publishing():
    beats = Beats()
    keeper = keeper_of(beats, lease=0.3)
    task = asyncio.create_task(keeper.keep())
    await asyncio.wait_for(beats.fourth.wait(), 5)
    keeper.publish()
    renewals = len(beats.steps)
    with pytest.raises(ClaimLost):
        await asyncio.wait_for(task, 5)
    assert len(beats.steps) <= renewals + 1


async def test_steps_are_recorded_once_with_their_end():
    beats = Beats()
    step = StepRecorder(claim_of(), keeper_of(beats))
    assert not step.started
    await step("storage")
    assert step.started
    await step("readiness")
    await step("readiness")
    (last,) = step.end("pending", "REVISION_INCOMPLETE")
    assert beats.steps == [
        [("storage", "started", None)],
        [("storage", "succeeded", None), ("readiness", "started", None)],
    ]
    assert (last.step, last.outcome, last.code) == ("readiness", "pending", "REVISION_INCOMPLETE")


async def test_a_later_pass_repeats_no_record():
    beats = Beats()
    known = {"storage": "succeeded", "readiness": "pending REVISION_INCOMPLETE"}
    step = StepRecorder(claim_of(steps=known), keeper_of(beats))
    await step("storage")
    await step("readiness")
    assert step.end("pending", "REVISION_INCOMPLETE") == []
    assert beats.steps == []


async def test_work_without_a_revision_records_nothing():
    beats = Beats()
    step = StepRecorder(claim_of(revision=None), keeper_of(beats, age=30))
    await step("namespace")
    assert beats.steps == [[]]
    assert step.end("succeeded", None) == []
