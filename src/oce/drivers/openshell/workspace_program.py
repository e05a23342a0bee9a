"""The program that writes an Agent's initial workspace files inside its Sandbox; the document comes on stdin, never as an argument.

The Driver sends this file's own text to the Sandbox's interpreter, so it stands on the standard library alone. It writes each file
atomically, never replaces one that is there (a person's or the Agent's edit survives), and then leaves a completion marker. A second
run of the same setup does nothing; another setup's marker is a refusal. It prints one fixed word and no content.
"""

from __future__ import annotations

import json
import os
import sys
import time

MARKER = ".oce-workspace-setup.json"
NAMES = ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md")
FILE_MAX = 16_384
INPUT_MAX = 400_000
DONE, FAILED, REFUSED = 0, 1, 3
_OWN = ("id", "namespaceId", "agentId", "defaultsId")
_TEMPORARY = (".oce-", ".tmp")
_STALE_SECONDS = 600  # twice what one run may take
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):  # noqa: N818 - a word for the caller, not a malfunction
    """The workspace belongs to another setup, or the document cannot be used."""


def initialise(document: object, directory: str) -> None:
    """Write what is missing, then the marker. Raises Refused, OSError."""
    if not isinstance(document, dict):
        raise Refused
    marker = {key: document[key] for key in _OWN if document.get(key) is not None}
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    try:
        _sweep(folder)
        found = _marker(folder)
        if found is not None:
            if found != marker:
                raise Refused
            return
        for name, content in _files(document).items():
            _write_new(folder, name, content)
        _write_new(folder, MARKER, json.dumps(marker, sort_keys=True).encode())
        if _marker(folder) != marker:
            raise Refused
    finally:
        os.close(folder)


def _sweep(folder: int) -> None:
    """Remove what a run that died left behind; a run that may still live is left alone."""
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1]):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if time.time() - status.st_mtime > _STALE_SECONDS:
                os.unlink(name, dir_fd=folder)


def _files(document: dict[str, object]) -> dict[str, bytes]:
    files = document.get("files")
    if not isinstance(files, dict) or not files.keys() <= set(NAMES):
        raise Refused
    found: dict[str, bytes] = {}
    for name, text in files.items():
        content = text.encode() if isinstance(text, str) else None
        if content is None or len(content) > FILE_MAX:
            raise Refused
        found[name] = content
    return found


def _marker(folder: int) -> object:
    try:
        handle = os.open(MARKER, os.O_RDONLY | _FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            found: object = json.loads(file.read(FILE_MAX))
        except ValueError:
            raise Refused from None
    if found is None:
        raise Refused
    return found


def _write_new(folder: int, name: str, content: bytes) -> None:
    """Write a file that is not there yet: whole or not at all, also when two runs meet or one dies."""
    temporary = f"{_TEMPORARY[0]}{os.urandom(8).hex()}{_TEMPORARY[1]}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return
        os.fsync(folder)
    finally:
        os.unlink(temporary, dir_fd=folder)


def main() -> int:
    """Run inside the Sandbox; returns the exit code that the Driver reads."""
    raw = sys.stdin.buffer.read(INPUT_MAX + 1)
    try:
        document = json.loads(raw) if len(raw) <= INPUT_MAX else None
        initialise(document, os.environ["OPENCLAW_WORKSPACE_DIR"])
    except (Refused, ValueError, RecursionError):
        return _say("refused", REFUSED)
    except (OSError, KeyError):
        return _say("failed", FAILED)
    return _say("done", DONE)


def _say(word: str, code: int) -> int:
    sys.stdout.write(f"{word}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
