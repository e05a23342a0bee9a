"""The statements of the work queue. Each transition is one statement that also writes its evidence and its side effects.

Every change of a claimed row demands the live token and a lease that has not expired by the *database's* clock; no match means
the claim is lost and nothing is written. `clock_timestamp()` is read where the lease is judged, because a transaction may be old.
Facts: reference/worker-console.md §3.
"""

# ruff: noqa: S608 - every piece put into a statement is a constant of this module; values travel as parameters
from __future__ import annotations

from typing import Final

_LIVE: Final = """w.idempotency_key = %(key)s AND w.state = 'claimed' AND w.claim_token = %(token)s::uuid
    AND w.lease_expires_at > clock_timestamp()"""

_LANE: Final = "COALESCE({row}.agent_id, {row}.namespace_id)"

_BACKOFF: Final = "random() * least(300, power(2, least(greatest(w.attempt_count, 1) - 1, 30))) * interval '1 second'"
"""Full jitter over 1, 2, 4 … 300 s; `attempt_count` is that of the attempt that just ended."""

_LATEST_EVIDENCE: Final = """(SELECT e.{column} FROM occ.audit_events e
    WHERE e.kind = 'mutation' AND e.action = 'reconcile' AND e.details ->> 'workId' = w.idempotency_key
    ORDER BY e.occurred_at DESC, e.id DESC LIMIT 1)"""

_EVIDENCE: Final = """
INSERT INTO occ.audit_events
    (id, installation_id, namespace_id, kind, actor_id, action, resource_kind, resource_id, outcome, reason_code, details)
SELECT 'aud_' || gen_random_uuid(), (SELECT id FROM occ.installation), m.namespace_id, 'mutation', m.actor_id, 'reconcile',
    CASE WHEN m.revision_id IS NOT NULL THEN 'agent_revision' WHEN m.agent_id IS NOT NULL THEN 'agent' ELSE 'namespace' END,
    COALESCE(m.revision_id, m.agent_id, m.namespace_id), {outcome}, {code},
    jsonb_strip_nulls(jsonb_build_object('workId', m.idempotency_key, 'reasonCode', {code},
        'attemptCount', m.attempt_count, 'refusal', {refusal}, 'refusalData', {refusal_data}))
FROM moved m WHERE {condition}"""

_STEPS: Final = """
INSERT INTO occ.deployment_events (work_key, at, step, outcome, code, duration_ms)
SELECT m.idempotency_key, clock_timestamp(), s.step, s.outcome, s.code, s.duration_ms
FROM moved m, ROWS FROM (jsonb_to_recordset(%(steps)s::jsonb)
    AS (step text, outcome text, code text, duration_ms integer)) WITH ORDINALITY AS s
WHERE m.revision_id IS NOT NULL ORDER BY s.ordinality"""

_FAILED_NAMESPACE: Final = """
UPDATE occ.namespaces n SET status = 'failed' FROM moved m
WHERE m.state = 'failed_permanent' AND m.namespace_target = 'ready' AND n.id = m.namespace_id
    AND n.status = 'provisioning' AND n.deleted_at IS NULL"""


def _evidence(
    outcome: str,
    code: str,
    *,
    condition: str = "true",
    refusal: str = "NULL::text",
    refusal_data: str = "NULL::jsonb",
) -> str:
    return _EVIDENCE.format(
        outcome=outcome, code=code, condition=condition, refusal=refusal, refusal_data=refusal_data
    )


CLAIM: Final = f"""
WITH candidate AS (
    SELECT w.idempotency_key FROM occ.controller_work w
    WHERE w.state = 'queued' AND w.available_at <= statement_timestamp() AND w.attempt_count < %(max_attempts)s
        AND NOT EXISTS (SELECT 1 FROM occ.controller_work o
            WHERE o.state = 'claimed' AND {_LANE.format(row="o")} = {_LANE.format(row="w")})
    ORDER BY w.available_at, w.created_at, w.idempotency_key
    LIMIT 1 FOR UPDATE OF w SKIP LOCKED)
UPDATE occ.controller_work w SET state = 'claimed', attempt_count = w.attempt_count + 1, claim_token = gen_random_uuid(),
    lease_expires_at = clock_timestamp() + %(lease)s * interval '1 second', updated_at = clock_timestamp()
FROM candidate c WHERE w.idempotency_key = c.idempotency_key AND w.state = 'queued'
RETURNING w.idempotency_key, w.work_kind, w.namespace_id, w.agent_id, w.revision_id, w.actor_id, w.namespace_target,
    w.agent_target, w.attempt_count, w.claim_token::text AS claim_token, w.created_at,
    extract(epoch FROM clock_timestamp() - w.created_at)::float8 AS age,
    CASE WHEN w.revision_id IS NOT NULL THEN {_LATEST_EVIDENCE.format(column="details")} END AS evidence,
    CASE WHEN w.revision_id IS NOT NULL THEN (
        SELECT jsonb_object_agg(x.step, x.mark) FROM (
            SELECT DISTINCT ON (d.step) d.step, concat_ws(' ', d.outcome, d.code) AS mark
            FROM occ.deployment_events d WHERE d.work_key = w.idempotency_key ORDER BY d.step, d.seq DESC) x) END AS steps"""

HEARTBEAT: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET lease_expires_at = clock_timestamp() + %(lease)s * interval '1 second',
        updated_at = clock_timestamp()
    WHERE {_LIVE} RETURNING w.*),
steps AS ({_STEPS})
SELECT idempotency_key FROM moved"""

REFUSE: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET lease_expires_at = clock_timestamp() + %(lease)s * interval '1 second',
        updated_at = clock_timestamp()
    WHERE {_LIVE} RETURNING w.*),
evidence AS ({
    _evidence(
        "'success'",
        "%(code)s::text",
        refusal="%(refusal)s::text",
        refusal_data="%(refusal_data)s::jsonb",
    )
}),
steps AS ({_STEPS})
SELECT idempotency_key FROM moved"""

COMPLETE: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET state = 'succeeded', completed_at = clock_timestamp(), reason_code = %(code)s,
        result_data = %(data)s, claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE {_LIVE} RETURNING w.*),
evidence AS ({_evidence("'success'", "%(code)s::text")}),
steps AS ({_STEPS})
SELECT idempotency_key FROM moved"""

FAIL: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET state = 'failed_permanent', completed_at = clock_timestamp(), reason_code = %(code)s,
        result_data = %(data)s, claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE {_LIVE} RETURNING w.*),
evidence AS ({_evidence("'failure'", "%(code)s::text")}),
steps AS ({_STEPS}),
namespace AS ({_FAILED_NAMESPACE})
SELECT idempotency_key FROM moved"""

RETRY: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET
        state = CASE WHEN w.attempt_count >= %(max_attempts)s THEN 'failed_permanent' ELSE 'queued' END,
        completed_at = CASE WHEN w.attempt_count >= %(max_attempts)s THEN clock_timestamp() END,
        reason_code = CASE WHEN w.attempt_count >= %(max_attempts)s THEN %(code)s END,
        available_at = clock_timestamp() + {_BACKOFF},
        claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE {_LIVE} RETURNING w.*),
evidence AS ({_evidence("'failure'", "%(code)s::text")}),
steps AS ({_STEPS}),
namespace AS ({_FAILED_NAMESPACE})
SELECT idempotency_key, state FROM moved"""

DEFER: Final = f"""
WITH moved AS (
    UPDATE occ.controller_work w SET state = 'queued', attempt_count = greatest(w.attempt_count - 1, 0),
        available_at = clock_timestamp() + COALESCE(%(delay)s::float8 * interval '1 second', {
    _BACKOFF
}),
        claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
    WHERE {_LIVE}
    RETURNING w.*, {_LATEST_EVIDENCE.format(column="outcome || ' ' || e.reason_code")} AS latest),
evidence AS ({
    _evidence(
        "'success'",
        "%(code)s::text",
        condition="%(repeat)s OR m.latest IS DISTINCT FROM 'success ' || %(code)s::text",
        refusal="%(refusal)s::text",
        refusal_data="%(refusal_data)s::jsonb",
    )
}),
steps AS ({_STEPS})
SELECT idempotency_key FROM moved"""

RELEASE: Final = f"""
UPDATE occ.controller_work w SET state = 'queued', attempt_count = greatest(w.attempt_count - 1, 0),
    available_at = clock_timestamp(), claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
WHERE {_LIVE} RETURNING w.idempotency_key"""

RECOVER: Final = f"""
WITH expired AS (
    SELECT w.idempotency_key, w.attempt_count,
        {_LATEST_EVIDENCE.format(column="details ->> 'refusal'")} AS refusal,
        {_LATEST_EVIDENCE.format(column="details -> 'refusalData'")} AS refusal_data,
        w.revision_id IS NOT NULL AND w.agent_target IS NULL AS deployment,
        a.active_revision_id = w.revision_id AS published,
        r.id IS NOT NULL AND r.retired_at IS NULL AND EXISTS (
            SELECT 1 FROM occ.deployment_events d WHERE d.work_key = w.idempotency_key) AS left_over
    FROM occ.controller_work w
    LEFT JOIN occ.agents a ON a.id = w.agent_id
    LEFT JOIN occ.agent_revisions r ON r.id = w.revision_id
    WHERE w.state = 'claimed' AND w.lease_expires_at <= clock_timestamp()
    ORDER BY w.lease_expires_at, w.idempotency_key LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED),
decided AS (
    SELECT x.*, CASE
        WHEN x.refusal IS NOT NULL THEN 'refused'
        WHEN x.attempt_count < %(max_attempts)s THEN 'resumed'
        WHEN x.deployment AND x.published THEN 'published'
        WHEN x.deployment AND x.left_over THEN 'left_over'
        ELSE 'exhausted' END AS verdict
    FROM expired x),
moved AS (
    UPDATE occ.controller_work w SET
        state = CASE WHEN d.verdict = 'exhausted' THEN 'failed_permanent' ELSE 'queued' END,
        completed_at = CASE WHEN d.verdict = 'exhausted' THEN clock_timestamp() END,
        reason_code = CASE WHEN d.verdict = 'exhausted' THEN 'LEASE_EXPIRED' END,
        attempt_count = CASE WHEN d.verdict IN ('published', 'left_over') THEN greatest(%(max_attempts)s - 1, 0)
            WHEN d.verdict = 'refused' THEN greatest(w.attempt_count - 1, 0) ELSE w.attempt_count END,
        available_at = clock_timestamp() + CASE WHEN d.verdict = 'published' THEN random() * interval '1 second'
            ELSE {_BACKOFF} END,
        claim_token = NULL, lease_expires_at = NULL, updated_at = clock_timestamp()
    FROM decided d WHERE w.idempotency_key = d.idempotency_key
    RETURNING w.*, d.verdict,
        CASE WHEN d.verdict = 'published' THEN 'ACTIVE_REVISION_RECOVERY' ELSE 'LEASE_EXPIRED' END AS code,
        CASE d.verdict WHEN 'refused' THEN d.refusal WHEN 'left_over' THEN 'LEASE_EXPIRED' END AS refusal,
        CASE WHEN d.verdict = 'refused' THEN d.refusal_data END AS refusal_data),
evidence AS ({
    _evidence("'failure'", "m.code", refusal="m.refusal", refusal_data="m.refusal_data")
}),
namespace AS ({_FAILED_NAMESPACE})
SELECT idempotency_key, verdict, code FROM moved"""

EXHAUSTED: Final = f"""
WITH stuck AS (
    SELECT w.idempotency_key FROM occ.controller_work w
    WHERE w.state = 'queued' AND w.attempt_count >= %(max_attempts)s
    ORDER BY w.available_at, w.idempotency_key LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED),
moved AS (
    UPDATE occ.controller_work w SET state = 'failed_permanent', completed_at = clock_timestamp(),
        reason_code = 'MAX_ATTEMPTS_EXHAUSTED', updated_at = clock_timestamp()
    FROM stuck s WHERE w.idempotency_key = s.idempotency_key RETURNING w.*),
evidence AS ({_evidence("'failure'", "'MAX_ATTEMPTS_EXHAUSTED'")}),
namespace AS ({_FAILED_NAMESPACE})
SELECT idempotency_key FROM moved"""

PENDING: Final = (
    "SELECT count(*) AS pending FROM occ.controller_work WHERE state IN ('queued', 'claimed')"
)

AGGREGATES: Final = """
SELECT (SELECT count(*) FROM occ.controller_work WHERE state IN ('queued', 'claimed')) AS pending,
    COALESCE((SELECT extract(epoch FROM clock_timestamp() - min(created_at))::float8 FROM occ.controller_work
        WHERE state IN ('queued', 'claimed')), 0) AS oldest,
    COALESCE((SELECT jsonb_object_agg(s.state, s.agents) FROM (
        SELECT CASE
            WHEN a.status = 'deleting' THEN CASE WHEN o.state = 'failed_permanent' THEN 'failed' ELSE 'stopping' END
            WHEN r.id IS NULL AND o.state IS NULL THEN 'draft'
            WHEN a.desired_runtime_state = 'stopped' THEN CASE
                WHEN o.state = 'failed_permanent' THEN 'failed'
                WHEN a.active_revision_id IS NOT NULL OR o.state IN ('queued', 'claimed') THEN 'stopping'
                ELSE 'stopped' END
            WHEN d.state = 'failed_permanent' THEN 'failed'
            WHEN d.state = 'succeeded' AND a.active_revision_id = r.id THEN 'running'
            ELSE 'deploying' END AS state, count(*) AS agents
        FROM occ.agents a
        LEFT JOIN LATERAL (SELECT id FROM occ.agent_revisions WHERE agent_id = a.id
            ORDER BY revision_number DESC LIMIT 1) r ON true
        LEFT JOIN LATERAL (SELECT state FROM occ.controller_work WHERE agent_id = a.id AND revision_id = r.id
            AND agent_target IS NULL ORDER BY created_at DESC LIMIT 1) d ON true
        LEFT JOIN LATERAL (SELECT state FROM occ.controller_work WHERE agent_id = a.id AND revision_id IS NULL
            ORDER BY created_at DESC LIMIT 1) o ON true
        GROUP BY 1) s), '{}'::jsonb) AS agents"""
