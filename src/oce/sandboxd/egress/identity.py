"""Which programs hold a socket of the Sandbox, told by the kernel.

The socket's inode comes from inet_diag for the exact address tuple; every process of the Sandbox that holds that inode is
found through the Sandbox's own /proc. A program counts by its path as seen inside *and* by device and inode of the host file
that the mount view puts there. Any doubt (nobody, unreadable, unknown file, too much to look through) is a denial.

The size of the scan is the workload's choice, so it is budgeted: small ones run in place, larger ones in a thread, one per
Sandbox at a time, and beyond the budget the answer is doubt. Source: reference/confinement-recipe.md §2, §8.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INLINE_BUDGET = 400
TOTAL_BUDGET = 20_000
"""Descriptors looked at in the event loop, and altogether, for one question."""

_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("IHHII")
_INODE = struct.Struct("I")
_INODE_AT = 16 + 68
_ALL_STATES = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that holds the socket: pid and program path inside the Sandbox, and the program file's identity."""

    pid: int
    binary: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Identity:
    """All holders of a socket, or the reason why they are not known."""

    holders: tuple[Holder, ...] = ()
    doubt: str = ""

    @property
    def binaries(self) -> tuple[str, ...]:
        """Distinct program paths; empty when there is doubt."""
        return tuple(dict.fromkeys(holder.binary for holder in self.holders))

    @property
    def pid(self) -> int:
        """The first holder's pid inside the Sandbox, 0 if unknown."""
        return self.holders[0].pid if self.holders else 0


class _DoubtError(Exception):
    pass


class Identifier:
    """Answers for one Sandbox. Owns the netlink socket and the /proc descriptor."""

    def __init__(self, diag: socket.socket, proc: int, mounts: Mapping[str, str]) -> None:
        diag.setblocking(False)  # noqa: FBT003 - takes no keyword
        self._diag = diag
        self._proc = proc
        self.remount(mounts)
        self._sequence = int.from_bytes(os.urandom(3))
        self._scanning = asyncio.Semaphore(1)

    def remount(self, mounts: Mapping[str, str]) -> None:
        """Take a new mount view: path prefix inside to host path, the longest prefix speaks."""
        self._mounts = sorted(mounts.items(), key=lambda item: len(item[0]), reverse=True)

    def close(self) -> None:
        """Give the descriptors back."""
        self._diag.close()
        os.close(self._proc)

    async def identify(self, source: tuple[str, int], target: tuple[str, int]) -> Identity:
        """Name the holders of the Sandbox's socket that is bound to `source` and connected to `target`."""
        inode = self._inode(source, target)
        if not inode:
            return Identity(doubt="the socket is not known to the kernel")
        scan = self._scan(f"socket:[{inode}]")
        holders: list[Holder] = []
        try:
            complete = _advance(scan, holders, INLINE_BUDGET)
            if not complete:
                async with self._scanning:
                    complete = await asyncio.to_thread(_advance, scan, holders, TOTAL_BUDGET)
        except _DoubtError as doubt:
            return Identity(doubt=str(doubt))
        if not complete:
            return Identity(doubt="too many open descriptors to look through")
        if not holders:
            return Identity(doubt="no process holds the socket")
        return Identity(tuple(holders))

    def unchanged(self, identity: Identity) -> bool:
        """Say cheaply whether every holder still runs the program it was identified by."""
        try:
            for holder in identity.holders:
                now = os.stat(f"{holder.pid}/exe", dir_fd=self._proc)
                if (now.st_dev, now.st_ino) != (holder.device, holder.inode):
                    return False
        except OSError:
            return False
        return bool(identity.holders)

    def _inode(self, source: tuple[str, int], target: tuple[str, int]) -> int:
        """Ask inet_diag for exactly one socket; 0 if there is none."""
        family = socket.AF_INET6 if ":" in source[0] else socket.AF_INET
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        body = struct.pack("BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
        body += struct.pack("!HH", source[1], target[1])
        body += _padded(family, source[0]) + _padded(family, target[0])
        body += struct.pack("III", 0, _NO_COOKIE, _NO_COOKIE)
        head = _HEADER.pack(
            _HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, self._sequence, 0
        )
        try:
            self._diag.send(head + body)
            while True:
                reply = self._diag.recv(8192)
                _, kind, _, sequence, _ = _HEADER.unpack_from(reply)
                # The socket is shared with a former process, which may have left an answer unread.
                if sequence == self._sequence:
                    break
        except OSError:
            return 0
        if kind != _SOCK_DIAG_BY_FAMILY:
            return 0
        inode: int = _INODE.unpack_from(reply, _INODE_AT)[0]
        return inode

    def _scan(self, wanted: str) -> Iterator[Holder | None]:
        """Yield one item per descriptor looked at: a holder, or None. Raises _DoubtError."""
        for pid in os.listdir(self._proc):  # noqa: PTH208 - a descriptor
            if not pid.isdecimal():
                continue
            yield None
            try:
                directory = os.open(
                    f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc
                )
            except OSError as error:
                # A zombie answers EACCES and holds nothing; a live process that hides could hold the socket.
                if error.errno in (errno.EACCES, errno.EPERM) and self._alive(pid):
                    raise _DoubtError("a process hides its descriptors") from None
                continue
            try:
                for entry in os.listdir(directory):  # noqa: PTH208 - a descriptor
                    try:
                        link = os.readlink(entry, dir_fd=directory)
                    except OSError:
                        link = ""
                    if link == wanted:
                        yield self._holder(pid)
                        break
                    yield None
            except OSError:
                continue
            finally:
                os.close(directory)

    def _holder(self, pid: str) -> Holder:
        try:
            status = os.stat(f"{pid}/exe", dir_fd=self._proc)
            binary = os.readlink(f"{pid}/exe", dir_fd=self._proc)
        except OSError:
            raise _DoubtError("a holder's program cannot be read") from None
        if self._host_file(binary) != (status.st_dev, status.st_ino):
            raise _DoubtError(f"{binary} is not the file that the Sandbox was given")
        return Holder(int(pid), binary, status.st_dev, status.st_ino)

    def _host_file(self, binary: str) -> tuple[int, int] | None:
        """Device and inode of the host file that the mount view shows at this path."""
        path = PurePosixPath(binary)
        if not path.is_absolute() or ".." in path.parts:
            return None
        for inside, outside in self._mounts:
            if path.is_relative_to(inside):
                relative = path.relative_to(inside)
                host = outside if str(relative) == "." else os.path.join(outside, relative)  # noqa: PTH118 - hot path, plain text suffices
                try:
                    found = os.stat(host)  # noqa: PTH116 - the same
                except OSError:
                    return None
                return found.st_dev, found.st_ino
        return None

    def _alive(self, pid: str) -> bool:
        try:
            descriptor = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return False
        try:
            return os.read(descriptor, 512).rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
        except (OSError, IndexError):
            return False
        finally:
            os.close(descriptor)


def _padded(family: socket.AddressFamily, address: str) -> bytes:
    return socket.inet_pton(family, address.split("%", 1)[0]).ljust(16, b"\0")


def _advance(scan: Iterator[Holder | None], found: list[Holder], budget: int) -> bool:
    """Run the scan on, collecting into `found`; False when the budget is used up before the end."""
    for _ in range(budget):
        try:
            item = next(scan)
        except StopIteration:
            return True
        if item is not None:
            found.append(item)
    return False
