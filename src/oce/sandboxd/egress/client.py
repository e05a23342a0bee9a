"""The gateway's side of the control channel (`EgressClient` over a unix socket).

Connects on demand and again after the egress process was away; a call that was under way when the connection broke raises
ConnectionError, and every operation may be repeated. The gateway re-installs its Sandboxes when `installed` lacks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, cast

import msgspec

from oce.sandboxd.egress.model import Decision, EgressError, NotInstalledError
from oce.sandboxd.egress.wire import Channel, decode, encode, peer_uid, sandbox_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from oce.sandboxd.egress.model import SandboxEgress
    from oce.sandboxd.place import EgressDescriptors

CALL_SECONDS = 10.0


class UnixEgressClient:
    """An `EgressClient`. Calls are made one after the other; decisions come over a connection of their own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel: Channel | None = None
        self._turn = asyncio.Lock()
        self._ident = 0

    async def ping(self) -> int:
        """Return the pid of the egress process."""
        answer = cast("Mapping[str, int]", await self._call("ping"))
        return answer["pid"]

    async def certificate(self, sandbox_id: str) -> bytes:
        """See EgressClient."""
        pem = cast("str", await self._call("certificate", sandbox_id=sandbox_id))
        return pem.encode("ascii")

    async def install(self, sandbox: SandboxEgress, descriptors: EgressDescriptors) -> None:
        """See EgressClient. The descriptors are closed here, whatever happens: the other side has duplicates."""
        labelled = _labelled(descriptors)
        try:
            await self._call(
                "install",
                tuple(labelled.values()),
                sandbox=sandbox_document(sandbox),
                labels=list(labelled),
            )
        finally:
            for sock in (*descriptors.tcp.values(), *descriptors.udp.values(), descriptors.diag):
                sock.close()
            os.close(descriptors.proc)

    async def update(self, sandbox: SandboxEgress) -> None:
        """See EgressClient. Raises NotInstalledError after the egress process was restarted."""
        await self._call("update", sandbox=sandbox_document(sandbox))

    async def remove(self, sandbox_id: str) -> None:
        """See EgressClient."""
        await self._call("remove", sandbox_id=sandbox_id)

    async def installed(self) -> Mapping[str, int]:
        """See EgressClient."""
        return cast("Mapping[str, int]", await self._call("installed"))

    async def put_credentials(
        self, provider_id: str, version: int, values: Mapping[str, str]
    ) -> None:
        """See EgressClient."""
        await self._call(
            "put_credentials", provider_id=provider_id, version=version, values=dict(values)
        )

    async def delete_credentials(self, provider_id: str) -> None:
        """See EgressClient."""
        await self._call("delete_credentials", provider_id=provider_id)

    async def credential_versions(self) -> Mapping[str, int]:
        """See EgressClient."""
        return cast("Mapping[str, int]", await self._call("credential_versions"))

    async def shutdown(self) -> None:
        """Tell the egress process to end; Sandboxes keep their listeners and wait in the backlog."""
        await self._call("shutdown")

    async def decisions(self) -> AsyncIterator[Decision]:
        """See EgressClient. Raises ConnectionError when the egress process goes; call again to go on."""
        channel = await self._connect()
        try:
            await channel.send(encode({"id": 0, "op": "subscribe"}))
            await channel.receive()
            while True:
                message, _ = await channel.receive()
                yield msgspec.json.decode(message, type=Decision)
        finally:
            channel.close()

    async def close(self) -> None:
        """Let go; the egress process goes on."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _call(self, op: str, descriptors: Sequence[int] = (), **arguments: object) -> object:
        async with self._turn:
            kept = self._channel is not None
            try:
                answer = await self._exchange(op, descriptors, arguments)
            except ConnectionError:
                # A kept connection may belong to a process that has gone since; every operation may be repeated.
                if not kept:
                    raise
                answer = await self._exchange(op, descriptors, arguments)
        if "error" in answer:
            kind = NotInstalledError if answer.get("kind") == "not_installed" else EgressError
            raise kind(str(answer["error"]))
        return answer.get("ok")

    async def _exchange(
        self, op: str, descriptors: Sequence[int], arguments: Mapping[str, object]
    ) -> Mapping[str, object]:
        self._ident += 1
        if self._channel is None:
            self._channel = await self._connect()
        channel = self._channel
        finished = False
        try:
            async with asyncio.timeout(CALL_SECONDS):
                request = {"id": self._ident, "op": op, **arguments}
                await channel.send(encode(request), descriptors)
                message, extra = await channel.receive()
            for descriptor in extra:
                os.close(descriptor)
            finished = True
        except OSError as error:  # TimeoutError is one
            raise ConnectionError("the egress process does not answer") from error
        finally:
            # An answer that was not read would be taken for the next call's.
            if not finished:
                channel.close()
                self._channel = None
        return cast("Mapping[str, object]", decode(message))

    async def _connect(self) -> Channel:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)  # noqa: FBT003 - takes no keyword
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(self._path))
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise ConnectionError("the egress process is not there") from error
            raise
        if peer_uid(sock) != os.getuid():
            sock.close()
            raise ConnectionError("the control socket belongs to another user")
        return Channel(sock)


def _labelled(descriptors: EgressDescriptors) -> dict[str, int]:
    """Name each descriptor so that the other side can put it back in place."""
    labelled = {
        f"tcp/{int(family)}/{port}": sock.fileno()
        for (family, port), sock in descriptors.tcp.items()
    }
    labelled |= {f"udp/{int(family)}": sock.fileno() for family, sock in descriptors.udp.items()}
    return labelled | {"diag": descriptors.diag.fileno(), "proc": descriptors.proc}


async def wait_until_answering(client: UnixEgressClient, seconds: float) -> int:
    """Wait for a starting egress process and return its pid. Raises ConnectionError when it does not come."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    pause = 0.005
    while True:
        with contextlib.suppress(ConnectionError):
            return await client.ping()
        if loop.time() > end:
            raise ConnectionError("the egress process did not start")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
