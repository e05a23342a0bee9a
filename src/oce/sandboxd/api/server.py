"""Puts one gateway together: methods, RPC server behind its two doors, router, front door."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import grpc

from oce.sandboxd.api.attachments import Attachments
from oce.sandboxd.api.authentication import Authenticator, Door
from oce.sandboxd.api.calls import MAX_MESSAGE, Dispatcher
from oce.sandboxd.api.configs import Configs
from oce.sandboxd.api.execs import Execs
from oce.sandboxd.api.front import FrontDoor
from oce.sandboxd.api.gateway import Gateway
from oce.sandboxd.api.profiles import Profiles
from oce.sandboxd.api.providers import Providers
from oce.sandboxd.api.router import Router
from oce.sandboxd.api.sandboxes import Sandboxes
from oce.sandboxd.api.services import Services
from oce.sandboxd.api.suggestions import Suggestions
from oce.sandboxd.api.templates import Templates
from oce.sandboxd.api.workspaces import Workspaces, make_default
from oce.sandboxd.lifecycle.actor import Machine
from oce.sandboxd.lifecycle.logs import LogBook
from oce.sandboxd.lifecycle.supervisor import Supervisor
from oce.sandboxd.state import ledger
from oce.sandboxd.state.store import Store

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from oce.sandboxd.api.calls import Method
    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.egress.model import EgressClient
    from oce.sandboxd.lifecycle.clock import Clock
    from oce.sandboxd.place import Place
    from oce.sandboxd.state.directory import StateDirectory
    from oce.sandboxd.state.keys import Keys

_GRACE = 1.0
_SETTLE = 5.0
_EPOCH_BITS = 32


def methods_of(gateway: Gateway) -> dict[str, Method]:
    """Return every implemented method by name."""
    groups = (
        *(Workspaces, Templates, Sandboxes, Services, Execs),
        *(Profiles, Providers, Attachments, Configs, Suggestions),
    )
    return {name: method for group in groups for name, method in group(gateway).methods().items()}


class GatewayServer:
    """The running API of one gateway."""

    def __init__(
        self, gateway: Gateway, keys: Keys, directory: StateDirectory, listening: socket.socket
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self.dispatcher = Dispatcher(
            store=gateway.store,
            authenticator=Authenticator(keys.control_plane_token()),
            methods=methods_of(gateway),
            fingerprint_key=keys.fingerprint_key.read_bytes(),
            now=gateway.clock.now,
        )
        self._folder = os.open(directory.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Through the descriptor a socket's path stays short, however long the state directory's is (sun_path has 108 bytes).
        self._doors = {door: f"/proc/self/fd/{self._folder}/{door}.sock" for door in Door}
        router = Router(
            gateway.config.service_domain,
            gateway.store.read,
            gateway.supervisor,
            lambda: gateway.supervisor.egress_lives,
        )
        self._front = FrontDoor(listening, keys, router, self._doors)
        self._servers: list[grpc.aio.Server] = []

    async def prepare(self) -> None:
        """Settle what a crash left in the ledger and make the default workspace."""
        outside = self.dispatcher.outside_methods()
        await self._gateway.store.write(lambda tx: ledger.recover(tx, outside))
        now = self._gateway.clock.now()
        await self._gateway.store.write(lambda tx: make_default(tx, now))

    async def start(self) -> None:
        """Open the doors, then the front."""
        for door, path in self._doors.items():
            (self._directory.run / f"{door}.sock").unlink(missing_ok=True)
            server = grpc.aio.server(
                options=(
                    ("grpc.max_receive_message_length", MAX_MESSAGE),
                    ("grpc.max_send_message_length", 4 * MAX_MESSAGE),
                    ("grpc.max_concurrent_streams", 1024),
                    # Idle control planes may keep their connection alive without being told off.
                    ("grpc.keepalive_permit_without_calls", 1),
                    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                )
            )
            server.add_generic_rpc_handlers((self.dispatcher.handlers(door),))
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)
        await self._front.start()

    async def close(self) -> None:
        """End every connection and call."""
        await self._front.close()
        for server in self._servers:
            await server.stop(_GRACE)
        await self.dispatcher.settle(_SETTLE)
        os.close(self._folder)


@dataclass(frozen=True, slots=True)
class OpenGateway:
    """A gateway that serves; `close` lets Sandboxes run on."""

    server: GatewayServer
    supervisor: Supervisor
    store: Store

    async def close(self) -> None:
        """Stop serving and let go of everything."""
        await self.server.close()
        await self.supervisor.close()
        self.store.close()


async def open_gateway(
    config: GatewayConfig,
    *,
    keys: Keys,
    directory: StateDirectory,
    listening: socket.socket,
    place: Place,
    egress: EgressClient,
    revive_egress: Callable[[], Awaitable[None]],
    clock: Clock,
) -> OpenGateway:
    """Compose and start one gateway over a place and an egress process."""
    config = replace(config, listen_port=listening.getsockname()[1])
    store = Store(directory.database)
    logs = LogBook()
    epoch = await store.write(lambda tx: tx.next("epoch"))
    machine = Machine(
        store=store,
        place=place,
        egress=egress,
        clock=clock,
        config=config,
        directory=directory,
        logs=logs,
        changed=lambda _sandbox_id: None,
        generations=count((epoch << _EPOCH_BITS) + 1),
    )
    supervisor = Supervisor(machine, revive_egress)
    gateway = Gateway(
        config=config, store=store, supervisor=supervisor, egress=egress, logs=logs, clock=clock
    )
    server = GatewayServer(gateway, keys, directory, listening)
    await server.prepare()
    await supervisor.start()
    await server.start()
    return OpenGateway(server, supervisor, store)
