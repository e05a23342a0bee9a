"""The text of a service key: `occ_<key uuid in hex>_<256 random bits>`.

The id finds the row, the rest proves it. At rest there is only the SHA-256 of the secret part, compared in constant time; a slow
hash protects passwords, not random keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from typing import Final

from oce.domain.ids import IdKind, uuid_of
from oce.domain.secret import SecretText

_TEXT: Final = re.compile(r"occ_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")


def issue(key_id: str) -> tuple[SecretText, bytes]:
    """Return a fresh key text for that id, and the digest to store."""
    secret = secrets.token_urlsafe(32)
    text = f"occ_{uuid_of(key_id).replace('-', '')}_{secret}"
    return SecretText(text), digest(secret)


def digest(secret: str) -> bytes:
    """Return what is stored of a secret part."""
    return hashlib.sha256(secret.encode()).digest()


def parse(text: SecretText) -> tuple[str, str] | None:
    """Return (key id, secret part) of a key text, or None when it is not one."""
    match = _TEXT.fullmatch(text.reveal())
    if match is None:
        return None
    return f"{IdKind.SERVICE_KEY}_{uuid.UUID(hex=match[1])}", match[2]


def verify(secret: str, stored: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(digest(secret), stored)
