"""Reading the environment: what the Harness was told, checked before anything is started.

Two steps, because a wrong environment can only be *published* once port and token digest are known. The first raises
:class:`Unpublishable`, which ends the program; the second raises a held ``NOT_CONFIGURED``.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from oce.harness.codex.failure import HeldFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"
DEFAULT_BINARY = "/opt/oce/codex/bin/codex"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
# Whatever carries a credential or a digest; no child after the login inherits one of them.
CREDENTIAL_VARIABLES = (
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "ANTHROPIC_API_KEY",
    "APP_SERVER_TOKEN",
    "APP_TOKEN_SHA",
)
_FOREIGN_CREDENTIALS = ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "ANTHROPIC_API_KEY")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_PORTS = range(1024, 65536)
_MANIFEST_LIMIT = 65536


class Unpublishable(Exception):  # noqa: N818 - names the condition
    """Port or token digest are unusable, so that not even a failure can be published; the argument is the variable."""


class Listener(NamedTuple):
    """Where the app-server or the held document answers, and who may ask."""

    port: int
    token_sha256: str


class Placeholder:
    """The credential placeholder. Not a secret in a Sandbox, yet never shown: its repr hides it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value, for the login's standard input."""
        return self._value

    def __repr__(self) -> str:
        return "Placeholder(hidden)"


class Settings(NamedTuple):
    """A complete and checked environment. Paths are absolute."""

    listener: Listener
    placeholder: Placeholder
    binary: str
    codex_home: str
    workspace: str
    sessions: str | None
    model: str
    base_url: str | None
    config_source: str
    environment: dict[str, str]


def read_listener(environ: Mapping[str, str]) -> Listener:
    """Read port and digest. Raises Unpublishable."""
    port = environ.get("APP_SERVER_PORT", "")
    if not (port.isascii() and port.isdigit() and int(port) in _PORTS):
        raise Unpublishable("APP_SERVER_PORT")
    digest = environ.get("APP_TOKEN_SHA", "")
    if not _DIGEST.fullmatch(digest):
        raise Unpublishable("APP_TOKEN_SHA")
    return Listener(int(port), digest)


def read_settings(environ: Mapping[str, str], listener: Listener) -> Settings:
    """Read everything else. Raises HeldFailure(NOT_CONFIGURED) that names the first wrong variable."""
    if "APP_SERVER_TOKEN" in environ:
        raise _not_configured("APP_SERVER_TOKEN")
    if environ.get("CODEX_LOGIN_MODE") != "api_key":
        raise _not_configured("CODEX_LOGIN_MODE")
    placeholder = environ.get("OPENAI_API_KEY", "")
    if not placeholder.isascii() or not placeholder.isprintable() or not placeholder.strip():
        raise _not_configured("OPENAI_API_KEY")
    for name in _FOREIGN_CREDENTIALS:
        if name in environ:
            raise _not_configured(name)
    model = environ.get("OPENCLAW_HARNESS_MODEL", "")
    if not _MODEL.fullmatch(model):
        raise _not_configured("OPENCLAW_HARNESS_MODEL")
    binary = environ.get("CODEX_BINARY", DEFAULT_BINARY)
    if not binary.startswith("/") or not os.access(binary, os.X_OK):
        raise _not_configured("CODEX_BINARY")
    return Settings(
        listener=listener,
        placeholder=Placeholder(placeholder),
        binary=binary,
        codex_home=_absolute(environ, "CODEX_HOME"),
        workspace=_directory(environ, "OPENCLAW_WORKSPACE_DIR"),
        sessions=(
            _directory(environ, "OCE_CODEX_SESSIONS_DIR")
            if "OCE_CODEX_SESSIONS_DIR" in environ
            else None
        ),
        model=model,
        base_url=_base_url(environ),
        config_source=_file(environ, "OPENCLAW_PLUGIN_CODEX_CONFIG_TOML"),
        environment=child_environment(environ),
    )


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the app-server: the Sandbox's own without credentials, with a PATH and a log format."""
    kept = {key: value for key, value in environ.items() if key not in CREDENTIAL_VARIABLES}
    kept.setdefault("PATH", DEFAULT_PATH)
    kept.setdefault("LOG_FORMAT", "json")
    kept.setdefault("RUST_LOG", "warn,codex_otel=off")
    return kept


def _base_url(environ: Mapping[str, str]) -> str | None:
    """Read the model endpoint out of the manifest; the model probe needs it because it ignores ``config.toml``."""
    name = "OPENCLAW_PLUGIN_RUNTIME_MANIFEST"
    try:
        with open(_file(environ, name), "rb") as stream:  # noqa: PTH123 - pathlib costs start time
            manifest = json.loads(stream.read(_MANIFEST_LIMIT))
    except (OSError, ValueError) as error:
        raise _not_configured(name) from error
    if not isinstance(manifest, dict) or manifest.get("kind") != "codex":
        raise _not_configured(name)
    url = manifest.get("openaiBaseUrl")
    if url is not None and not isinstance(url, str):
        raise _not_configured(name)
    return url


def _absolute(environ: Mapping[str, str], name: str) -> str:
    path = environ.get(name, "")
    if not path.startswith("/"):
        raise _not_configured(name)
    return path


def _directory(environ: Mapping[str, str], name: str) -> str:
    path = _absolute(environ, name)
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib costs start time
        raise _not_configured(name)
    return path


def _file(environ: Mapping[str, str], name: str) -> str:
    path = _absolute(environ, name)
    if not os.path.isfile(path):  # noqa: PTH113 - pathlib costs start time
        raise _not_configured(name)
    return path


def _not_configured(variable: str) -> HeldFailure:
    return HeldFailure("NOT_CONFIGURED", check="login", variable=variable)
