"""The durable request ledger: a mutation with a `request_id` happens at most once (reference/openshell-gateway.md a.5).

An admission is written before execution. The receipt commits in the same transaction as the effect, so after a crash a
running admission of a method whose whole effect is that transaction is *known* not to have happened and is freed; one whose
method also reaches outside the store is uncertain and stays so for good. `judge` is the pure rule; the rest is its table.

The fingerprint is a keyed digest: the ledger never holds a request, so never a credential value.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from oce.sandboxd.state.refusals import Reason, Refusal, Status, invalid

if TYPE_CHECKING:
    from oce.sandboxd.state.store import Reader, Transaction

REPLAY_WINDOW = 24 * 3600.0
MAX_OPEN = 1000
MAX_RECEIPT = 64 * 1024
_TEXT_LENGTH = 36


class State(StrEnum):
    """Where an admission stands."""

    RUNNING = "running"
    CONFIRMED = "confirmed"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One row of the ledger."""

    key: str
    caller: str
    method: str
    fingerprint: bytes
    state: State
    receipt: bytes = b""
    admitted: float = 0.0
    completed: float = 0.0


class Verdict(StrEnum):
    """What to do with a request that carries a request id."""

    EXECUTE = "execute"
    JOIN = "join"
    REPLAY = "replay"


def request_key(caller: str, method: str, workspace: str, request_id: str) -> str:
    """Return the ledger key, or raise INVALID_ARGUMENT for anything but a hyphenated, non-nil UUID."""
    try:
        parsed = uuid.UUID(request_id)
    except ValueError:
        parsed = uuid.UUID(int=0)
    if len(request_id) != _TEXT_LENGTH or parsed.int == 0 or str(parsed) != request_id.lower():
        raise invalid("request_id", "must be a hyphenated UUID that is not nil")
    parts = (caller, method, workspace, str(parsed))
    return hashlib.sha256(
        b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    ).hexdigest()


def fingerprint(key: bytes, canonical: bytes) -> bytes:
    """Return the keyed digest of a canonically serialized request."""
    return hmac.digest(key, canonical, "sha256")


def judge(known: Admission | None, wanted: bytes, *, now: float, executing: bool) -> Verdict:
    """Decide about a request whose ledger row is `known`.

    `executing` says that this process is working on that row now. Raises the refusals of a.5.
    """
    if known is None:
        return Verdict.EXECUTE
    if known.state is State.CONFIRMED and now - known.completed > REPLAY_WINDOW:
        return Verdict.EXECUTE
    if not hmac.compare_digest(known.fingerprint, wanted):
        raise Refusal(
            Status.FAILED_PRECONDITION,
            "request_id was used before with a different request",
            reason=Reason.PAYLOAD_MISMATCH,
        )
    if known.state is State.CONFIRMED:
        return Verdict.REPLAY
    if known.state is State.RUNNING and executing:
        return Verdict.JOIN
    raise uncertain()


def uncertain() -> Refusal:
    """Return the refusal of a request whose outcome is not known."""
    return Refusal(
        Status.FAILED_PRECONDITION,
        "the outcome of this request is not known; read the object's state",
        reason=Reason.OUTCOME_UNCERTAIN,
    )


def replay_unavailable() -> Refusal:
    """Return the refusal of a replay whose object is gone or was changed since."""
    return Refusal(
        Status.FAILED_PRECONDITION,
        "the confirmed result of this request cannot be shown again: its object is gone or was changed",
        reason=Reason.REPLAY_UNAVAILABLE,
    )


def stream_unavailable() -> Refusal:
    """Return the refusal of a repeated stream that ended well: its output was not kept."""
    return Refusal(
        Status.FAILED_PRECONDITION,
        "this request was carried out; its output cannot be shown again",
        reason=Reason.STREAM_UNAVAILABLE,
    )


def find(reader: Reader, key: str) -> Admission | None:
    """Return the row of that key."""
    row = reader.connection.execute(
        "SELECT key, caller, method, fingerprint, state, receipt, admitted, completed FROM requests WHERE key=?",
        (key,),
    ).fetchone()
    if row is None:
        return None
    return Admission(
        key=row[0],
        caller=row[1],
        method=row[2],
        fingerprint=row[3],
        state=State(row[4]),
        receipt=row[5],
        admitted=row[6],
        completed=row[7],
    )


def admit(tx: Transaction, admission: Admission) -> None:
    """Write a running admission (replacing an expired one); at most `MAX_OPEN` open ones per caller."""
    tx.connection.execute(
        "DELETE FROM requests WHERE state=? AND completed < ?",
        (State.CONFIRMED, admission.admitted - REPLAY_WINDOW),
    )
    (open_rows,) = tx.connection.execute(
        "SELECT count(*) FROM requests WHERE caller=? AND state<>?",
        (admission.caller, State.CONFIRMED),
    ).fetchone()
    if open_rows >= MAX_OPEN:
        raise Refusal(
            Status.RESOURCE_EXHAUSTED, "durable mutation admission limit reached for this caller"
        )
    tx.connection.execute(
        "INSERT INTO requests VALUES (?,?,?,?,?,?,?,?)",
        (
            admission.key,
            admission.caller,
            admission.method,
            admission.fingerprint,
            State.RUNNING,
            b"",
            admission.admitted,
            0.0,
        ),
    )


def confirm(tx: Transaction, key: str, receipt: bytes, now: float) -> None:
    """Record the success; belongs into the transaction of the effect."""
    if len(receipt) > MAX_RECEIPT:
        raise ValueError("a receipt is larger than its bound")
    tx.connection.execute(
        "UPDATE requests SET state=?, receipt=?, completed=? WHERE key=?",
        (State.CONFIRMED, receipt, now, key),
    )


def free(tx: Transaction, key: str) -> None:
    """Forget an admission whose request was definitely refused."""
    tx.connection.execute("DELETE FROM requests WHERE key=?", (key,))


def doubt(tx: Transaction, key: str) -> None:
    """Record that the outcome is not known."""
    tx.connection.execute("UPDATE requests SET state=? WHERE key=?", (State.UNCERTAIN, key))


def recover(tx: Transaction, reaching_outside: frozenset[str]) -> None:
    """Settle the admissions that a crash left running (see the module's text)."""
    rows = tx.connection.execute(
        "SELECT key, method FROM requests WHERE state=?", (State.RUNNING,)
    ).fetchall()
    for key, method in rows:
        if method in reaching_outside:
            doubt(tx, key)
        else:
            free(tx, key)
