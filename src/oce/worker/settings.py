"""What the environment tells a worker process (reference/worker-console.md §2). Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_POSITIVE_MAX: Final = 2**53 - 1
_PORT_MAX: Final = 65535
_LANES_MAX: Final = 256
_LOG_LEVELS: Final = frozenset(("debug", "info", "warn", "error"))


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
    exposure_sweep: float = 60.0
    """Pause between two rounds of the sweep for exposures that outlived their purpose."""
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


class _Variables:
    """The environment with the few shapes that a variable may have."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._found = environment

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def required(self, name: str) -> str:
        value = self._found.get(name, "")
        if not value:
            raise WorkerSettingsRefused(f"{name} is required")
        return value

    def one_of(self, name: str, default: str, values: frozenset[str]) -> str:
        value = self._found.get(name, default)
        if value not in values:
            raise WorkerSettingsRefused(f"{name} must be one of {', '.join(sorted(values))}")
        return value

    def positive(self, name: str, default: int, highest: int = _POSITIVE_MAX) -> int:
        text = self._found.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= highest):
            raise WorkerSettingsRefused(f"{name} must be a positive integer up to {highest}")
        return int(text)

    def path(self, name: str) -> Path | None:
        text = self._found.get(name)
        if not text:
            return None
        if not Path(text).is_absolute():
            raise WorkerSettingsRefused(f"{name} must be an absolute path")
        return Path(text)


def from_environment(environment: Mapping[str, str]) -> WorkerProcess:
    """Read and check the variables. Raises WorkerSettingsRefused."""
    found = _Variables(environment)
    config = found.path("OCC_CONFIG_PATH")
    if config is None:
        raise WorkerSettingsRefused("OCC_CONFIG_PATH is required")
    return WorkerProcess(
        database_url=found.required("OCC_DATABASE_URL"),
        config_path=config,
        worker=WorkerSettings(
            lanes=found.positive("OCC_WORKER_LANES", 8, _LANES_MAX),
            poll=found.positive("OCC_WORKER_POLL_INTERVAL_MS", 250) / 1000,
            lease=found.positive("OCC_WORKER_LEASE_DURATION_MS", 5000) / 1000,
            max_attempts=found.positive("OCC_WORKER_MAX_ATTEMPTS", 5),
            convergence_timeout=found.positive("OCC_WORKER_CONVERGENCE_TIMEOUT_MS", 900_000) / 1000,
            database_timeout=found.positive("OCC_WORKER_DATABASE_TIMEOUT_MS", 60_000) / 1000,
            readiness_path=found.path("OCC_WORKER_READINESS_PATH"),
            liveness_path=found.path("OCC_WORKER_LIVENESS_PATH"),
        ),
        metrics=_metrics(found),
        log_level=found.one_of("OCC_LOG_LEVEL", "info", _LOG_LEVELS),
    )


def _metrics(found: _Variables) -> Listen | None:
    named = [name for name in ("OCC_METRICS_HOST", "OCC_METRICS_PORT") if name in found]
    if found.one_of("OCC_METRICS_ENABLED", "false", frozenset(("true", "false"))) == "false":
        if named:
            raise WorkerSettingsRefused(f"{named[0]} needs OCC_METRICS_ENABLED=true")
        return None
    found.required("OCC_METRICS_PORT")
    host = found.required("OCC_METRICS_HOST") if "OCC_METRICS_HOST" in found else "127.0.0.1"
    return Listen(host=host, port=found.positive("OCC_METRICS_PORT", 0, _PORT_MAX))
