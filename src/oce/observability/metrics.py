"""Metric families of the control plane (reference/worker-console.md §10).

Labels never hold a tenant, an Agent, a request, an actor, a raw URL or a payload, so the number of series is bounded by the code.
Metrics are recorded after a commit and are not audit evidence. Each process owns one registry and serves it on its private listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
WORK_KINDS: Final = (
    "namespace_ensure",
    "namespace_delete",
    "agent_revision",
    "agent_stop",
    "agent_delete",
)
AGENT_STATES: Final = ("draft", "deploying", "running", "stopping", "stopped", "failed")

_HTTP_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ATTEMPT_BUCKETS: Final = (0.01, 0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 900)
_OPERATION_BUCKETS: Final = (
    *(0.1, 0.5, 1, 2, 5, 10, 15, 20, 30, 45),
    *(60, 90, 120, 180, 240, 300, 450, 600, 900, 1800),
)


def new_registry() -> CollectorRegistry:
    """Return a registry with the process families (CPU, RSS, descriptors, start time, Python version)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Return the text exposition."""
    return generate_latest(registry)


class HttpMetrics:
    """Requests of one HTTP listener."""

    def __init__(self, registry: CollectorRegistry, service: str = "api") -> None:
        self._service = service
        self._requests = Counter(
            "occ_http_requests",
            "Finished HTTP requests.",
            ("service", "route", "method", "status_class"),
            registry=registry,
        )
        self._seconds = Histogram(
            "occ_http_request_duration_seconds",
            "Time from the first byte of a request to the end of its answer.",
            ("service", "route", "method"),
            buckets=_HTTP_BUCKETS,
            registry=registry,
        )

    def finished(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a template or `unmatched`."""
        self._requests.labels(self._service, route, method, f"{status // 100}xx").inc()
        self._seconds.labels(self._service, route, method).observe(seconds)


class WorkerMetrics:
    """Passes, finished operations and the aggregate state of the queue, as one worker process sees them."""

    def __init__(self, registry: CollectorRegistry, service: str = "worker") -> None:
        self._service = service
        self._attempts = Counter(
            "occ_reconciliation_attempts",
            "Finished passes.",
            ("service", "work_kind", "outcome"),
            registry=registry,
        )
        self._attempt_seconds = Histogram(
            "occ_reconciliation_attempt_duration_seconds",
            "Time of a pass.",
            ("service", "work_kind"),
            buckets=_ATTEMPT_BUCKETS,
            registry=registry,
        )
        self._operation_seconds = Histogram(
            "occ_agent_operation_duration_seconds",
            "Time of a successful deploy or stop from its admission, waiting and retries included.",
            ("service", "operation"),
            buckets=_OPERATION_BUCKETS,
            registry=registry,
        )
        self._pending = Gauge(
            "occ_work_pending",
            "Queued and claimed work; aggregate with max across replicas.",
            ("service",),
            registry=registry,
        )
        self._oldest = Gauge(
            "occ_work_oldest_pending_age_seconds",
            "Age of the oldest pending work since its admission.",
            ("service",),
            registry=registry,
        )
        self._agents = Gauge(
            "occ_agents",
            "Agents by lifecycle state; not a health claim.",
            ("service", "lifecycle_state"),
            registry=registry,
        )
        for state in AGENT_STATES:
            self._agents.labels(service, state)

    def attempt(self, *, work_kind: str, outcome: str, seconds: float) -> None:
        """Count one pass; `outcome` is success, pending, retry, permanent, claim_lost or error."""
        self._attempts.labels(self._service, work_kind, outcome).inc()
        self._attempt_seconds.labels(self._service, work_kind).observe(seconds)

    def operation(self, *, operation: str, seconds: float) -> None:
        """Record a successful `deploy` or `stop`."""
        self._operation_seconds.labels(self._service, operation).observe(seconds)

    def queue(self, *, pending: int, oldest_age_seconds: float, agents: Mapping[str, int]) -> None:
        """Set the aggregates that one read-only statement found."""
        self._pending.labels(self._service).set(pending)
        self._oldest.labels(self._service).set(max(0.0, oldest_age_seconds))
        for state in AGENT_STATES:
            self._agents.labels(self._service, state).set(agents.get(state, 0))
