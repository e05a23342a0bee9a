"""The program `sandboxd`: serve, end everything, register with the official client.

`serve` (the default) runs in the foreground; SIGTERM ends the gateway and leaves Sandboxes and the egress process running, so that a
restart adopts them. `stop-all` leaves nothing. Exit status 2: configuration, a taken port, a second instance; 1: anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from oce.sandboxd.api.front import listen
from oce.sandboxd.api.server import open_gateway
from oce.sandboxd.config import ConfigError, GatewayConfig, load_config
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.confine.machine import MachinePlace
from oce.sandboxd.egress.client import UnixEgressClient
from oce.sandboxd.egress.launch import ensure_egress
from oce.sandboxd.lifecycle.clock import SystemClock
from oce.sandboxd.state.directory import AlreadyRunningError, Lock, StateDirectory, holder_of
from oce.sandboxd.state.keys import Keys, ensure_keys, write_private

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

log = logging.getLogger("sandboxd")

EXIT_REFUSED = 2
_SOCKET_PATH = 107
_STOP_SECONDS = 15.0
_POLL = 0.05


class RefusedError(Exception):
    """The program cannot do what was asked; the sentence says why and what helps."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config_file = None if parsed.config is None else Path(parsed.config)
    try:
        config = load_config(config_file, state_dir=parsed.state_dir, listen=parsed.listen)
        if parsed.command == "stop-all":
            asyncio.run(stop_all(config))
        elif parsed.command == "register":
            register(config, parsed.name, activate=parsed.activate)
        else:
            serve(config, config_file)
    except (ConfigError, RefusedError, AlreadyRunningError, OSError) as error:
        sys.stderr.write(f"sandboxd: {error}\n")
        return EXIT_REFUSED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sandboxd", description=__doc__)
    parser.add_argument(
        "command", nargs="?", choices=("serve", "stop-all", "register"), default="serve"
    )
    parser.add_argument("--config", help="TOML file")
    parser.add_argument("--state-dir", help="instead of gateway.state_dir")
    parser.add_argument("--listen", help="IP:PORT, instead of gateway.listen")
    parser.add_argument("--name", default="local", help="register: name of this gateway")
    parser.add_argument(
        "--activate", action="store_true", help="register: also make it the active gateway"
    )
    return parser


def _place(config: GatewayConfig) -> MachinePlace:
    directory = StateDirectory(config.state_dir)
    return MachinePlace(
        ConfineConfig(
            runtime_dir=directory.place / "run",
            state_dir=directory.place / "state",
            bwrap=config.bwrap,
            python=config.python,
        )
    )


def serve(config: GatewayConfig, config_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT. Raises RefusedError, AlreadyRunningError."""
    directory = StateDirectory(config.state_dir)
    if len(os.fsencode(directory.egress_socket)) > _SOCKET_PATH:
        raise RefusedError(
            f"{config.state_dir} is too long a path for a unix socket; choose a shorter --state-dir"
        )
    directory.prepare()
    lock = Lock(directory.lock, config.listen)
    try:
        keys = ensure_keys(directory.auth, config.service_domain)
        asyncio.run(_serve(config, config_file, directory, keys, _listening(config)))
    finally:
        lock.release()


def _listening(config: GatewayConfig) -> socket.socket:
    try:
        return listen(config)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RefusedError(
                f"port {config.listen} is in use by another process (not by a sandboxd on this state directory);"
                " stop it or choose another --listen"
            ) from error
        raise


async def _serve(
    config: GatewayConfig,
    config_file: Path | None,
    directory: StateDirectory,
    keys: Keys,
    listening: socket.socket,
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def revive() -> None:
        await ensure_egress(directory.egress_socket, directory.egress, config_file)

    egress = UnixEgressClient(directory.egress_socket)
    await _retire_stale_egress(egress, directory, config_file)
    gateway = await open_gateway(
        config,
        keys=keys,
        directory=directory,
        listening=listening,
        place=_place(config),
        egress=egress,
        revive_egress=revive,
        clock=SystemClock(),
    )
    host, port = listening.getsockname()[:2]
    log.info("listening on https://%s:%d (CA %s)", host, port, keys.ca)
    try:
        await stopping.wait()
    finally:
        log.info("stopping; sandboxes run on")
        await gateway.close()
        await egress.close()


async def _retire_stale_egress(
    egress: UnixEgressClient, directory: StateDirectory, config_file: Path | None
) -> None:
    """End an egress process that was started with other operator settings: it reads them only at its start."""
    digest = _egress_digest(config_file)
    marker = directory.egress / "settings.sha256"
    if not marker.exists() or marker.read_text(encoding="ascii") != digest:
        await _end_egress(egress)
        write_private(marker, digest.encode())


def _egress_digest(config_file: Path | None) -> str:
    text = "" if config_file is None else config_file.read_text(encoding="utf-8")
    table = tomllib.loads(text).get("egress", {})
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


async def _end_egress(egress: UnixEgressClient) -> None:
    """End a living egress process; a dead one is fine. Raises RefusedError."""
    try:
        pid = await egress.ping()
        await egress.shutdown()
    except ConnectionError:
        return
    await _until(lambda: not Path(f"/proc/{pid}/root").exists(), "the egress process")


async def stop_all(config: GatewayConfig) -> None:
    """End the gateway, every Sandbox and the egress process of a state directory; records and keys stay."""
    directory = StateDirectory(config.state_dir)
    if not directory.root.is_dir():
        return
    await _end_gateway(directory)
    lock = Lock(directory.lock, "stop-all")
    try:
        place = _place(config)
        if directory.place.is_dir():
            for sandbox_id in await place.leftovers():
                await place.discard(sandbox_id)
            await place.close()
        egress = UnixEgressClient(directory.egress_socket)
        await _end_egress(egress)
        await egress.close()
    finally:
        lock.release()


async def _end_gateway(directory: StateDirectory) -> None:
    pid = holder_of(directory.lock)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    await _until(lambda: holder_of(directory.lock) is None, f"sandboxd process {pid}")


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RefusedError(f"{what} does not end within {_STOP_SECONDS:g} s")
        await asyncio.sleep(_POLL)


def register(config: GatewayConfig, name: str, *, activate: bool) -> None:
    """Write the files by which the official client and CLI find this gateway; only ever on request."""
    keys = Keys(StateDirectory(config.state_dir).auth)
    if not keys.client_key.exists():
        raise RefusedError("this gateway has no keys yet; start it once")
    if not name.replace("-", "").isalnum():
        raise RefusedError("--name must be letters, digits and '-'")
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "openshell"
    folder = base / "gateways" / name
    (folder / "mtls").mkdir(mode=0o700, parents=True, exist_ok=True)
    for source, target in (
        (keys.ca, "ca.crt"),
        (keys.client_certificate, "tls.crt"),
        (keys.client_key, "tls.key"),
    ):
        write_private(folder / "mtls" / target, source.read_bytes())
    metadata = {
        "name": name,
        "gateway_endpoint": f"https://{config.listen}",
        "auth_mode": "mtls",
    }
    write_private(folder / "metadata.json", json.dumps(metadata, indent=2).encode())
    if activate:
        write_private(base / "active_gateway", f"{name}\n".encode())
    sys.stdout.write(f"registered {name} in {folder}\n")


if __name__ == "__main__":
    sys.exit(main())
