"""What the environment tells a worker process (reference/worker-console.md §2). Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _Positive = Callable[[str, int], int]

_POSITIVE_MAX: Final = 2**53 - 1


class WorkerSettingsRefused(Exception):  # noqa: N818 - a refusal is the answer of a judgement
    """A variable is missing or not acceptable; names the variable, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Rules of one worker process."""

    lanes: int = 8
    poll: float = 0.25
    lease: float = 5.0
    max_attempts: int = 5
    convergence_timeout: float = 900.0
    database_timeout: float = 60.0
    pass_limit: float = 300.0
    """A pass that is longer than this is cancelled and counts as an unknown fault: nothing waits on a peer without end."""
    listen_idle: float = 30.0
    """A notification line that was silent for so long is replaced, because a half-open one is silent for ever."""
    shutdown_grace: float = 5.0
    readiness_path: Path | None = None
    liveness_path: Path | None = None

    @property
    def sweep(self) -> float:
        """Pause between two looks for expired claims."""
        return max(0.1, min(1.0, self.lease / 5))

    @property
    def health(self) -> float:
        """Pause between two health reports."""
        return max(1.0, 20 * self.poll)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where a private listener binds."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """Everything `worker.main` reads from its environment."""

    database_url: str
    config_path: Path
    worker: WorkerSettings
    metrics: Listen | None
    log_level: str = "info"


def from_environment(environment: Mapping[str, str]) -> WorkerProcess:
    """Read and check the variables. Raises WorkerSettingsRefused."""

    def required(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            raise WorkerSettingsRefused(f"{name} is required")
        return value

    def positive(name: str, default: int) -> int:
        text = environment.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _POSITIVE_MAX:
            raise WorkerSettingsRefused(f"{name} must be a positive integer")
        return int(text)

    def path(name: str) -> Path | None:
        text = environment.get(name)
        if not text:
            return None
        if not Path(text).is_absolute():
            raise WorkerSettingsRefused(f"{name} must be an absolute path")
        return Path(text)

    config = path("OCC_CONFIG_PATH")
    if config is None:
        raise WorkerSettingsRefused("OCC_CONFIG_PATH is required")
    return WorkerProcess(
        database_url=required("OCC_DATABASE_URL"),
        config_path=config,
        worker=WorkerSettings(
            lanes=positive("OCC_WORKER_LANES", 8),
            poll=positive("OCC_WORKER_POLL_INTERVAL_MS", 250) / 1000,
            lease=positive("OCC_WORKER_LEASE_DURATION_MS", 5000) / 1000,
            max_attempts=positive("OCC_WORKER_MAX_ATTEMPTS", 5),
            convergence_timeout=positive("OCC_WORKER_CONVERGENCE_TIMEOUT_MS", 900_000) / 1000,
            database_timeout=positive("OCC_WORKER_DATABASE_TIMEOUT_MS", 60_000) / 1000,
            readiness_path=path("OCC_WORKER_READINESS_PATH"),
            liveness_path=path("OCC_WORKER_LIVENESS_PATH"),
        ),
        metrics=_metrics(environment, positive),
        log_level=environment.get("OCC_LOG_LEVEL", "info"),
    )


def _metrics(environment: Mapping[str, str], positive: _Positive) -> Listen | None:
    enabled = environment.get("OCC_METRICS_ENABLED", "false")
    if enabled not in {"true", "false"}:
        raise WorkerSettingsRefused("OCC_METRICS_ENABLED must be true or false")
    named = {"OCC_METRICS_HOST", "OCC_METRICS_PORT"} & set(environment)
    if enabled == "false":
        if named:
            raise WorkerSettingsRefused(f"{min(named)} needs OCC_METRICS_ENABLED=true")
        return None
    return Listen(
        host=environment.get("OCC_METRICS_HOST", "127.0.0.1"),
        port=positive("OCC_METRICS_PORT", 9464),
    )
