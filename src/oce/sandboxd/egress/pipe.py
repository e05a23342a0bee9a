"""One TCP connection as a buffer to read from and a sink with back-pressure, with or without TLS on top.

asyncio's streams would do, at several times the cost per request; and TLS here must start on bytes that were already read (the
ClientHello is judged first), which they cannot. So this drives `ssl.SSLObject` over memory BIOs itself.

`ended` tells a proper end (FIN, or close_notify under TLS) from `broken`: a cut-off body must never look complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_WATER = 128 * 1024
IGNORED_BYTES = 1024 * 1024
_DECRYPT = 65536
_NO_LINGER = struct.pack("ii", 1, 0)


class BrokenPipeEnd(ConnectionError):  # noqa: N818 - reads as what happened to the pipe
    """The connection ended where more was due."""


class TlsFailedError(ConnectionError):
    """The TLS handshake failed; the text is OpenSSL's short reason."""


class Pipe(asyncio.Protocol):
    """A connection. Used by one reader and one writer at a time."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.broken = False
        self.lost = False
        self.on_gone: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._handshaken = False
        self._closing = False
        self._left_to_ignore: int | None = None
        self.tls_error: str = ""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; small writes must not wait for acknowledgements."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Take bytes in; stop reading when nobody takes them out."""
        if self._left_to_ignore is not None:
            self._left_to_ignore -= len(data)
            if self._left_to_ignore < 0:
                self.abort()
            return
        if self._tls is None:
            self.buffer += data
        else:
            self._incoming.write(data)
            self._decrypt()
        if len(self.buffer) > HIGH_WATER and not self._reading_paused and self._transport:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Note that the other side sends no more; under TLS that is proper only after close_notify."""
        if not self.ended:
            self.ended = True
            self.broken = self.broken or (self._tls is not None and not self._closing)
        self._wake()
        self._gone()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything is over."""
        if not self.ended:
            self.ended = True
            unsafe = exc is not None or self._tls is not None
            self.broken = self.broken or (unsafe and not self._closing)
        self.lost = True
        self._wake()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        self._gone()

    def pause_writing(self) -> None:
        """Note that the peer reads slower than we write."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Note that the peer caught up."""
        self._writing_paused = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    # reading

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _gone(self) -> None:
        if self.on_gone is not None:
            callback, self.on_gone = self.on_gone, None
            callback()

    async def more(self, timeout: float) -> bool:  # noqa: ASYNC109 - a timer per wait is cheaper than a task scope
        """Wait until bytes were added; False when nothing more will come. Raises TimeoutError."""
        if self.ended:
            return False
        before = len(self.buffer)
        if self._reading_paused and self._transport:
            self._reading_paused = False
            self._transport.resume_reading()
        waiter = self._reader = self._loop.create_future()
        timer = self._loop.call_later(timeout, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._reader = None
        return len(self.buffer) > before or not self.ended

    def take(self, count: int) -> bytes:
        """Remove and return up to `count` buffered bytes."""
        if count >= len(self.buffer):
            piece = bytes(self.buffer)
            self.buffer.clear()
        else:
            piece = bytes(self.buffer[:count])
            del self.buffer[:count]
        return piece

    # writing

    def write(self, data: bytes) -> None:
        """Queue bytes; follow with `drain` where much may pile up."""
        if self._transport is None or self.lost or self._closing:
            return
        if self._tls is None:
            self._transport.write(data)
            return
        try:
            self._tls.write(data)
        except ssl.SSLError:
            self.broken = True
            return
        self._flush()

    @property
    def behind(self) -> bool:
        """Say whether `drain` would wait or raise."""
        return self._writing_paused or self.lost

    async def drain(self) -> None:
        """Wait while the peer is behind. Raises BrokenPipeEnd when it is gone."""
        while self._writing_paused and not self.lost:
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self.lost:
            raise BrokenPipeEnd("the peer has gone")

    def finish(self) -> None:
        """Say that nothing more will be written, but go on reading; under TLS, which cannot halve, close."""
        if self._transport is None or self.lost or self._closing:
            return
        if self._tls is not None:
            self.close()
            return
        self._transport.write_eof()
        self._closing = True

    async def part(self, seconds: float) -> None:
        """End our side, and take in what the peer still sends for a moment: it reads our last words, not a reset."""
        if self._transport is None or self.lost or self._transport.is_closing():
            return
        if self._tls is not None and self._handshaken:
            self._unwrap()
        self._closing = True
        self._left_to_ignore = IGNORED_BYTES
        self.buffer.clear()
        self._transport.write_eof()
        with contextlib.suppress(TimeoutError):
            await self.more(seconds)
        self._transport.close()

    def close(self) -> None:
        """End properly: what was queued still goes out."""
        if self._transport is None or self.lost:
            return
        if self._tls is not None and self._handshaken and not self._closing:
            self._unwrap()
        self._closing = True
        self._transport.close()

    def abort(self) -> None:
        """End with a reset, so that what was sent cannot pass for complete."""
        if self._transport is None or self.lost:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    # TLS

    async def start_tls(
        self,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
        timeout: float,  # noqa: ASYNC109 - as in `more`
    ) -> None:
        """Do the handshake, as server when there is no hostname; buffered bytes belong to it.

        Raises TlsFailedError, TimeoutError, BrokenPipeEnd.
        """
        server = server_hostname is None
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_hostname
        )
        self._incoming.write(bytes(self.buffer))
        self.buffer.clear()
        self._decrypt()
        end = self._loop.time() + timeout
        while not self._handshaken:
            if self.tls_error:
                raise TlsFailedError(self.tls_error)
            if not await self.more(end - self._loop.time()) and not self._handshaken:
                if self.tls_error:
                    raise TlsFailedError(self.tls_error)
                raise BrokenPipeEnd("the connection ended in the TLS handshake")

    def alpn(self) -> str | None:
        """Return the protocol agreed by ALPN."""
        return None if self._tls is None else self._tls.selected_alpn_protocol()

    def _decrypt(self) -> None:
        tls = self._tls
        if tls is None:
            return
        try:
            if not self._handshaken:
                tls.do_handshake()
                self._handshaken = True
            while True:
                data = tls.read(_DECRYPT)
                if not data:
                    self.ended = True
                    break
                self.buffer += data
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self.tls_error = error.reason or "TLS error"
            self.ended = self.broken = True
        self._flush()
        if self.ended:
            self._gone()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None and not self.lost:
            self._transport.write(data)

    def _unwrap(self) -> None:
        try:
            if self._tls is not None:
                self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass
        self._flush()


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
