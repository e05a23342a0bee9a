"""Publishing a held failure: the document of reference/kubernetes-compute.md §13.7, on the port where the app-server would be.

Only the holder of the transport token may read it. Any request with an ``Origin`` is refused before anything else, as the real
app-server does, so that no web page can use it. One request per connection, one connection at a time, two seconds each.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
import time

from oce.harness.codex import log
from oce.harness.codex.environment import HOST, Listener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oce.harness.codex.children import Children
    from oce.harness.codex.failure import HeldFailure

STATUS_PATH = "/openclaw/runtime/status"
REQUEST_SECONDS = 2.0
MAX_HEAD_BYTES = 16 * 1024
REOPEN_SECONDS = 1.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
}


def document(failure: HeldFailure, checked_at: float) -> dict[str, object]:
    """Return the document; ``checked_at`` in seconds since the epoch."""
    held: dict[str, object] = {
        "component": "agent",
        "check": failure.check,
        "checkedAt": log.iso_time(checked_at),
        "code": failure.code,
    }
    if failure.cause is not None:
        detail = {} if failure.cause.detail is None else {"detail": failure.cause.detail}
        held["cause"] = {"kind": failure.cause.kind, **detail}
    return {"runtimeFailure": held}


def answer(head: bytes, verifier: str, held: dict[str, object]) -> tuple[int, dict[str, object]]:
    """Decide status and body for the head of a request (up to the empty line)."""
    lines = head.decode("latin-1").split("\r\n")
    request = lines[0].split(" ")
    if len(request) != 3 or not request[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
        return 400, {"error": "bad_request"}
    headers: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip(" \t"))
    if "origin" in headers:
        return 403, {"error": "forbidden"}
    if not _authorized(headers.get("authorization", []), verifier):
        return 401, {"error": "unauthorized"}
    if request[0] != "GET" or request[1] != STATUS_PATH:
        return 404, {"error": "not_found"}
    return 200, held


def _authorized(given: list[str], verifier: str) -> bool:
    """Require exactly one ``Bearer <printable ASCII>`` whose SHA-256 is the verifier, compared in constant time."""
    if len(given) != 1:
        return False
    scheme, space, token = given[0].partition(" ")
    if scheme.lower() != "bearer" or not space or not token:
        return False
    if not all("!" <= character <= "~" for character in token):
        return False
    return hmac.compare_digest(hashlib.sha256(token.encode()).hexdigest(), verifier)


def response(status: int, body: dict[str, object]) -> bytes:
    """Render a complete HTTP/1.1 response that closes the connection."""
    content = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
        f"cache-control: no-store\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + content


def hold(failure: HeldFailure, listener: Listener, children: Children) -> None:
    """Serve the document until told to stop. A port that cannot be opened is logged and tried again."""
    held = document(failure, time.time())
    log.event(
        "runtime.held_failure",
        code=failure.code,
        check=failure.check,
        cause=None if failure.cause is None else failure.cause.kind,
        detail=None if failure.cause is None else failure.cause.detail,
        variable=failure.variable,
    )
    while not children.stopping():
        try:
            with socket.create_server((HOST, listener.port), backlog=16) as server:
                _serve(server, listener, held, children)
        except OSError as error:
            log.event("runtime.held_failure_port", error=str(error.errno))
            children.sleep(REOPEN_SECONDS)


def _serve(
    server: socket.socket, listener: Listener, held: dict[str, object], children: Children
) -> None:
    while not children.stopping():
        ready, _, _ = select.select([server.fileno(), children.fileno()], [], [])
        if server.fileno() in ready:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                _converse(connection, listener, held)


def _converse(connection: socket.socket, listener: Listener, held: dict[str, object]) -> None:
    deadline = time.monotonic() + REQUEST_SECONDS
    head = b""
    while b"\r\n\r\n" not in head:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        data = connection.recv(4096)
        head += data
        if not data or len(head) > MAX_HEAD_BYTES:
            return
    connection.sendall(
        response(*answer(head.partition(b"\r\n\r\n")[0], listener.token_sha256, held))
    )
