"""The work queue: claim, keep, hand back, finish.

Work is a row of `controller_work`: desired state that somebody asked for and that has not converged. A claim is a token plus a lease
by the database's clock; whoever holds both may publish, nobody else can. The queue decides nothing about the work itself and calls
no Driver. Facts: reference/worker-console.md §3; the statements are in `queue_sql`.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from psycopg.types.json import Jsonb

from oce.store import queue_sql
from oce.store.errors import ConstraintViolated, StoreError, TransactionLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.domain.resources import Json
    from oce.store.database import Database, Row, Tx

CLAIM_RACES: Final = 3
"""How often a claim is tried again after losing a race for a lane (SQLSTATE 23505, 40001, 40P01)."""
STALE_BATCH: Final = 100
REFUSED: Final = "REFUSED_CANDIDATE_STOP_PENDING"
REASON_MAX: Final = 64
_NOT_REASON: Final = re.compile(r"[^A-Z0-9_]")
_EVIDENCE_ID: Final = re.compile(r"[A-Za-z0-9._~:@-]{1,64}")


class ClaimLost(Exception):  # noqa: N818 - an answer of the queue: another pass continues
    """The token is not live any more: publish nothing and start no further effect."""


class WorkKind(StrEnum):
    """What a row asks for; also the metric label."""

    NAMESPACE_ENSURE = "namespace_ensure"
    NAMESPACE_DELETE = "namespace_delete"
    AGENT_REVISION = "agent_revision"
    AGENT_STOP = "agent_stop"
    AGENT_DELETE = "agent_delete"
    UNSUPPORTED = "unsupported"
    """Kinds that this worker does not do (provisioning, withdrawal); refused by code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One live claim. `attempt` counts from 1; `age` is seconds since creation by the database's clock, when it was claimed.

    `sent` is our monotonic time just before the claim was sent: the lease is at least `sent + lease` long. `refusal` is set while a
    refused candidate waits to be stopped; `steps` are the recorded steps of earlier passes, each with its latest mark.
    """

    key: str
    kind: WorkKind
    namespace_id: str
    agent_id: str | None
    revision_id: str | None
    actor_id: str
    attempt: int
    token: str
    age: float
    sent: float
    refusal: str | None = None
    refusal_data: Json | None = None
    steps: Mapping[str, str] = field(default_factory=dict)

    @property
    def started(self) -> bool:
        """Whether an earlier pass began an effect."""
        return bool(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One record for the deployment's event stream; `outcome` is started, succeeded, pending, retry or failed."""

    step: str
    outcome: str
    code: str | None = None
    duration_ms: int | None = None

    def document(self) -> Json:
        """Return the shape the statement takes apart."""
        return {
            "step": self.step[:REASON_MAX],
            "outcome": self.outcome,
            "code": self.code,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a sweep found: rows by what became of them."""

    requeued: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregates:
    """The state of queue and Agents as gauges show it; `agents` by lifecycle state, zero states left out."""

    pending: int
    oldest_age: float
    agents: Mapping[str, int]


def reason_code(text: str) -> str:
    """Return a code fit for the column: upper case, other characters `_`, at most 64."""
    return _NOT_REASON.sub("_", text.upper())[:REASON_MAX] or "UNKNOWN_FAILURE"


def checked_result(code: str, data: Json | None, *, succeeded: bool) -> Json | None:
    """Return `data` if it has the closed shape that this outcome allows. Raises ValueError (a programming error)."""
    if data is None:
        return None
    if succeeded:
        if code in {"REVISION_ACTIVATED", "REVISION_ALREADY_ACTIVE"} and set(data) == {"warnings"}:
            return data
    elif code == "CONVERGENCE_DEADLINE_EXCEEDED":
        if set(data) <= {"timeoutMs", "runtimeFailure"} and int(data["timeoutMs"]) > 0:
            return data
    elif code == "RUNTIME_MODEL_PROBE_FAILED" and _is_runtime_failure(data):
        return data
    raise ValueError(f"{code} does not carry this result")


def _is_runtime_failure(data: Json) -> bool:
    if set(data) != {"runtimeFailure"}:
        return False
    found = data["runtimeFailure"]
    names = ("component", "check", "checkedAt", "code")
    return set(found) <= {*names, "cause"} and all(
        isinstance(found.get(name), str) and _EVIDENCE_ID.fullmatch(found[name]) for name in names
    )


def _kind(row: Row) -> WorkKind:
    if row["work_kind"] != "lifecycle":
        return WorkKind.UNSUPPORTED
    if row["agent_id"] is None:
        ensure = row["namespace_target"] == "ready"
        return WorkKind.NAMESPACE_ENSURE if ensure else WorkKind.NAMESPACE_DELETE
    if row["revision_id"] is None:
        stop = row["agent_target"] == "stopped"
        return WorkKind.AGENT_STOP if stop else WorkKind.AGENT_DELETE
    return WorkKind.AGENT_REVISION if row["agent_target"] is None else WorkKind.UNSUPPORTED


def _claim(row: Row, sent: float) -> Claim:
    evidence = row["evidence"] or {}
    return Claim(
        key=row["idempotency_key"],
        kind=_kind(row),
        namespace_id=row["namespace_id"],
        agent_id=row["agent_id"],
        revision_id=row["revision_id"],
        actor_id=row["actor_id"],
        attempt=row["attempt_count"],
        token=row["claim_token"],
        age=row["age"],
        sent=sent,
        refusal=evidence.get("refusal"),
        refusal_data=evidence.get("refusalData"),
        steps=row["steps"] or {},
    )


class WorkQueue:
    """The queue of one database. Every transition raises ClaimLost when the claim is not live, and StoreError when unanswered."""

    def __init__(
        self, db: Database, *, lease_seconds: float = 60.0, max_attempts: int = 10
    ) -> None:
        self._db = db
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts

    async def claim(self) -> Claim | None:
        """Take the oldest available row whose lane is free, or None. A lost race is tried again, then counts as nothing."""
        for _ in range(CLAIM_RACES + 1):
            sent = time.monotonic()
            try:
                rows = await self._db.once(
                    queue_sql.CLAIM, max_attempts=self.max_attempts, lease=self.lease_seconds
                )
            except (ConstraintViolated, TransactionLost):
                continue
            return _claim(rows[0], sent) if rows else None
        return None

    async def heartbeat(
        self, claim: Claim, steps: Sequence[Step] = (), *, tx: Tx | None = None
    ) -> None:
        """Extend the lease and record steps."""
        await self._move(claim, queue_sql.HEARTBEAT, steps, tx, lease=self.lease_seconds)

    async def refuse(self, claim: Claim, refusal: str, data: Json | None) -> None:
        """Record that a candidate is refused *before* it is removed, and extend the lease.

        From here on every later claim of this work carries the refusal: whatever happens in between, the candidate is only removed.
        """
        await self._move(
            claim,
            queue_sql.REFUSE,
            (),
            None,
            lease=self.lease_seconds,
            code=REFUSED,
            refusal=refusal,
            refusal_data=_json({"stops": 0, "result": data}),
        )

    async def complete(
        self,
        claim: Claim,
        reason: str = "RECONCILE_SUCCEEDED",
        *,
        data: Json | None = None,
        steps: Sequence[Step] = (),
        tx: Tx | None = None,
    ) -> None:
        """Finish the work; with `tx` in the transaction that published its result."""
        result = checked_result(reason, data, succeeded=True)
        await self._move(
            claim, queue_sql.COMPLETE, steps, tx, code=reason_code(reason), data=_json(result)
        )

    async def defer(
        self,
        claim: Claim,
        code: str,
        *,
        delay: float | None = None,
        refusal: str | None = None,
        refusal_data: Json | None = None,
        repeat_evidence: bool = False,
        steps: Sequence[Step] = (),
        tx: Tx | None = None,
    ) -> None:
        """Wait: back to the queue with the attempt refunded; `delay` None is the backoff.

        Evidence is written when code or outcome differ from this work's latest, so that a long wait is one row; `repeat_evidence`
        writes it always.
        """
        await self._move(
            claim,
            queue_sql.DEFER,
            steps,
            tx,
            code=reason_code(code),
            delay=delay,
            refusal=refusal,
            refusal_data=_json(refusal_data),
            repeat=repeat_evidence,
        )

    async def retry(
        self, claim: Claim, code: str, *, steps: Sequence[Step] = (), tx: Tx | None = None
    ) -> bool:
        """Back to the queue, the attempt spent; return whether that was the last one and the work has failed with `code`."""
        row = await self._move(
            claim,
            queue_sql.RETRY,
            steps,
            tx,
            code=reason_code(code),
            max_attempts=self.max_attempts,
        )
        return bool(row["state"] == "failed_permanent")

    async def fail(
        self,
        claim: Claim,
        code: str,
        *,
        data: Json | None = None,
        steps: Sequence[Step] = (),
        tx: Tx | None = None,
    ) -> None:
        """End the work for good; a Namespace still provisioning becomes failed in the same statement."""
        result = checked_result(code, data, succeeded=False)
        await self._move(
            claim, queue_sql.FAIL, steps, tx, code=reason_code(code), data=_json(result)
        )

    async def release(self, claim: Claim) -> None:
        """Hand the work back untouched, at once and without evidence: an orderly shutdown."""
        if not await self._db.once(queue_sql.RELEASE, key=claim.key, token=claim.token):
            raise ClaimLost(claim.key)

    async def recover_stale(self, limit: int = STALE_BATCH) -> Recovered:
        """Take back expired claims, then end queued rows without attempts; two statements, each atomic for itself."""
        bounds = {"max_attempts": self.max_attempts, "limit": limit}
        expired = await self._db.once(queue_sql.RECOVER, **bounds)
        stuck = await self._db.once(queue_sql.EXHAUSTED, **bounds)
        failed = sum(row["verdict"] == "exhausted" for row in expired)
        return Recovered(requeued=len(expired) - failed, failed=failed + len(stuck))

    async def pending(self) -> int:
        """Count unfinished work: the health probe's real read."""
        async with self._db.read() as reader:
            row = await reader.one(queue_sql.PENDING)
        return 0 if row is None else int(row["pending"])

    async def aggregates(self) -> Aggregates:
        """Return what the gauges show, from one statement."""
        async with self._db.read() as reader:
            row = await reader.one(queue_sql.AGGREGATES)
        if row is None:
            raise StoreError("no aggregates")
        return Aggregates(pending=row["pending"], oldest_age=row["oldest"], agents=row["agents"])

    async def _move(
        self, claim: Claim, statement: str, steps: Sequence[Step], tx: Tx | None, **params: object
    ) -> Row:
        params |= {
            "key": claim.key,
            "token": claim.token,
            "steps": Jsonb([step.document() for step in steps]),
        }
        if tx is not None:
            row = await tx.one(statement, **params)
        else:
            row = next(iter(await self._db.once(statement, **params)), None)
        if row is None:
            raise ClaimLost(claim.key)
        return row


def _json(value: Json | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)
