"""`Idempotency-Key` on creations and deploys (ours): the same key and request give the same resource.

The fingerprint is a SHA-256 of the request as canonical JSON, without any secret value. A key belongs to one principal, operation
and Namespace.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.refusals import Detail
from oce.core.errors import Conflict, InvalidRequest
from oce.store import idempotency as store
from oce.store.idempotency import KeyUse

if TYPE_CHECKING:
    from oce.core.platform import Actor, Platform
    from oce.store.database import Tx

KEY_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"


def use(
    actor: Actor, operation: str, scope: str, key: str | None, document: dict[str, Any]
) -> KeyUse | None:
    """Return what this request says about its key, or None without one. Raises InvalidRequest for a malformed key."""
    if key is None:
        return None
    if re.fullmatch(KEY_PATTERN, key) is None:
        raise InvalidRequest(
            "The Idempotency-Key is malformed.",
            details=(Detail("/idempotencyKey", "INVALID_FORMAT"),),
        )
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return KeyUse(
        principal_id=actor.principal_id,
        operation=operation,
        scope=scope,
        key=key,
        fingerprint=hashlib.sha256(canonical.encode()).digest(),
    )


def _answer(replay: store.Replay | None) -> str | None:
    if replay is None:
        return None
    if not replay.same:
        raise Conflict(code="IDEMPOTENCY_KEY_REUSED")
    return replay.resource_id


async def earlier(platform: Platform, key_use: KeyUse | None) -> str | None:
    """Return the id that this key made before. Raises Conflict IDEMPOTENCY_KEY_REUSED for another request."""
    if key_use is None:
        return None
    async with platform.db.read() as reader:
        return _answer(await store.find(reader, key_use))


async def claim(tx: Tx, key_use: KeyUse | None, resource_id: str) -> str | None:
    """Take the key for `resource_id`; returns the id that a concurrent request made instead. Raises Conflict."""
    if key_use is None:
        return None
    return _answer(await store.claim(tx, key_use, resource_id))


def gone() -> Conflict:
    """Return the refusal for a key whose resource was deleted since."""
    return Conflict("The resource made with this Idempotency-Key was deleted since.")
