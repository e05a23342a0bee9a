"""Reading route documents: where the active revision of an Agent answers.

Compute writes ``<routes_dir>/<agent id>.json`` atomically with mode 0600; this side only reads. A document that does not fit its closed
shape routes nowhere: the Agent fails closed instead of being guessed at.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1
MAX_DOCUMENT_BYTES = 1024 * 1024
AGENT_ID = re.compile(r"agt_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class RouteError(Exception):
    """The document is not a route; the message names the member, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How to reach a Harness: TCP to ``connect``, TLS and Host as ``url`` says, bearer ``token``."""

    url: str
    host: str
    host_header: str
    path: str
    tls: bool
    connect: tuple[str, int]
    ca_file: str | None
    ca_bundle: str | None
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One version of an Agent's route. ``target`` None: nothing is served."""

    namespace_id: str
    agent_id: str
    generation: int
    revision_id: str | None
    target: Target | None
    drain_seconds: float

    def same_place(self, other: Route) -> bool:
        """Whether connections to ``other`` may stay when this route replaces it."""
        return (self.revision_id, self.target) == (other.revision_id, other.target)


def parse(content: bytes) -> Route:
    """Read a document. Raises RouteError."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise RouteError("not JSON") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise RouteError("version")
    revision = document.get("revisionId")
    if revision is not None and not isinstance(revision, str):
        raise RouteError("revisionId")
    return Route(
        namespace_id=_text(document, "namespaceId"),
        agent_id=_text(document, "agentId"),
        generation=int(_number(document, "generation")),
        revision_id=revision,
        target=None if revision is None else _target(document),
        drain_seconds=_number(document, "drainSeconds"),
    )


def _target(document: dict[str, Any]) -> Target:
    url = _text(document, "target")
    parts = urlsplit(url)
    connect = _address(_text(document, "connect"))
    if parts.scheme not in {"ws", "wss"} or not parts.hostname or parts.username or parts.query:
        raise RouteError("target")
    if parts.scheme == "ws" and connect[0] not in _LOOPBACK:
        # The transport token never travels in clear text over a network.
        raise RouteError("target")
    token = _text(document, "transportToken")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise RouteError("transportToken")
    return Target(
        url=url,
        host=parts.hostname,
        host_header=parts.netloc,
        path=parts.path or "/",
        tls=parts.scheme == "wss",
        connect=connect,
        ca_file=_optional(document, "caFile"),
        ca_bundle=_optional(document, "caBundle"),
        token=token,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise RouteError("connect")
    return host.strip("[]"), int(port)


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise RouteError(key)
    return value


def _optional(document: dict[str, Any], key: str) -> str | None:
    return None if document.get(key) is None else _text(document, key)


def _number(document: dict[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise RouteError(key)
    return value


class RouteReader:
    """Reads documents from a directory; an unchanged file (inode, time, size) is not parsed again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int, int], Route]] = {}

    def usable(self) -> bool:
        """Whether the directory can be read at all."""
        try:
            next(self._directory.iterdir(), None)
        except OSError:
            return False
        return True

    def read(self, agent_id: str) -> Route | None:
        """Return the Agent's route, None when there is no document. Raises RouteError, OSError."""
        if not AGENT_ID.fullmatch(agent_id):
            return None
        path = self._directory / f"{agent_id}.json"
        try:
            found = path.stat()
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            known = self._known.get(agent_id)
            if known is not None and known[0] == mark:
                return known[1]
            if found.st_size > MAX_DOCUMENT_BYTES:
                raise RouteError("size")
            route = parse(path.read_bytes())
        except FileNotFoundError:
            self._known.pop(agent_id, None)
            return None
        if route.agent_id != agent_id:
            raise RouteError("agentId")
        self._known[agent_id] = (mark, route)
        return route
