"""`template.resources` in the words clients know from Kubernetes (`{"limits": {"cpu": "500m", "memory": "1Gi"}}`) to limits. Pure.

Only limits: one machine reserves nothing, so `requests` are refused, and so is whatever else stands there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from oce.sandboxd.state.refusals import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.place import Limits

_WHERE = "spec.template.resources"
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_CPU = re.compile(rf"{_NUMBER}(m?)")
_MEMORY = re.compile(rf"{_NUMBER}([kMGTP]|[KMGTP]i)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_MOST = 2.0**62


def cpus(text: str) -> float:
    """Return a CPU quantity (`2`, `0.5`, `500m`) as a number of CPUs. Raises ValueError."""
    match = _CPU.fullmatch(text)
    value = 0.0 if match is None else float(match[1]) / (1000 if match[2] else 1)
    if value <= 0:
        raise ValueError(text)
    return value


def octets(text: str) -> int:
    """Return a memory quantity (`512Mi`, `1G`, `1048576`) in bytes. Raises ValueError."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    unit = match[2] or ""
    base = 1024 if unit.endswith("i") else 1000
    value = float(match[1]) * (base ** _POWERS[unit[0]] if unit else 1)
    if not 1 <= value < _MOST:
        raise ValueError(text)
    return int(value)


def resource_limits(resources: Mapping[str, object], own: Limits) -> Limits:
    """Return `own` (from `driver_config.local.limits`) with the resources' limits. Raises Refusal."""
    for key in resources:
        if key != "limits":
            raise invalid(f"{_WHERE}.{key}", "is not supported by this gateway; only limits are")
    found = resources.get("limits", {})
    if not isinstance(found, dict):
        raise invalid(f"{_WHERE}.limits", "must be an object")
    result = own
    taken = {"cpu": own.cpu_fraction, "memory": own.memory_bytes}
    for key, value in found.items():
        where = f"{_WHERE}.limits.{key}"
        if key not in taken:
            raise invalid(where, "is not a limit of this gateway")
        if taken[key] is not None:
            raise invalid(where, "is also set in driver_config.local.limits")
        try:
            if key == "cpu":
                result = replace(result, cpu_fraction=cpus(str(value)))
            else:
                result = replace(result, memory_bytes=octets(str(value)))
        except ValueError as error:
            raise invalid(where, "is not a quantity like 500m or 1Gi") from error
    return result
