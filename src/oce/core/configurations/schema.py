"""Every key that a Configuration may carry, what it means and what honours it.

The document is a subset of the native OpenClaw configuration: the part that this product honours. An unknown key is refused, because
a key that nothing reads is a promise that nobody keeps. `docs/reference/configuration.md` is generated from `KEYS`.

The Harness is chosen inside the document (reference/control-plane.md §5.3): see `harness_of`. Model credentials never stand here;
they reach a Harness through `harnessAuth`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from oce.contracts.refusals import Detail
from oce.domain.resources import SECRET_BINDINGS_MAX

if TYPE_CHECKING:
    from oce.domain.resources import Json

NETWORK_POLICY_KEY: Final = "sandbox-network-policy"
"""The Sandbox Driver's contribution to an Agent's document (mission document 003)."""
CODEX: Final = "codex"
OPENCLAW: Final = "openclaw"
_DEPTH_MAX: Final = 64
_URL_MAX: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `path` is dotted; `kind` `document` means that `honoured_by` judges what is inside."""

    path: str
    kind: Literal["string", "boolean", "url", "document"]
    meaning: str
    honoured_by: str
    choices: tuple[str, ...] = ()
    pattern: str = ""
    default: str = ""


KEYS: Final = (
    Key(
        path="agents.defaults.model.primary",
        kind="string",
        pattern=r"openai/[A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
        meaning="The model, `openai/<model>`. It runs on the Codex Harness.",
        honoured_by="Compute (config.toml `model`)",
    ),
    Key(
        path="agents.defaults.agentRuntime.id",
        kind="string",
        choices=("auto", CODEX, OPENCLAW),
        default="auto",
        meaning="The Harness by name, instead of deriving it from the model.",
        honoured_by="deploy admission",
    ),
    Key(
        path="models.providers.openai.baseUrl",
        kind="url",
        meaning="Base URL of the OpenAI-compatible endpoint; must be the one of the credential source.",
        default="the credential source's `base_url`",
        honoured_by="Compute (config.toml `openai_base_url`), checked at deploy",
    ),
    Key(
        path="models.providers.openai.api",
        kind="string",
        choices=("openai-responses",),
        default="openai-responses",
        meaning="Wire API of the endpoint. Codex speaks the Responses API only.",
        honoured_by="deploy admission",
    ),
    Key(
        path="plugins.entries.codex.enabled",
        kind="boolean",
        default="true",
        meaning="The Codex bridge; the Sandbox Driver turns it on for a Codex Agent.",
        honoured_by="Sandbox Driver (`configure_agent`)",
    ),
    Key(
        path="plugins.entries.codex.config.appServer.sandbox",
        kind="string",
        choices=("danger-full-access", "workspace-write", "read-only"),
        default="danger-full-access",
        meaning="Codex's inner sandbox. The OpenShell Sandbox is the boundary, so the Driver forces `danger-full-access`.",
        honoured_by="Sandbox Driver (`configure_agent`)",
    ),
    Key(
        path="plugins.entries.codex.config.appServer.approvalsReviewer",
        kind="string",
        choices=("user", "guardian"),
        default="user",
        meaning="Who reviews approvals; the Driver forces `user`.",
        honoured_by="Sandbox Driver (`configure_agent`)",
    ),
    Key(
        path="plugins.entries.codex.config.appServer.approvalPolicy",
        kind="string",
        choices=("never",),
        default="never",
        meaning="When Codex asks before it runs a command. Nobody could answer inside a Sandbox, so `never` is the only choice.",
        honoured_by="Compute (config.toml `approval_policy`)",
    ),
    Key(
        path="logging.level",
        kind="string",
        choices=("error", "warn", "info", "debug"),
        default="info",
        meaning="Level that OCC stamps into the revision's document. The Harness's own level is the operator's setting of Compute.",
        honoured_by="deploy (the logging stamp)",
    ),
    Key(
        path=f"{NETWORK_POLICY_KEY}.additions",
        kind="document",
        meaning="Further destinations that this Agent may reach, beside the operator's defaults.",
        honoured_by="Sandbox Driver (`admit_network_policy`)",
    ),
)

_BY_PATH: Final = {tuple(key.path.split(".")): key for key in KEYS}
_INNER: Final = {path[:length] for path in _BY_PATH for length in range(len(path))}
_CREDENTIAL_KEYS: Final = frozenset(
    ("apikey", "api_key", "headers", "env", "token", "authtoken", "auth", "password", "secret")
)
_LITERAL_CREDENTIAL: Final = re.compile(
    r"\b(sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|xox[abpr]-[\w-]{10,}|bearer\s+\S{16,})",
    re.IGNORECASE,
)
_ENVIRONMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,252}")
_RESERVED_PREFIXES: Final = (
    "OPENCLAW_",
    "CODEX_",
    "OCC_",
    "KUBERNETES_",
    "APP_SERVER_",
    "NODE_",
    "LD_",
    "DYLD_",
    "PYTHON",
    "SSL_",
    "TLS_",
    "NPM_",
    "PNPM_",
    "OTEL_",
    "OPENAI_",
    "ANTHROPIC_",
    "KUBECONFIG",
)
_RESERVED: Final = frozenset(
    [
        "LOG_FORMAT",
        "RUST_LOG",
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "ENV",
        "BASH_ENV",
        "IFS",
        "TMPDIR",
        "TMP",
        "TEMP",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    ]
)


def _pointer(path: tuple[str, ...]) -> str:
    escaped = (part.replace("~", "~0").replace("/", "~1") for part in path)
    text = "".join(f"/{part}" for part in escaped)
    return "".join(c if c.isprintable() else "?" for c in text)[:512]


def value_problems(values: Json) -> tuple[Detail, ...]:
    """Return everything that is wrong with a document; paths start at the document's root. Never a value."""
    if not isinstance(values, Mapping):
        return (Detail("", "INVALID_TYPE", "a Configuration is a JSON object"),)
    return tuple(_walk(values, ()))


def _walk(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Detail]:
    for name, value in node.items():
        here = (*path, name)
        key = _BY_PATH.get(here)
        if key is not None:
            yield from _leaf(key, value, here)
        elif here in _INNER:
            if isinstance(value, Mapping):
                yield from _walk(value, here)
            else:
                yield Detail(_pointer(here), "INVALID_TYPE", "an object belongs here")
        elif name.lower() in _CREDENTIAL_KEYS:
            yield Detail(
                _pointer(here),
                "INVALID_VALUE",
                "a model credential goes through harnessAuth and a credential source",
            )
        else:
            yield Detail(_pointer(here), "UNKNOWN_FIELD")


def _leaf(key: Key, value: object, path: tuple[str, ...]) -> Iterator[Detail]:
    where = _pointer(path)
    if key.kind == "document":
        yield from _document(value, path, 0)
        return
    if key.kind == "boolean":
        if not isinstance(value, bool):
            yield Detail(where, "INVALID_TYPE", "true or false")
        return
    if not isinstance(value, str):
        yield Detail(where, "INVALID_TYPE", "a string")
    elif _LITERAL_CREDENTIAL.search(value):
        yield Detail(where, "INVALID_VALUE", "looks like a literal credential")
    elif key.kind == "url":
        if not _is_url(value):
            yield Detail(
                where,
                "INVALID_FORMAT",
                "an absolute http or https URL without user, query or fragment",
            )
    elif key.choices and value not in key.choices:
        yield Detail(where, "INVALID_VALUE", f"one of {', '.join(key.choices)}")
    elif key.pattern and re.fullmatch(key.pattern, value) is None:
        yield Detail(where, "INVALID_FORMAT")


def _document(value: object, path: tuple[str, ...], depth: int) -> Iterator[Detail]:
    """Look inside a part that its Driver judges: only depth and literal credentials are our business."""
    if depth > _DEPTH_MAX:
        yield Detail(_pointer(path), "TOO_DEEP")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _document(inner, (*path, str(name)), depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _document(inner, (*path, str(index)), depth + 1)
    elif isinstance(value, str) and _LITERAL_CREDENTIAL.search(value):
        yield Detail(_pointer(path), "INVALID_VALUE", "looks like a literal credential")


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    return (
        len(value) <= _URL_MAX
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and not parts.query
        and not parts.fragment
        and value.isprintable()
        and " " not in value
    )


def binding_problems(names: Mapping[str, str]) -> tuple[Detail, ...]:
    """Return what is wrong with the environment names of secret bindings (reference/control-plane.md §5.3)."""
    if len(names) > SECRET_BINDINGS_MAX:
        return (Detail("/secretBindings", "TOO_LONG", f"at most {SECRET_BINDINGS_MAX}"),)
    problems: list[Detail] = []
    for name in names:
        where = _pointer(("secretBindings", name))
        upper = name.upper()
        if _ENVIRONMENT.fullmatch(name) is None:
            problems.append(Detail(where, "INVALID_FORMAT", "not an environment name"))
        elif upper in _RESERVED or upper.startswith(_RESERVED_PREFIXES):
            problems.append(Detail(where, "INVALID_VALUE", "a reserved environment name"))
    return tuple(problems)


def read(values: Json, path: str) -> Json:
    """Return what stands at a dotted path of a checked document, or None."""
    node: Any = values
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def harness_of(values: Json) -> str | None:
    """Return the Harness id that the document chooses, or None when it names no model to derive it from."""
    runtime = read(values, "agents.defaults.agentRuntime.id")
    if runtime in (CODEX, OPENCLAW):
        return str(runtime)
    model = read(values, "agents.defaults.model.primary")
    return CODEX if isinstance(model, str) else None


def stamp_logging(values: Json) -> dict[str, Any]:
    """Return a copy with the logging that OCC imposes on every revision: its level, JSON on the console, no exporter."""
    level = read(values, "logging.level") or "info"
    return {
        **values,
        "logging": {"level": level, "consoleLevel": level, "consoleStyle": "json"},
        "diagnostics": {"otel": {"enabled": False}},
    }
