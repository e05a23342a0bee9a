"""One-line JSON logs on standard output: fixed event names, identifiers and numbers; never a key, a token or a message body."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime


def event(name: str, **fields: str | float | None) -> None:
    """Write one event; fields that are None are left out."""
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    given = {key: value for key, value in fields.items() if value is not None}
    line = json.dumps({"time": moment, "event": name, **given}, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
