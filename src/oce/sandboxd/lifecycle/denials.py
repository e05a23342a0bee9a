"""What was denied, counted by (host, port, program): the raw material of policy suggestions (reference/openshell-gateway.md b.9).

Kept in memory and bounded, like the log ring: a restart of the gateway forgets counts, never a decision that a person took about
a suggestion. Only connections that no rule allows count; a refused request of an allowed connection, or an address that is
refused whatever the policy says, has no rule that could be suggested.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from oce.sandboxd.egress.model import Decision

MOST = 200
"""Different denials kept for one Sandbox; the one not seen for longest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """One kind of denied connection; `id` is the same for the same denial of the same Sandbox, always."""

    id: str
    host: str
    port: int
    binaries: tuple[str, ...]
    reason: str
    hits: int
    first: float
    last: float


def denial_id(sandbox_id: str, host: str, port: int, binaries: Collection[str]) -> str:
    """Return the id, a digest over length-delimited parts."""
    digest = hashlib.sha256()
    for part in (sandbox_id, host, str(port), *sorted(binaries)):
        data = part.encode()
        digest.update(len(data).to_bytes(4) + data)
    return f"chunk-{digest.hexdigest()[:24]}"


def suggestible(decision: Decision) -> tuple[str, ...]:
    """Return the programs of a denied connection for which a rule can be suggested; empty: none can."""
    binaries = tuple(sorted(set(decision.binary.split(", "))))
    plain = (
        not decision.allowed
        and decision.activity == "NET:OPEN"
        and decision.engine == "opa"
        and decision.port > 0
        and decision.host not in {"", "-"}
        and all(binary.startswith("/") for binary in binaries)
    )
    return binaries if plain else ()


class DenialBook:
    """Denials by Sandbox id."""

    def __init__(self) -> None:
        self._denials: dict[str, dict[str, Denial]] = {}
        self._versions: dict[str, int] = {}

    def note(self, decision: Decision) -> None:
        """Count a decision when it is a denial that a rule could lift."""
        binaries = suggestible(decision)
        if not binaries:
            return
        held = self._denials.setdefault(decision.sandbox_id, {})
        key = denial_id(decision.sandbox_id, decision.host, decision.port, binaries)
        known = held.pop(key, None)
        if known is None:
            known = Denial(
                id=key,
                host=decision.host,
                port=decision.port,
                binaries=binaries,
                reason=decision.reason,
                hits=0,
                first=decision.time,
                last=decision.time,
            )
            self._versions[decision.sandbox_id] = self.version(decision.sandbox_id) + 1
        # Re-inserted at the end: the first entry is the one not seen for longest.
        held[key] = replace(known, hits=known.hits + 1, last=decision.time, reason=decision.reason)
        if len(held) > MOST:
            del held[next(iter(held))]

    def of(self, sandbox_id: str) -> tuple[Denial, ...]:
        """Return a Sandbox's denials, the longest unseen first."""
        return tuple(self._denials.get(sandbox_id, {}).values())

    def version(self, sandbox_id: str) -> int:
        """Return a number that grows with each new kind of denial."""
        return self._versions.get(sandbox_id, 0)

    def drop(self, sandbox_id: str, ids: Collection[str]) -> None:
        """Forget some denials."""
        held = self._denials.get(sandbox_id, {})
        for key in ids:
            held.pop(key, None)

    def forget(self, sandbox_id: str) -> None:
        """Forget a deleted Sandbox."""
        self._denials.pop(sandbox_id, None)
        self._versions.pop(sandbox_id, None)
