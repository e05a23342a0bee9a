"""The front door: one TLS port for RPC and service HTTP.

TLS ends here. A connection that negotiated HTTP/2 goes byte for byte to one of two private unix sockets of the RPC server: which
one says whether a client certificate was verified (reference/openshell-gateway.md d.2). Anything else is HTTP/1.1 for the router.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from oce.sandboxd.api.authentication import Door
from oce.sandboxd.api.router import CHUNK, splice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.api.router import Router
    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.state.keys import Keys

_HANDSHAKE = 10.0
_BACKLOG = 1024


def listen(config: GatewayConfig) -> socket.socket:
    """Return the listening socket. Raises OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in config.listen_host else socket.AF_INET
    return socket.create_server(
        (config.listen_host, config.listen_port), family=family, backlog=_BACKLOG
    )


def server_context(keys: Keys) -> ssl.SSLContext:
    """Return the front door's TLS settings: our certificate, client certificates of our CA only, h2 and http/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(keys.server_certificate, keys.server_key)
    context.load_verify_locations(keys.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class FrontDoor:
    """The listener."""

    def __init__(
        self, listening: socket.socket, keys: Keys, router: Router, doors: Mapping[Door, str]
    ) -> None:
        self._listening = listening
        self._keys = keys
        self._router = router
        self._doors = doors
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(
            self._accept,
            sock=self._listening,
            ssl=server_context(self._keys),
            ssl_handshake_timeout=_HANDSHAKE,
            limit=CHUNK,
            backlog=_BACKLOG,
        )

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        try:
            if tls.selected_alpn_protocol() == "h2":
                door = Door.CERTIFIED if tls.getpeercert() else Door.OPEN
                await self._forward(reader, writer, self._doors[door])
            else:
                await self._router.serve(reader, writer)
            writer.close()
            async with asyncio.timeout(_HANDSHAKE):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            return
        finally:
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        inner = await asyncio.open_unix_connection(path)
        try:
            await splice((reader, writer), inner)
        finally:
            inner[1].transport.abort()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        # Aborted transports are closed by the loop's next turn.
        await asyncio.sleep(0)
