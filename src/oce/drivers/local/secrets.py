"""SecretDriver of one machine: each value is an encrypted file.

AES-256-GCM under a key file that is made on first use (0600, never rewritten). The locator is the associated data, so that a file
copied over another one does not decrypt. It protects the values in backups and in a copied state directory without its key file; it
does not protect them from somebody who reads both.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import re
import stat
import uuid
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from oce.contracts.refusals import NotVisible
from oce.domain.names import digest
from oce.domain.resources import SecretLocator
from oce.domain.secret import SecretText
from oce.drivers.local.files import (
    create_exclusive,
    locked,
    make_private,
    remove_file,
    write_atomic,
)

if TYPE_CHECKING:
    from pathlib import Path

    from oce.contracts.sandbox import PhysicalNamespace

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VALUE_KEY: Final = "value"
_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class SecretStoreError(Exception):
    """The key file or a value file is not usable; names the file, never its content."""


def secret_file_name(namespace_id: str, secret_id: str) -> str:
    """Return the deterministic name of a Secret's file: `sec-` + 32 hex."""
    return f"sec-{digest('local-secret', namespace_id, secret_id)[:32]}"


def _associated(locator: SecretLocator) -> bytes:
    parts = (locator.driver_id, locator.namespace_name, locator.name, locator.key, locator.uid)
    return digest(*parts).encode()


def seal(key: bytes, locator: SecretLocator, value: SecretText) -> bytes:
    """Return the file content of a value."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = AESGCM(key).encrypt(nonce, value.reveal().encode(), _associated(locator))
    document = {
        "version": 1,
        "uid": locator.uid,
        "sealed": base64.b64encode(nonce + sealed).decode(),
    }
    return json.dumps(document).encode()


def unseal(key: bytes, locator: SecretLocator, content: bytes) -> SecretText:
    """Return the value. Raises NotVisible for another object's file, SecretStoreError for a broken one."""
    try:
        document = json.loads(content)
        uid, raw = document["uid"], base64.b64decode(document["sealed"], validate=True)
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise SecretStoreError(f"the value file of {locator.name} is damaged") from error
    if uid != locator.uid:
        raise NotVisible(f"Secret {locator.name} was replaced")
    try:
        plain = AESGCM(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _associated(locator))
    except InvalidTag as error:
        raise SecretStoreError(
            f"the value file of {locator.name} does not match the key file"
        ) from error
    return SecretText(plain.decode())


class LocalSecretDriver:
    """Values under `directory/<physical namespace>/<name>.json`; implements `contracts.stores.SecretDriver`."""

    implementation = "local-files"

    def __init__(self, directory: Path, key_file: Path, *, driver_id: str = "secret-local") -> None:
        self.id = driver_id
        self._directory = directory
        self._key_file = key_file
        self._key: bytes | None = None

    async def create(
        self, namespace: PhysicalNamespace, secret_id: str, value: SecretText
    ) -> SecretLocator:
        """Store a new value under its deterministic name; repeating it with the same id replaces the value."""
        return await asyncio.to_thread(self._create, namespace, secret_id, value)

    async def update(self, locator: SecretLocator, value: SecretText) -> None:
        """Replace the value. Raises NotVisible when it is gone or another driver's."""
        await asyncio.to_thread(self._update, locator, value)

    async def resolve(self, locator: SecretLocator) -> SecretText:
        """Return the value. Raises NotVisible when it is gone, SecretStoreError when it cannot be decrypted."""
        return await asyncio.to_thread(self._resolve, locator)

    async def delete(self, locator: SecretLocator) -> None:
        """Forget the value; absent is fine, and so is a file that belongs to a later object."""
        await asyncio.to_thread(self._delete, locator)

    def _create(
        self, namespace: PhysicalNamespace, secret_id: str, value: SecretText
    ) -> SecretLocator:
        key = self._load_key()
        name = secret_file_name(namespace.id, secret_id)
        path = self._path(namespace.name, name)
        make_private(path.parent)
        with locked(path.parent / ".lock"):
            locator = SecretLocator(
                driver_id=self.id,
                namespace_name=namespace.name,
                name=name,
                key=VALUE_KEY,
                uid=_uid_of(path) or str(uuid.uuid4()),
            )
            write_atomic(path, seal(key, locator, value))
        return locator

    def _update(self, locator: SecretLocator, value: SecretText) -> None:
        path = self._path_of(locator)
        if not path.parent.is_dir():
            raise NotVisible(f"Secret {locator.name} is gone")
        with locked(path.parent / ".lock"):
            self._resolve(locator)
            write_atomic(path, seal(self._load_key(), locator, value))

    def _resolve(self, locator: SecretLocator) -> SecretText:
        try:
            content = self._path_of(locator).read_bytes()
        except FileNotFoundError as error:
            raise NotVisible(f"Secret {locator.name} is gone") from error
        return unseal(self._load_key(), locator, content)

    def _delete(self, locator: SecretLocator) -> None:
        path = self._path_of(locator)
        if not path.parent.is_dir():
            return
        with locked(path.parent / ".lock"):
            if _uid_of(path) == locator.uid:
                remove_file(path)

    def _path_of(self, locator: SecretLocator) -> Path:
        if locator.driver_id != self.id:
            raise NotVisible(f"Secret {locator.name} belongs to the Driver {locator.driver_id}")
        return self._path(locator.namespace_name, locator.name)

    def _path(self, namespace_name: str, name: str) -> Path:
        for part in (namespace_name, name):
            if not _SAFE.fullmatch(part):
                raise NotVisible("the locator is not one of this Driver")
        return self._directory / namespace_name / f"{name}.json"

    def _load_key(self) -> bytes:
        if self._key is None:
            if not self._key_file.exists():
                make_private(self._key_file.parent)
                create_exclusive(self._key_file, os.urandom(KEY_BYTES))
            mode = stat.S_IMODE(self._key_file.stat().st_mode)
            if mode & 0o077:
                raise SecretStoreError(
                    f"{self._key_file.name} must be readable by its owner alone (chmod 600)"
                )
            key = self._key_file.read_bytes()
            if len(key) != KEY_BYTES:
                raise SecretStoreError(f"{self._key_file.name} is not a key of {KEY_BYTES} bytes")
            self._key = key
        return self._key


def _uid_of(path: Path) -> str | None:
    """Return the object's identity recorded in a value file, or None when there is no such file."""
    try:
        uid = json.loads(path.read_bytes())["uid"]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise SecretStoreError(f"the value file {path.name} is damaged") from error
    return uid if isinstance(uid, str) else None
