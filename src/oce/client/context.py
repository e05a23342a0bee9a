"""Contexts: where the control plane is and which key file to use, written by `occ up` and found by every other command.

A context is a small JSON file, 0600, under `$OCC_HOME/contexts` (else `$XDG_CONFIG_HOME/occ/contexts`); `current` beside that folder holds
the name in use. It names a key *file*; the key itself is never in it. Environment variables win over the file (`OCC_URL`,
`OCC_SERVICE_KEY_FILE`, `OCC_NAMESPACE`, `OCC_CA_BUNDLE`, `OCC_TIMEOUT_SECONDS`), and nothing switches TLS verification off.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oce.client.errors import ContextError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_START_HINT: Final = "`occ up` starts one on this machine and writes a context; or set OCC_URL and OCC_SERVICE_KEY_FILE."
DEFAULT_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One control plane. Paths are absolute; empty text means not set."""

    name: str
    url: str
    ca_file: str = ""
    key_file: str = ""
    namespace: str = ""
    """Name or id."""
    gateway_url: str = ""
    """The Agent Gateway, for `occ agent chat`."""
    state_dir: str = ""
    """The state directory of the `occ up` that wrote this context."""


def home(environment: Mapping[str, str]) -> Path:
    """Return the folder that holds the contexts."""
    if environment.get("OCC_HOME"):
        return Path(environment["OCC_HOME"])
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~"), ".config")
    return Path(base, "occ").expanduser()


class Contexts:
    """The contexts of one person."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where everything of this person lies (also chat threads)."""
        return self._folder

    def names(self) -> list[str]:
        """Return the names of all contexts, sorted."""
        return sorted(path.stem for path in (self._folder / "contexts").glob("*.json"))

    def current(self) -> str | None:
        """Return the name in use."""
        try:
            return (self._folder / "current").read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def load(self, name: str) -> Context:
        """Read one context. Raises ContextError."""
        path = self._path(name)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known = {field.name for field in fields(Context)}
            values = {_snake(key): str(value) for key, value in document.items()}
            return Context(**{key: value for key, value in values.items() if key in known})
        except FileNotFoundError:
            raise ContextError(f"There is no context named {name!r}.", _START_HINT) from None
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise ContextError(
                f"The context file {path} cannot be read: {type(error).__name__}."
            ) from None

    def save(self, context: Context, *, use: bool = True) -> Path:
        """Write a context atomically with mode 0600 and, when asked, make it the current one."""
        path = self._path(context.name)
        document = {_camel(key): value for key, value in asdict(context).items() if value}
        write_private(path, json.dumps(document, indent=2) + "\n")
        if use:
            self.use(context.name)
        return path

    def use(self, name: str) -> None:
        """Make a context the current one. Raises ContextError when it is not there."""
        self.load(name)
        write_private(self._folder / "current", name + "\n")

    def remove(self, name: str) -> None:
        """Forget a context; absent is fine."""
        self._path(name).unlink(missing_ok=True)
        if self.current() == name:
            (self._folder / "current").unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ContextError(
                "A context name has 1 to 63 lower-case letters, digits, dots, underscores and dashes."
            )
        return self._folder / "contexts" / f"{name}.json"


def select(
    contexts: Contexts, environment: Mapping[str, str], overrides: Mapping[str, str | None]
) -> Context:
    """Return the context to use: the named or current file, then the environment, then command-line overrides.

    `overrides` may hold `context`, `url`, `ca_file`, `key_file` and `namespace`. Raises ContextError when nothing says where the API is.
    """
    name = overrides.get("context") or environment.get("OCC_CONTEXT") or contexts.current()
    base = contexts.load(name) if name else Context(name="environment", url="")
    from_environment = {
        "url": environment.get("OCC_URL"),
        "ca_file": environment.get("OCC_CA_BUNDLE"),
        "key_file": environment.get("OCC_SERVICE_KEY_FILE"),
        "namespace": environment.get("OCC_NAMESPACE"),
    }
    for layer in (from_environment, overrides):
        changes = {key: value for key in from_environment if (value := layer.get(key)) is not None}
        base = replace(base, **changes)
    if not base.url:
        raise ContextError("No control plane is known here.", _START_HINT)
    return base


def timeout_seconds(environment: Mapping[str, str], override: float | None = None) -> float:
    """Return the request timeout. Raises ContextError for a value that is no positive number."""
    if override is not None:
        return override
    text = environment.get("OCC_TIMEOUT_SECONDS")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ContextError("OCC_TIMEOUT_SECONDS must be a positive number of seconds.")
    return seconds


def read_key(path: str) -> str:
    """Return the key in a key file: the plain key, or the JSON that bootstrap and `occ key create` write. Raises ContextError."""
    if not path:
        raise ContextError(
            "No service key file is set.",
            "Set OCC_SERVICE_KEY_FILE, or use a context that names one: `occ context list`.",
        )
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
        if text.startswith("{"):
            document = json.loads(text)
            text = str(document.get("data", document)["key"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContextError(
            f"The service key file {path} cannot be read: {type(error).__name__}.", _START_HINT
        ) from None
    if not text or not text.isascii() or not text.isprintable():
        raise ContextError(f"The service key file {path} holds no key.")
    return text


def write_private(path: Path, text: str) -> None:
    """Write a file so that it is whole or absent, and only its owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    try:
        reserve_private(temporary)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), name)


def reserve_private(path: Path) -> None:
    """Create an empty 0600 file that was not there. Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
