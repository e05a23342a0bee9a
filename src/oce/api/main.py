"""The API process: `python -m oce.api.main`. Settings come from the environment, see `oce.api.settings`.

It composes the platform, serves the public and the private listener in one event loop and leaves on SIGTERM or SIGINT after the
requests in flight; event streams are cut after five seconds and taken up again by their readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

import uvicorn
import uvloop

from oce.api.app import create_app
from oce.api.private import create_private_app
from oce.api.settings import ApiSettings, ApiSettingsRefused, from_environment
from oce.console.app import create_console
from oce.core.installation.queries import find
from oce.core.platform import Platform
from oce.domain.clock import SystemClock
from oce.installation.compose import compose, load, settings_of
from oce.installation.errors import StartupRefused
from oce.observability import logging
from oce.observability.metrics import HttpMetrics, new_registry
from oce.store.database import Database
from oce.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

_GRACE_SECONDS: Final = 2
_KEEP_ALIVE_SECONDS: Final = 75


class _Server(uvicorn.Server):
    """One listener of several in a process: the signals belong to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handling to `serve`."""
        yield


def _server(app: FastAPI, host: str, port: int, settings: ApiSettings | None = None) -> _Server:
    """Return a listener; `settings` gives it TLS."""
    tls = settings is not None and settings.certificate is not None
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=settings.certificate if settings and tls else None,
        ssl_keyfile=settings.certificate_key if settings and tls else None,
    )
    return _Server(config)


async def serve(settings: ApiSettings) -> int:
    """Serve until a signal comes and return the exit code. Raises StartupRefused, StoreError."""
    log = logging.get_logger()
    database = Database(settings.database_url, pool_size=settings.pool_size, name="occ-api")
    try:
        startup = load(settings.config_path)
        drivers = compose(startup, database)
        installation = await find(database)
        if installation is None:
            log.error("api.start-failed", reason="no Installation was bootstrapped")
            return 1
        platform = Platform(
            db=database,
            drivers=drivers,
            clock=SystemClock(),
            installation_id=installation.id,
            settings=settings_of(startup),
        )
        registry = new_registry()
        public = create_app(platform, metrics=HttpMetrics(registry))
        public.mount("/console", create_console(platform))
        private = create_private_app(platform, settings.internal_token, registry)
        servers = (
            _server(public, settings.host, settings.port, settings),
            _server(private, settings.private_host, settings.private_port),
        )
        _leave_on_signals(servers)
        log.info("api.started", host=settings.host, port=settings.port, pid=os.getpid())
        await asyncio.gather(*(_serve(server, servers) for server in servers))
        log.info("api.stopped")
        return 0 if all(server.started for server in servers) else 1
    finally:
        await database.close()


async def _serve(server: _Server, servers: tuple[_Server, ...]) -> None:
    """Serve one listener; when it ends, for whatever reason, the others end too."""
    try:
        await server.serve()
    except SystemExit:  # uvicorn's answer to a port that cannot be bound
        logging.get_logger().error(
            "api.listen-failed", host=server.config.host, port=server.config.port
        )
    finally:
        for other in servers:
            other.should_exit = True


def _leave_on_signals(servers: tuple[_Server, ...]) -> None:
    def leave() -> None:
        for server in servers:
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)


def main() -> int:
    """Run the process and return its exit code; a refusal is one sentence on standard error."""
    try:
        settings = from_environment(os.environ)
    except ApiSettingsRefused as error:
        sys.stderr.write(f"oce.api: {error}\n")
        return 2
    logging.configure("api", settings.log_level)
    try:
        return uvloop.run(serve(settings))
    except StartupRefused as error:
        sys.stderr.write(f"oce.api: {error}\n")
        return 2
    except StoreError as error:
        logging.get_logger().error("api.start-failed", exc_info=error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
