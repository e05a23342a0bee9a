"""The control socket of the egress process: the gateway's requests, one JSON frame each, and the stream of decisions.

A request is `{"id": n, "op": …, …}`; the answer carries the same id and `ok` or `error` with `kind`. `subscribe` turns the
connection into a one-way stream of decisions. Only processes of the same user are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

import msgspec

from oce.sandboxd.egress.model import EgressError, NotInstalledError
from oce.sandboxd.egress.wire import Channel, decode, encode, parse_sandbox, peer_uid
from oce.sandboxd.place import EgressDescriptors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from oce.sandboxd.egress.service import EgressService

    Handler = Callable[[Mapping[str, object], list[int]], Awaitable[object]]

BACKLOG = 16


class _Certificate(msgspec.Struct):
    sandbox_id: str


class _Install(msgspec.Struct):
    sandbox: dict[str, object]
    labels: list[str]


class _Update(msgspec.Struct):
    sandbox: dict[str, object]


class _Credentials(msgspec.Struct):
    provider_id: str
    version: int
    values: dict[str, str]


class _Provider(msgspec.Struct):
    provider_id: str


class ControlServer:
    """Listens on a unix socket and serves until told to shut down."""

    def __init__(self, service: EgressService, path: Path) -> None:
        self._service = service
        self._path = path
        self._sock = listen_private(path)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._handlers: dict[str, Handler] = {
            "ping": self._ping,
            "certificate": self._certificate,
            "install": self._install,
            "update": self._update,
            "remove": self._remove,
            "installed": self._installed,
            "put_credentials": self._put_credentials,
            "delete_credentials": self._delete_credentials,
            "credential_versions": self._credential_versions,
            "shutdown": self._shutdown,
        }

    def stop(self) -> None:
        """Ask `serve` to return."""
        self._stopped.set()

    async def serve(self) -> None:
        """Serve until stopped, then end every control connection and remove the socket."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._sock.fileno(), self._accept)
        try:
            await self._stopped.wait()
        finally:
            loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._path.unlink(missing_ok=True)
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        if peer_uid(sock) != os.getuid():
            sock.close()
            return
        task = asyncio.get_running_loop().create_task(self._converse(Channel(sock)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, channel: Channel) -> None:
        try:
            while True:
                message, descriptors = await channel.receive()
                request = decode(message)
                if request.get("op") == "subscribe":
                    _close_all(descriptors)
                    await self._stream(channel, request.get("id"))
                    return
                answer = await self._answer(request, descriptors)
                await channel.send(encode({"id": request.get("id"), **answer}))
                if request.get("op") == "shutdown":
                    self.stop()
        except (OSError, msgspec.DecodeError, AttributeError):
            return
        finally:
            channel.close()

    async def _answer(
        self, request: Mapping[str, object], descriptors: list[int]
    ) -> dict[str, object]:
        """Run one request; whatever it did not take of the descriptors is closed."""
        try:
            handler = self._handlers.get(str(request.get("op")))
            if handler is None:
                return {"error": "the operation is not known", "kind": "egress"}
            return {"ok": await handler(request, descriptors)}
        except NotInstalledError as error:
            return {"error": str(error), "kind": "not_installed"}
        except (EgressError, ValueError, OSError) as error:
            # Requests can carry credential values, so only sentences of our own go back.
            text = str(error) if isinstance(error, EgressError) else type(error).__name__
            return {"error": text, "kind": "egress"}
        finally:
            _close_all(descriptors)

    async def _stream(self, channel: Channel, ident: object) -> None:
        subscription = self._service.hub.subscribe()
        try:
            await channel.send(encode({"id": ident, "ok": None}))
            while True:
                for decision in await subscription.next():
                    await channel.send(encode(decision))
        finally:
            self._service.hub.unsubscribe(subscription)

    async def _ping(self, _: Mapping[str, object], __: list[int]) -> object:
        return {"pid": os.getpid()}

    async def _certificate(self, request: Mapping[str, object], _: list[int]) -> object:
        return self._service.certificate(msgspec.convert(request, _Certificate).sandbox_id).decode(
            "ascii"
        )

    async def _install(self, request: Mapping[str, object], descriptors: list[int]) -> object:
        install = msgspec.convert(request, _Install)
        sandbox = parse_sandbox(install.sandbox)
        self._service.install(sandbox, _gather(install.labels, descriptors))
        return None

    async def _update(self, request: Mapping[str, object], _: list[int]) -> object:
        self._service.update(parse_sandbox(msgspec.convert(request, _Update).sandbox))
        return None

    async def _remove(self, request: Mapping[str, object], _: list[int]) -> object:
        await self._service.remove(msgspec.convert(request, _Certificate).sandbox_id)
        return None

    async def _installed(self, _: Mapping[str, object], __: list[int]) -> object:
        return self._service.installed()

    async def _put_credentials(self, request: Mapping[str, object], _: list[int]) -> object:
        put = msgspec.convert(request, _Credentials)
        self._service.put_credentials(put.provider_id, put.version, put.values)
        return None

    async def _delete_credentials(self, request: Mapping[str, object], _: list[int]) -> object:
        self._service.delete_credentials(msgspec.convert(request, _Provider).provider_id)
        return None

    async def _credential_versions(self, _: Mapping[str, object], __: list[int]) -> object:
        return self._service.credential_versions()

    async def _shutdown(self, _: Mapping[str, object], __: list[int]) -> object:
        return None


def _gather(labels: Sequence[str], descriptors: list[int]) -> EgressDescriptors:
    """Turn labelled descriptors into sockets, taking them all out of the list. Raises ValueError."""
    if len(labels) != len(descriptors) or sorted(labels).count("diag") != 1 or "proc" not in labels:
        raise ValueError("the descriptors do not fit their labels")
    tcp: dict[tuple[int, int], socket.socket] = {}
    udp: dict[int, socket.socket] = {}
    kinds = [label.split("/") for label in labels]
    numbers = [tuple(int(part) for part in kind[1:]) for kind in kinds]
    taken = [*descriptors]
    descriptors.clear()
    proc, diag = taken[labels.index("proc")], socket.socket(fileno=taken[labels.index("diag")])
    for kind, number, descriptor in zip(kinds, numbers, taken, strict=True):
        if kind[0] == "tcp":
            tcp[number[0], number[1]] = socket.socket(fileno=descriptor)
        elif kind[0] == "udp":
            udp[number[0]] = socket.socket(fileno=descriptor)
    return EgressDescriptors(tcp=tcp, udp=udp, diag=diag, proc=proc)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    descriptors.clear()


def listen_private(path: Path) -> socket.socket:
    """Listen on a unix socket that only this user can reach; a stale one is replaced (the caller holds the lock)."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
        sock.setblocking(False)  # noqa: FBT003 - takes no keyword
    except BaseException:
        sock.close()
        raise
    return sock
