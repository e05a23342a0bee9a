"""Classification, deadlines and cadences: pure rules."""

import pytest

from oce.contracts.refusals import (
    DeletionUnconfirmed,
    GatewayUnauthorized,
    NamespaceRefused,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    TransientDependency,
)
from oce.store.errors import StoreUnavailable
from oce.worker.classify import (
    bounded,
    classify,
    readiness_delay,
    refused_stop_delay,
    unknown_fault,
)
from oce.worker.outcomes import Pending, Permanent, Retry, Success


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StillPending("SANDBOX_DELETION_PENDING"), Pending(code="SANDBOX_DELETION_PENDING")),
        (
            TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE"),
            Pending(code="SANDBOX_GATEWAY_UNAVAILABLE", dependency=True),
        ),
        (DeletionUnconfirmed(), Retry(code="SANDBOX_DELETION_UNCONFIRMED")),
        (RevisionUnsupported("HARNESS_EXITED"), Permanent(code="HARNESS_EXITED")),
        (NamespaceRefused("PERMISSION_DENIED"), Permanent(code="SANDBOX_NAMESPACE_REFUSED")),
        (
            OwnershipConflict("Sandbox", "labels"),
            Permanent(code="SANDBOX_OWNERSHIP_CONFLICT"),
        ),
        (
            GatewayUnauthorized(transient=False),
            Permanent(code="SANDBOX_GATEWAY_UNAUTHORIZED", hint_code="sandbox-gateway-identity"),
        ),
        (GatewayUnauthorized(transient=True), Retry(code="SANDBOX_GATEWAY_UNAUTHORIZED")),
        (NotVisible("x"), Retry(code="DEPENDENCY_UNAVAILABLE")),
        (StoreUnavailable("08006"), Retry(code="DEPENDENCY_UNAVAILABLE")),
        (TimeoutError(), Retry(code="DEPENDENCY_UNAVAILABLE")),
        (OSError(28, "No space left on device"), Retry(code="DEPENDENCY_UNAVAILABLE")),
    ],
)
def test_every_exception_has_one_outcome(error, outcome):
    assert classify(error) == outcome


def test_the_log_keeps_what_the_outcome_does_not_say():
    assert unknown_fault(KeyError("x"))
    assert not unknown_fault(StillPending("AGENT_DRAIN_PENDING"))


@pytest.mark.parametrize(
    ("age", "delay"), [(0, 0.5), (20, 0.5), (40, 1), (100, 2.5), (200, 5), (9000, 5)]
)
def test_readiness_cadence(age, delay):
    assert readiness_delay(age) == delay


def test_refused_stop_cadence_doubles_to_its_limit_and_respects_slow_stops():
    assert [refused_stop_delay(200, n, 0.1) for n in (1, 2, 3, 50)] == [5, 10, 20, 300]
    assert refused_stop_delay(0, 1, 100) == 400


LIMITS = {"convergence_timeout": 900.0, "attempt": 1, "max_attempts": 5}


def test_deadline_names_the_dependency_and_never_ends_the_removal_of_a_refused_candidate():
    waiting = Pending(code="REVISION_INCOMPLETE")
    assert bounded(waiting, age=899, **LIMITS) is waiting
    assert bounded(waiting, age=900, **LIMITS) == Permanent(
        code="CONVERGENCE_DEADLINE_EXCEEDED", data={"timeoutMs": 900_000}, exhausted=True
    )
    away = Pending(code="AGENT_GATEWAY_UNAVAILABLE", dependency=True)
    assert bounded(away, age=900, **LIMITS) == Permanent(
        code="AGENT_GATEWAY_UNAVAILABLE", exhausted=True
    )
    refused = Pending(code="REFUSED_CANDIDATE_STOP_PENDING", refusal="HARNESS_EXITED")
    assert bounded(refused, age=10_000, **LIMITS) is refused


def test_the_last_retry_is_permanent_and_success_is_never_bounded():
    retry = Retry(code="DEPENDENCY_UNAVAILABLE")
    assert bounded(retry, age=10_000, **LIMITS) is retry
    last = bounded(retry, age=0, convergence_timeout=900, attempt=5, max_attempts=5)
    assert last == Permanent(code="DEPENDENCY_UNAVAILABLE", exhausted=True)
    done = Success(reason="REVISION_ACTIVATED")
    assert bounded(done, age=10_000, **LIMITS) is done
