"""The gateway's side of a keeper's socket: numbered requests, answers with descriptors, events.

It knows the framing of `keeper` and nothing of what the requests mean. The end of the connection is a fact of its own: every
waiting request fails with NotRunningError, and `closed` is set.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from oce.sandboxd.place import NotRunningError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_PACKET = 65536
_DESCRIPTORS = 64


def connect_in(directory: Path, name: str) -> socket.socket:
    """Connect to a unix socket by directory and name: its path alone may be longer than the 107 bytes that fit.

    Raises OSError when nobody listens.
    """
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.connect(f"/proc/self/fd/{descriptor}/{name}")
    except OSError:
        channel.close()
        raise
    finally:
        os.close(descriptor)
    channel.setblocking(False)  # noqa: FBT003 - the method takes no keyword
    return channel


def peer_pid(channel: socket.socket) -> int:
    """Return the pid of the process that listened, as the kernel knows it."""
    pid, _, _ = struct.unpack("=3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def set_once(ready: asyncio.Future[None]) -> None:
    """Resolve a future that may be resolved already: a descriptor can become ready twice."""
    if not ready.done():
        ready.set_result(None)


class KeeperChannel:
    """One connection to a keeper. Make it inside a running event loop."""

    def __init__(
        self,
        channel: socket.socket,
        on_event: Callable[[dict[str, Any]], None],
        on_close: Callable[[], None],
    ) -> None:
        channel.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        self._loop = asyncio.get_running_loop()
        self._socket = channel
        self._on_event = on_event
        self._on_close = on_close
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._number = 0
        self._sending = asyncio.Lock()
        self.closed = asyncio.Event()
        self._loop.add_reader(channel.fileno(), self._read)

    def close(self) -> None:
        """Let go; the Sandbox is not touched."""
        if self.closed.is_set():
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotRunningError("the keeper's connection ended"))
        self._waiting.clear()
        self._on_close()

    async def request(
        self, op: str, descriptors: Sequence[int] = (), **fields: object
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a request; return the answer and its descriptors, which the caller owns. Raises NotRunningError."""
        self._number += 1
        number = self._number
        answer = self._loop.create_future()
        data = json.dumps({"n": number, "op": op} | fields).encode()
        async with self._sending:
            await self._send(data, descriptors)
            self._waiting[number] = answer
        try:
            message, handed = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in message:
            raise NotRunningError(str(message["error"]))
        return message, handed

    async def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        while not self.closed.is_set():
            try:
                socket.send_fds(self._socket, [data], list(descriptors))
            except BlockingIOError:
                await self._writable()
            except OSError:
                self.close()
            else:
                return
        raise NotRunningError("the keeper's connection ended")

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        descriptor = self._socket.fileno()
        self._loop.add_writer(descriptor, set_once, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(descriptor)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _PACKET, socket.CMSG_SPACE(_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.close()
            return
        handed: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                handed += memoryview(payload)[: len(payload) // 4 * 4].cast("i").tolist()
        message = json.loads(data)
        if "re" in message:
            future = self._waiting.pop(message["re"], None)
            if future is not None and not future.done():
                future.set_result((message, handed))
                return
        else:
            self._on_event(message)
        for descriptor in handed:
            os.close(descriptor)
