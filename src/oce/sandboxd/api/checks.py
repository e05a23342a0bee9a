"""Limits and shapes of what callers send (reference/openshell-gateway.md (e), a.3, a.4, b.1, b.2). Pure."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from typing import TYPE_CHECKING

from oce.sandboxd.state.refusals import conflict, invalid, missing, precondition
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from oce.sandboxd.api.calls import Call
    from oce.sandboxd.api.stubs import Proto
    from oce.sandboxd.state.store import Reader, Record

MAX_ROUTABLE = 19
PAGE_DEFAULT, PAGE_MAX = 100, 1000
_ROUTABLE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_MAX_KEY, _MAX_VALUE = 253, 8192
_MAX_ENVIRONMENT, _MAX_ENVIRONMENT_BYTES = 128, 256 * 1024
_MAX_ANNOTATIONS, _MAX_SELECTOR = 128, 64
_MAX_ARGUMENTS, _MAX_ARGUMENT_BYTES = 256, 256 * 1024
_MAX_PROVIDERS, _MAX_LOG_LEVEL = 32, 32
_MAX_PORT = 65535
_ADJECTIVES = (
    "amber",
    "brisk",
    "calm",
    "deft",
    "eager",
    "fond",
    "glad",
    "keen",
    "lucid",
    "merry",
    "noble",
    "quick",
)
_NOUNS = (
    "acorn",
    "beacon",
    "cedar",
    "delta",
    "ember",
    "fern",
    "grove",
    "heron",
    "inlet",
    "larch",
    "otter",
    "wren",
)


def routable_name(name: str, where: str) -> str:
    """Return a name that can be part of a service's host name. Raises INVALID_ARGUMENT."""
    if len(name) > MAX_ROUTABLE or not _ROUTABLE.fullmatch(name) or "--" in name:
        raise invalid(
            where,
            f"must be at most {MAX_ROUTABLE} characters of a-z, 0-9 and '-', without '-' at an edge or '--'",
        )
    return name


def generated_name(taken: Callable[[str], bool]) -> str:
    """Return a free adjective-noun name."""
    for _ in range(1000):
        name = f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}"
        if not taken(name):
            return name
        name = f"{name}-{secrets.token_hex(3)}"[:MAX_ROUTABLE]
        if not taken(name):
            return name
    raise precondition("no free name was found")


def environment(entries: Mapping[str, str], where: str, allowed: Sequence[str] = ()) -> None:
    """Check environment entries; `OPENSHELL_*` is reserved but for `allowed`."""
    if len(entries) > _MAX_ENVIRONMENT:
        raise invalid(where, f"has more than {_MAX_ENVIRONMENT} entries")
    total = 0
    for key, value in entries.items():
        if not _ENVIRONMENT.fullmatch(key):
            raise invalid(where, "has a key that is not a variable name")
        if key.startswith("OPENSHELL_") and key not in allowed:
            raise invalid(f"{where}[{key}]", "OPENSHELL_* is reserved")
        if "\0" in value or (len(value) > _MAX_VALUE and key not in allowed):
            raise invalid(f"{where}[{key}]", f"must be at most {_MAX_VALUE} characters without NUL")
        total += len(key) + len(value.encode())
    if total > _MAX_ENVIRONMENT_BYTES and not allowed:
        raise invalid(where, "is larger than 256 KiB")


def _key(key: str, where: str) -> None:
    prefix, slash, segment = key.rpartition("/")
    if (
        len(key) > _MAX_KEY
        or not _LABEL_SEGMENT.fullmatch(segment)
        or (slash and not _LABEL_PREFIX.fullmatch(prefix))
    ):
        raise invalid(where, "has a key that is not [prefix/]name")


def labels(entries: Mapping[str, str], where: str = "labels") -> None:
    """Check Kubernetes-like labels."""
    for key, value in entries.items():
        _key(key, where)
        if value and not _LABEL_SEGMENT.fullmatch(value):
            raise invalid(f"{where}[{key}]", "must be at most 63 characters of A-Z a-z 0-9 . _ -")


def check_annotations(entries: Mapping[str, str], where: str = "annotations") -> None:
    """Check annotations."""
    if len(entries) > _MAX_ANNOTATIONS:
        raise invalid(where, f"has more than {_MAX_ANNOTATIONS} entries")
    for key, value in entries.items():
        _key(key, where)
        if len(value) > _MAX_VALUE:
            raise invalid(f"{where}[{key}]", "is too long")


def sandbox_spec(spec: Proto) -> None:
    """Check what needs no other object."""
    environment(spec.environment, "spec.environment")
    environment(spec.template.environment, "spec.template.environment")
    labels(spec.template.labels, "spec.template.labels")
    if len(spec.log_level) > _MAX_LOG_LEVEL:
        raise invalid("spec.log_level", "is too long")
    if len(spec.command) > _MAX_ARGUMENTS or sum(map(len, spec.command)) > _MAX_ARGUMENT_BYTES:
        raise invalid("spec.command", "has more than 256 arguments or 256 KiB")
    if any("\0" in argument for argument in spec.command):
        raise invalid("spec.command", "must not contain NUL")
    if spec.command and not spec.command[0]:
        raise invalid("spec.command", "must name a program")
    if len(spec.providers) > _MAX_PROVIDERS or len(set(spec.providers)) != len(spec.providers):
        raise invalid("spec.providers", f"must be at most {_MAX_PROVIDERS} different names")
    if spec.restart_policy not in {0, 1, 2, 3}:
        raise invalid("spec.restart_policy", "has a value that is not known")
    if spec.HasField("resource_requirements"):
        raise invalid("spec.resource_requirements", "GPUs are not supported by this gateway")
    if spec.tty:
        raise invalid("spec.tty", "a terminal is not supported by this gateway")
    if spec.provider_attachment_epoch:
        raise invalid("spec.provider_attachment_epoch", "is set by the gateway")


def port(number: int, where: str) -> int:
    """Return a port number. Raises INVALID_ARGUMENT."""
    if not 0 < number <= _MAX_PORT:
        raise invalid(where, "must be a port from 1 to 65535")
    return number


def version_fence(expected: int, record: Record) -> None:
    """Raise ABORTED unless `expected` is 0 or the record's version (a.6)."""
    if expected and expected != record.version:
        raise conflict(record.version)


def active_workspace(reader: Reader, name: str, *, writing: bool = True) -> Record:
    """Return the workspace. Raises NOT_FOUND, and FAILED_PRECONDITION when it is being deleted."""
    record = reader.named(Kind.WORKSPACE, "", name)
    if record is None:
        raise missing("workspace", name)
    if writing and record.facts.get("terminating"):
        raise precondition(f"workspace '{name}' is being deleted")
    return record


def selector(text: str) -> dict[str, str]:
    """Parse `key=value,…` (equality only)."""
    pairs = [part for part in text.split(",") if part]
    if len(pairs) > _MAX_SELECTOR:
        raise invalid("label_selector", f"has more than {_MAX_SELECTOR} pairs")
    result = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise invalid("label_selector", "must be comma-joined key=value pairs")
        result[key.strip()] = value.strip()
    return result


def page(
    call: Call, records: Callable[[tuple[str, str, str]], Iterable[Record]]
) -> tuple[list[Record], str]:
    """Return one page and the next token (a.4). `records` yields in order, strictly after a position."""
    request = call.request
    if request.page_size < 0:
        raise invalid("page_size", "must not be negative")
    size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
    same = type(request)()
    same.CopyFrom(request)
    same.ClearField("page_token")
    mark = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()[:16]
    after = ("", "", "")
    if request.page_token:
        try:
            seen, *position = base64.urlsafe_b64decode(request.page_token).decode().split("\0")
            after = (position[0], position[1], position[2])
        except (ValueError, IndexError) as error:
            raise invalid("page_token", "is not a token of this gateway") from error
        if seen != mark:
            raise invalid("page_token", "belongs to a different request")
    found: list[Record] = []
    for record in records(after):
        if len(found) == size:
            last = found[-1]
            text = f"{mark}\0{last.workspace}\0{last.parent}\0{last.name}"
            return found, base64.urlsafe_b64encode(text.encode()).decode()
        found.append(record)
    return found, ""
