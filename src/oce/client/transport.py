"""HTTPS requests with the standard library.

A command such as `occ agent get` lives for a tenth of a second, so the transport is `http.client` over `ssl`: importing it costs 40 ms less
wall time than any third-party client (measured in docs/benchmarks.md). One connection is kept open for the life of the object.
Redirects are not followed, TLS verification cannot be switched off, and plain HTTP is accepted to this machine's loopback only.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode, urlsplit

from oce.client.errors import ErrorDetail, Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oce.domain.secret import SecretText

Json = Any
_ANSWER_MAX: Final = 64 * 1024 * 1024
_UP_HINT: Final = "Is the control plane running? `occ up` starts one on this machine; `occ status` shows what runs."


@dataclass(frozen=True, slots=True)
class Answer:
    """A success: status, the JSON document (None for 204) and the headers in lower case."""

    status: int
    document: Json
    headers: Mapping[str, str]


class Transport:
    """Requests to one origin under one service key."""

    def __init__(
        self, origin: str, key: SecretText, *, ca_file: str = "", timeout: float = 30.0
    ) -> None:
        parts = urlsplit(origin)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
            raise Unreachable(f"{origin!r} is not the URL of a control plane.")
        if parts.scheme == "http" and not _loopback(parts.hostname):
            raise Unreachable("Plain http is accepted to loopback only.", hint="Use https.")
        self._scheme = parts.scheme
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._key = key
        self._timeout = timeout
        self._tls = _tls(ca_file) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and return its answer. Raises Refused and Unreachable.

        A request whose connection broke is sent once more when repeating it cannot do harm: a read, or one that carries an
        `Idempotency-Key`.
        """
        repeatable = method == "GET" or (headers is not None and "idempotency-key" in headers)
        try:
            response = self._send(method, path, query, body, headers)
        except Unreachable as error:
            if not (repeatable and error.sent):
                raise
            response = self._send(method, path, query, body, headers)
        try:
            raw = response.read(_ANSWER_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._lost(error) from None
        if len(raw) > _ANSWER_MAX:
            self.close()
            raise Unreachable("The answer is larger than 64 MiB.")
        return _answer(response, raw)

    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> Iterator[bytes]:
        """Send one request and yield the lines of its answer as they come; `silence` seconds without one end it.

        Raises Refused and Unreachable. Closing the iterator closes the connection.
        """
        response = self._send(
            method, path, query, body, {"accept": "text/event-stream", **(headers or {})}
        )
        if response.status != http.HTTPStatus.OK:
            _answer(response, response.read(_ANSWER_MAX))
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(silence)
        try:
            while line := response.readline(_ANSWER_MAX):
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            self.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        body: Json,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(pairs)}" if pairs else "")
        sent_headers = {
            "accept": "application/json",
            "x-api-key": self._key.reveal(),
            **(headers or {}),
        }
        raw = None
        if body is not None:
            raw = json.dumps(body, separators=(",", ":")).encode()
            sent_headers["content-type"] = "application/json"
        connection = self._connect()
        try:
            connection.request(method, target, raw, sent_headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._lost(error) from None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is not None:
            return self._connection
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"{self._where()} cannot be reached: {_reason(error)}.", hint=_UP_HINT
            ) from None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def _where(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    def _lost(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"{self._where()} did not finish its answer: {_reason(error)}.",
            sent=True,
            hint="If you were changing something, look at it before you repeat the command.",
        )


def _answer(response: http.client.HTTPResponse, raw: bytes) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    document = None
    if raw:
        try:
            document = json.loads(raw)
        except ValueError:
            document = None
    if 200 <= response.status < 300 and (document is not None or response.status == 204):  # noqa: PLR2004 # HTTP's own numbers
        return Answer(response.status, document, headers)
    raise _refusal(response.status, document, headers)


def _refusal(status: int, document: Json, headers: Mapping[str, str]) -> Refused | Unreachable:
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict) or "code" not in error:
        return Unreachable(
            f"Something answered with HTTP {status}, and it is not the control plane.",
            hint="Another program may listen on this port; check the URL: `occ context list`.",
        )
    meta = cast("dict[str, Json]", document.get("meta") or {})
    return Refused(
        status=status,
        code=str(error["code"]),
        message=str(error.get("message", "")),
        hint=str(error.get("hint", "")),
        docs=str(error.get("docs", "")),
        request_id=str(meta.get("requestId", headers.get("x-request-id", ""))),
        retry_after=headers.get("retry-after", ""),
        details=tuple(
            ErrorDetail(str(item.get("path", "")), str(item.get("code", "")))
            for item in error.get("details", ())
        ),
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    """Return a verifying TLS context; a CA file replaces the system's anchors, so that only its certificates are believed."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise Unreachable(
            f"The CA file {ca_file} cannot be used: {type(error).__name__}."
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed"
    return type(error).__name__
