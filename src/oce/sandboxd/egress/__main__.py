"""`python -m oce.sandboxd.egress --socket PATH --state-dir DIR [--config FILE]`: the egress process.

Listens for the gateway on the control socket (0600) and runs until SIGTERM, SIGINT or `shutdown`. Exit status 2: bad arguments
or configuration; 3: another egress process holds the state directory; 4: the vault does not open.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from oce.sandboxd.egress.config import ConfigError, load_config
from oce.sandboxd.egress.control import ControlServer
from oce.sandboxd.egress.launch import private_directory
from oce.sandboxd.egress.service import EgressService
from oce.sandboxd.egress.vault import VaultError

EXIT_CONFIG = 2
EXIT_LOCKED = 3
EXIT_VAULT = 4


def main() -> int:
    """Run the process; returns its exit status."""
    parser = argparse.ArgumentParser(prog="oce.sandboxd.egress", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="control socket to listen on")
    parser.add_argument("--state-dir", type=Path, required=True, help="private directory")
    parser.add_argument("--config", type=Path, help="sandboxd's TOML file; only [egress] is read")
    arguments = parser.parse_args()
    try:
        private_directory(arguments.state_dir)
        lock = _lock(arguments.state_dir / "egress.lock")
    except OSError as error:
        return _fail(f"the state directory cannot be used: {error}", EXIT_CONFIG)
    if lock is None:
        return _fail("another egress process holds the state directory", EXIT_LOCKED)
    _harden()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(arguments.socket, arguments.state_dir, arguments.config))
    except ConfigError as error:
        return _fail(str(error), EXIT_CONFIG)
    except VaultError as error:
        return _fail(str(error), EXIT_VAULT)
    finally:
        os.close(lock)
    return 0


async def _serve(socket_path: Path, directory: Path, config: Path | None) -> None:
    service = EgressService(directory, load_config(config))
    server = ControlServer(service, socket_path)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve()
    finally:
        await service.close()


def _harden() -> None:
    """No core dump may hold a credential; every connection needs two descriptors."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _lock(path: Path) -> int | None:
    """Take the lock that the kernel releases with the process; None when somebody else has it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"egress: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
