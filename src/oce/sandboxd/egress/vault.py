"""The credential values: encrypted at rest, never read back by anyone, gone when told.

One file holds all providers, sealed with AES-256-GCM under a key file of mode 0600 beside it; each write replaces the file
atomically. Values stay in memory while the process lives, because each request may need one. This is no Secret store: the
gateway puts values in again whenever versions differ.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_KEY_BYTES = 32
_NONCE_BYTES = 12
_PURPOSE = b"oce egress vault 1"


class VaultError(Exception):
    """The vault on disk cannot be used: its key is missing or wrong, or the file was changed."""


@dataclass(frozen=True, slots=True)
class _Stored:
    version: int
    values: dict[str, str] = field(repr=False)


class Vault:
    """Provider id → version and values. Raises VaultError when opened on something it cannot read."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "vault.sealed"
        self._cipher = AESGCM(_key(directory / "vault.key", sealed_exists=self._file.exists()))
        self._providers: dict[str, _Stored] = self._load()

    def put(self, provider_id: str, version: int, values: Mapping[str, str]) -> None:
        """Store; a version lower than the stored one is ignored."""
        known = self._providers.get(provider_id)
        if known is not None and version < known.version:
            return
        self._replace({**self._providers, provider_id: _Stored(version, dict(values))})

    def delete(self, provider_id: str) -> None:
        """Forget a provider; absent is fine."""
        if provider_id in self._providers:
            self._replace({k: v for k, v in self._providers.items() if k != provider_id})

    def versions(self) -> dict[str, int]:
        """Return provider id to stored version."""
        return {key: stored.version for key, stored in self._providers.items()}

    def value(self, provider_id: str, key: str) -> str | None:
        """Return one value for substitution, None when it is not here."""
        stored = self._providers.get(provider_id)
        return None if stored is None else stored.values.get(key)

    def _load(self) -> dict[str, _Stored]:
        try:
            sealed = self._file.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _PURPOSE)
        except (InvalidTag, ValueError):
            raise VaultError("the credential vault does not open with its key") from None
        return msgspec.json.decode(plain, type=dict[str, _Stored])

    def _replace(self, providers: dict[str, _Stored]) -> None:
        """Write first, believe afterwards: memory never knows more than the disk."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, msgspec.json.encode(providers), _PURPOSE)
        write_private(self._file, sealed)
        self._providers = providers


def _key(path: Path, *, sealed_exists: bool) -> bytes:
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        if sealed_exists:
            raise VaultError("the key of the credential vault is missing") from None
        key = secrets.token_bytes(_KEY_BYTES)
        write_private(path, key)
    if len(key) != _KEY_BYTES:
        raise VaultError("the key of the credential vault is damaged")
    return key


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably, mode 0600."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
