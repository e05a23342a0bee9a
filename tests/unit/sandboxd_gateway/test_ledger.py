"""The request ledger as a state machine: whatever happens, a request takes effect at most once and never silently differs."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oce.sandboxd.state import ledger
from oce.sandboxd.state.ledger import Admission, State, Verdict
from oce.sandboxd.state.refusals import Reason, Refusal, Status
from oce.sandboxd.state.store import Kind, Record, Store

IDS = st.sampled_from([str(uuid.UUID(int=n)) for n in range(1, 4)])
PAYLOADS = st.sampled_from([b"one", b"two"])
METHODS = st.sampled_from(["Inside", "Outside"])
OUTSIDE = frozenset({"Outside"})


class LedgerMachine(RuleBasedStateMachine):
    """Requests, replies, crashes and time against the real table; a model remembers what took effect."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "db"
        self.store = Store(self.path)
        self.loop = asyncio.new_event_loop()
        self.now = 1000.0
        self.effects = {}
        self.last_payload = {}
        self.uncertain = set()
        self.confirmed_at = {}

    def write(self, work):
        return self.loop.run_until_complete(self.store.write(work))

    def teardown(self):
        self.store.close()
        self.loop.close()
        self.folder.cleanup()

    @rule(
        request_id=IDS,
        payload=PAYLOADS,
        method=METHODS,
        outcome=st.sampled_from(["succeeds", "refused", "breaks", "crashes", "crashes after"]),
    )
    def request(self, request_id, payload, method, outcome):
        key = ledger.request_key("caller", method, "default", request_id)
        wanted = ledger.fingerprint(b"k" * 32, payload)
        try:
            verdict = ledger.judge(
                ledger.find(self.store.read, key), wanted, now=self.now, executing=False
            )
        except Refusal as refusal:
            self.check_refusal(refusal, key, payload)
            return
        fresh = self.now - self.confirmed_at.get(key, -1e9) <= ledger.REPLAY_WINDOW
        if verdict is Verdict.REPLAY:
            assert fresh
            assert self.last_payload[key] == payload
            return
        assert verdict is Verdict.EXECUTE
        assert not (fresh and key in self.effects), "a second effect within the window"
        assert key not in self.uncertain
        self.execute(key, method, payload, wanted, outcome)

    def check_refusal(self, refusal, key, payload):
        assert refusal.status is Status.FAILED_PRECONDITION
        if refusal.reason is Reason.PAYLOAD_MISMATCH:
            assert self.last_payload[key] != payload
        else:
            assert refusal.reason is Reason.OUTCOME_UNCERTAIN
            assert key in self.uncertain

    def execute(self, key, method, payload, wanted, outcome):
        admission = Admission(
            key=key,
            caller="caller",
            method=method,
            fingerprint=wanted,
            state=State.RUNNING,
            admitted=self.now,
        )
        self.write(lambda tx: ledger.admit(tx, admission))
        self.last_payload[key] = payload
        if outcome == "refused":
            self.write(lambda tx: ledger.free(tx, key))
        elif outcome == "breaks":
            self.write(lambda tx: ledger.doubt(tx, key))
            self.uncertain.add(key)
        elif outcome == "crashes":
            self.crash()
            if method in OUTSIDE:
                self.uncertain.add(key)
        else:
            self.write(lambda tx: self.effect(tx, key))
            self.effects[key] = self.effects.get(key, 0) + 1
            self.confirmed_at[key] = self.now
            if outcome == "crashes after":
                self.crash()

    def effect(self, tx, key):
        tx.insert(
            Record(
                kind=Kind.WORKSPACE,
                id=str(uuid.uuid4()),
                workspace="",
                name=str(uuid.uuid4()),
                facts={"key": key},
            )
        )
        ledger.confirm(tx, key, b"receipt", self.now)

    def crash(self):
        self.store.close()
        self.store = Store(self.path)
        self.write(lambda tx: ledger.recover(tx, OUTSIDE))

    @rule(seconds=st.sampled_from([60.0, ledger.REPLAY_WINDOW + 1]))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def every_effect_is_stored_once(self):
        stored = {}
        for record in self.store.read.page(Kind.WORKSPACE):
            stored[record.facts["key"]] = stored.get(record.facts["key"], 0) + 1
        assert stored == self.effects


LedgerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_a_request_that_is_being_executed_is_joined():
    running = Admission(key="k", caller="c", method="m", fingerprint=b"f", state=State.RUNNING)
    assert ledger.judge(running, b"f", now=0, executing=True) is Verdict.JOIN
    with pytest.raises(Refusal):
        ledger.judge(running, b"g", now=0, executing=True)


def test_keys_are_length_delimited():
    request_id = str(uuid.uuid4())
    keys = {
        ledger.request_key("ab", "c", "d", request_id),
        ledger.request_key("a", "bc", "d", request_id),
        ledger.request_key("a", "b", "cd", request_id),
    }
    assert len(keys) == 3


async def test_open_admissions_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_OPEN", 2)
    store = Store(tmp_path / "db")
    try:
        for n in range(2):
            await store.write(
                lambda tx, n=n: ledger.admit(
                    tx,
                    Admission(
                        key=str(n), caller="c", method="m", fingerprint=b"", state=State.RUNNING
                    ),
                )
            )
        third = Admission(key="2", caller="c", method="m", fingerprint=b"", state=State.RUNNING)
        with pytest.raises(Refusal) as caught:
            await store.write(lambda tx: ledger.admit(tx, third))
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
    finally:
        store.close()
