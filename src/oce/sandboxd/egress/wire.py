"""The control channel between gateway and egress process: length-prefixed JSON over a unix stream, with descriptors.

One frame is a 4-byte big-endian length, one byte with the number of descriptors, and the JSON. Descriptors ride on the frame's
first byte (SCM_RIGHTS), so their order is the order of frames. Both sides use this class; neither trusts the other's sizes.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING

import msgspec

from oce.policy.codec import from_document, to_document
from oce.sandboxd.egress.model import BoundEndpoint, CredentialBinding, SandboxEgress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_FRAME = 4 * 1024 * 1024
MAX_DESCRIPTORS = 32

_HEADER = struct.Struct("!IB")
_PEER = struct.Struct("3i")
_READ = 65536

encode = msgspec.json.encode
decode = msgspec.json.decode


class ProtocolError(ConnectionError):
    """The peer sent something that is no frame; the connection is of no more use."""


def peer_uid(sock: socket.socket) -> int:
    """Return the uid of the process that opened the other end."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(data)[1]
    return uid


class Channel:
    """Frames over a connected non-blocking unix socket. One reader and one writer at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003 - takes no keyword
        self._sock = sock
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._writing = asyncio.Lock()

    async def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one frame. The descriptors stay the caller's. Raises ConnectionError."""
        if len(message) > MAX_FRAME or len(descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("the frame is too large")
        loop = asyncio.get_running_loop()
        frame = _HEADER.pack(len(message), len(descriptors)) + message
        async with self._writing:
            sent = 0
            if descriptors:
                sent = await self._send_first(frame[:1], descriptors)
            await loop.sock_sendall(self._sock, frame[sent:])

    async def _send_first(self, piece: bytes, descriptors: Sequence[int]) -> int:
        loop = asyncio.get_running_loop()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while True:
            try:
                return self._sock.sendmsg([piece], rights)
            except BlockingIOError:
                await _ready(loop, self._sock.fileno(), write=True)

    async def receive(self) -> tuple[bytes, list[int]]:
        """Return the next frame and its descriptors, which are the caller's to close. Raises ConnectionError at the end."""
        while len(self._buffer) < _HEADER.size:
            await self._fill()
        length, count = _HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME or count > MAX_DESCRIPTORS:
            raise ProtocolError("the frame is too large")
        while len(self._buffer) < _HEADER.size + length:
            await self._fill()
        if len(self._descriptors) < count:
            raise ProtocolError("descriptors are missing")
        message = bytes(self._buffer[_HEADER.size : _HEADER.size + length])
        del self._buffer[: _HEADER.size + length]
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return message, taken

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        while True:
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(
                    _READ, space, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                await _ready(loop, self._sock.fileno(), write=False)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("descriptors were cut off")
        if not data:
            raise ConnectionResetError("the other side has gone")
        self._buffer += data

    def close(self) -> None:
        """Close the socket and every descriptor that nobody took."""
        self._sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


async def _ready(loop: asyncio.AbstractEventLoop, descriptor: int, *, write: bool) -> None:
    future: asyncio.Future[None] = loop.create_future()

    def fire() -> None:
        if not future.done():
            future.set_result(None)

    if write:
        loop.add_writer(descriptor, fire)
    else:
        loop.add_reader(descriptor, fire)
    try:
        await future
    finally:
        if write:
            loop.remove_writer(descriptor)
        else:
            loop.remove_reader(descriptor)


def sandbox_document(sandbox: SandboxEgress) -> dict[str, object]:
    """Return the JSON document of a Sandbox's configuration."""
    return {
        "sandbox_id": sandbox.sandbox_id,
        "workspace": sandbox.workspace,
        "sandbox_name": sandbox.sandbox_name,
        "generation": sandbox.generation,
        "policy": to_document(sandbox.policy),
        "bindings": list(sandbox.bindings),
        "mounts": dict(sandbox.mounts),
    }


class _Binding(msgspec.Struct, forbid_unknown_fields=True):
    provider_id: str
    provider_name: str
    credential_key: str
    placeholder: str
    endpoints: list[BoundEndpoint]
    binaries: list[str]


class _Sandbox(msgspec.Struct, forbid_unknown_fields=True):
    sandbox_id: str
    workspace: str
    sandbox_name: str
    generation: int
    policy: dict[str, object]
    bindings: list[_Binding]
    mounts: dict[str, str]


def parse_sandbox(document: Mapping[str, object]) -> SandboxEgress:
    """Parse what `sandbox_document` made. Raises ValueError (msgspec.ValidationError, PolicyError)."""
    parsed = msgspec.convert(document, _Sandbox)
    return SandboxEgress(
        sandbox_id=parsed.sandbox_id,
        workspace=parsed.workspace,
        sandbox_name=parsed.sandbox_name,
        generation=parsed.generation,
        policy=from_document(parsed.policy),
        bindings=tuple(
            CredentialBinding(
                provider_id=b.provider_id,
                provider_name=b.provider_name,
                credential_key=b.credential_key,
                placeholder=b.placeholder,
                endpoints=tuple(b.endpoints),
                binaries=tuple(b.binaries),
            )
            for b in parsed.bindings
        ),
        mounts=parsed.mounts,
    )
