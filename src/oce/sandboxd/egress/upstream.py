"""Reaching upstreams: resolve here, judge every answer, dial the judged address, verify under the authorised name.

Only called after a decision allowed the name, so that no lookup happens for a denied one. The operator's overrides are the only
way to a loopback address. Idle connections are kept per Sandbox, never shared between two.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import certifi

from oce.policy.addresses import refusal
from oce.policy.match import is_address
from oce.sandboxd.egress.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from oce.sandboxd.egress.config import EgressConfig

RESOLVE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 30.0
IDLE_PER_TARGET = 128


class UpstreamError(Exception):
    """The upstream was not reached. `code` is `ssrf_denied`, `upstream_unreachable` or `upstream_tls_failed`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Resolver(Protocol):
    """Turns a name into addresses."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return all addresses. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a connection to an upstream is good for; the key of the idle pool."""

    host: str
    port: int
    encrypted: bool
    allowed_ips: tuple[str, ...] = ()


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Ask the host's own resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class Dialer:
    """Makes verified connections by the operator's configuration. One per process."""

    def __init__(self, config: EgressConfig, resolver: Resolver = system_resolver) -> None:
        self._config = config
        self._resolve = resolver
        self._context = _client_context(None, config.ca_file)
        self._contexts: dict[Path, ssl.SSLContext] = {
            override.ca_file: _client_context(override.ca_file, None)
            for override in config.upstreams.values()
            if override.ca_file is not None
        }

    async def dial(self, target: Target) -> Pipe:
        """Connect, and under TLS verify the certificate for the target's name. Raises UpstreamError."""
        override = self._config.upstreams.get((target.host, target.port))
        context = self._context
        if override is not None:
            if override.ca_file is not None:
                context = self._contexts[override.ca_file]
            pipe = await _connect([override.address], override.port)
        else:
            pipe = await _connect(await self._addresses(target), target.port)
        if target.encrypted:
            await _secure(pipe, context, target.host)
        return pipe

    async def _addresses(self, target: Target) -> Sequence[str]:
        addresses: Sequence[str] = [target.host]
        if not is_address(target.host):
            try:
                async with asyncio.timeout(RESOLVE_SECONDS):
                    addresses = await self._resolve(target.host, target.port)
            except (OSError, UnicodeError):
                raise UpstreamError("upstream_unreachable", "the name was not resolved") from None
        if not addresses:
            raise UpstreamError("upstream_unreachable", "the name has no address")
        for address in addresses:
            problem = refusal(
                address, allowed=target.allowed_ips, opened=self._config.private_networks
            )
            if problem:
                raise UpstreamError("ssrf_denied", f"the name leads to a {problem}")
        return addresses


async def _connect(addresses: Sequence[str], port: int) -> Pipe:
    loop = asyncio.get_running_loop()
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, pipe = await loop.create_connection(
                    Pipe, address, port, flags=socket.AI_NUMERICHOST
                )
        except OSError:  # TimeoutError is one
            continue
        return pipe
    raise UpstreamError("upstream_unreachable", "no address accepted the connection")


async def _secure(pipe: Pipe, context: ssl.SSLContext, host: str) -> None:
    try:
        await pipe.start_tls(context, server_hostname=host, timeout=HANDSHAKE_SECONDS)
    except (ConnectionError, TimeoutError) as error:
        pipe.abort()
        reason = str(error) or "no answer"
        raise UpstreamError(
            "upstream_tls_failed", f"TLS to the upstream failed: {reason}"
        ) from None


def _client_context(only: Path | None, extra: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if only is not None:
        context.load_verify_locations(cafile=only)
        return context
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if not context.cert_store_stats()["x509_ca"] and not context.get_ca_certs():
        context.load_verify_locations(cafile=certifi.where())
    if extra is not None:
        context.load_verify_locations(cafile=extra)
    return context


class Pool:
    """Idle upstream connections of one Sandbox."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Target, list[tuple[Pipe, float]]] = {}

    def take(self, target: Target, max_idle: float = IDLE_SECONDS) -> Pipe | None:
        """Return a connection that is still open and silent, or None."""
        waiting = self._idle.get(target)
        now = self._loop.time()
        while waiting:
            pipe, since = waiting.pop()
            pipe.on_gone = None
            if not pipe.ended and not pipe.lost and not pipe.buffer and now - since < max_idle:
                return pipe
            pipe.close()
        return None

    def put(self, target: Target, pipe: Pipe) -> None:
        """Keep a connection whose last response ended properly."""
        waiting = self._idle.setdefault(target, [])
        if len(waiting) >= IDLE_PER_TARGET or pipe.ended or pipe.lost or pipe.buffer:
            pipe.close()
            return
        entry = (pipe, self._loop.time())
        waiting.append(entry)

        def gone() -> None:
            if entry in waiting:
                waiting.remove(entry)
            pipe.close()

        pipe.on_gone = gone

    def sweep(self) -> None:
        """Close what has been idle too long."""
        limit = self._loop.time() - IDLE_SECONDS
        for target, waiting in list(self._idle.items()):
            for pipe, since in [item for item in waiting if item[1] < limit]:
                waiting.remove((pipe, since))
                pipe.on_gone = None
                pipe.close()
            if not waiting:
                del self._idle[target]

    def close(self) -> None:
        """Close everything."""
        for waiting in self._idle.values():
            for pipe, _ in waiting:
                pipe.on_gone = None
                pipe.close()
        self._idle.clear()
