"""Composing the Agent Gateway, and its command line."""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import uvloop

from oce.agentgw import control, log
from oce.agentgw.access import AccessBook, ApiAsker
from oce.agentgw.config import ConfigurationError, GatewayConfig, load
from oce.agentgw.front import Front
from oce.agentgw.routes import RouteReader
from oce.agentgw.service import GatewayService
from oce.agentgw.switch import Switchboard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

EX_CONFIG = 78
TLS_HANDSHAKE_SECONDS = 10.0
LISTEN_BACKLOG = 1024


def server_context(config: GatewayConfig) -> ssl.SSLContext:
    """Build the TLS side. Raises OSError (ssl.SSLError)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert, config.tls_key)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def serve(
    config: GatewayConfig, *, stop: asyncio.Event, ready: Callable[[str], Awaitable[None]]
) -> None:
    """Serve until ``stop`` is set, then drain. ``ready`` gets ``host:port``. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = RouteReader(config.routes_dir)
    switchboard = Switchboard(reader, drain_limit=config.drain_seconds)
    fronts: set[Front] = set()
    async with AsyncExitStack() as stack:
        verify = (
            ssl.create_default_context(cafile=config.api_ca_file)
            if config.api_url.startswith("https:")
            else False  # clear text, and the configuration allows it on loopback only
        )
        client = await stack.enter_async_context(httpx.AsyncClient(verify=verify, trust_env=False))
        access = AccessBook(
            ApiAsker(client, config.api_url, config.api_token_file),
            clock=time.monotonic,
            yes_seconds=config.remember_yes_seconds,
            outage_seconds=config.remember_yes_outage_seconds,
            no_seconds=config.remember_no_seconds,
        )
        service = GatewayService(
            access=access,
            switchboard=switchboard,
            reader=reader,
            turn_seconds=config.turn_seconds,
            start_seconds=config.start_seconds,
        )

        def front() -> Front:
            return Front(
                service.handle,
                fronts,
                limit=config.max_connections,
                max_body=config.max_body_bytes,
            )

        server = await loop.create_server(
            front,
            *config.address,
            ssl=server_context(config),
            ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
            backlog=LISTEN_BACKLOG,
        )
        controller = await control.listen(config.control_socket, switchboard)
        watch = asyncio.create_task(switchboard.watch())
        address = server.sockets[0].getsockname()
        log.event("gateway.listening", address=f"{address[0]}:{address[1]}")
        await ready(f"{address[0]}:{address[1]}")
        await stop.wait()
        log.event("gateway.stopping", connections=switchboard.connections)
        server.close()
        await switchboard.close(config.drain_seconds)
        for each in list(fronts):
            each.stop()
        controller.close()
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        config.control_socket.unlink(missing_ok=True)


async def _run(config: GatewayConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def ready(address: str) -> None:
        if config.ready_file is not None:
            fresh = config.ready_file.with_name(config.ready_file.name + ".new")
            fresh.write_text(address + "\n")
            fresh.replace(config.ready_file)

    await serve(config, stop=stop, ready=ready)


def main() -> None:
    """Run ``python -m oce.agentgw --config FILE``; exit 78 on an unusable configuration, 1 when the port is not to be had."""
    parser = argparse.ArgumentParser(prog="oce.agentgw", description="The Agent Gateway.")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        config = load(arguments.config)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EX_CONFIG)
    try:
        uvloop.run(_run(config))
    except OSError as error:
        sys.stderr.write(f"The Agent Gateway cannot serve on {config.listen}: {error.strerror}\n")
        sys.exit(1)
