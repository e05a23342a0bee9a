"""One-line JSON logs on standard output. Values are numbers, fixed words and identifiers; never a credential or model text."""

from __future__ import annotations

import json
import sys
import time


def iso_time(seconds: float) -> str:
    """Render a time since the epoch as UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def event(name: str, **fields: str | float | None) -> None:
    """Write one event; fields that are None are left out."""
    line: dict[str, str | float] = {"time": iso_time(time.time()), "event": name}
    line.update({key: value for key, value in fields.items() if value is not None})
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def phase(name: str, started: float) -> None:
    """Write how long a startup phase took; ``started`` is a monotonic time."""
    elapsed = round((time.monotonic() - started) * 1000, 1)
    event("runtime.startup_phase", phase=name, duration_ms=elapsed)
