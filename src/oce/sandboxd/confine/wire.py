"""What gateway, keeper and launcher agree on: file names, packets with descriptors, memory files, process identity.

Imported by the keeper, which runs as `python -I -S`, and by the gateway: standard library only, nothing slow.
"""

from __future__ import annotations

import json
import marshal
import os
import socket

SOCKET_NAME = "keeper.sock"
RECORD_NAME = "keeper.json"
EXIT_NAME = "exit.json"
OUTPUT_NAME = "output"
LAUNCHER_DESCRIPTOR = 3
ARGUMENTS_DESCRIPTOR = 4

PACKET = 65536
_MOST_DESCRIPTORS = 64


def stat_fields(pid: int | str) -> list[str]:
    """Return /proc/<pid>/stat from field 3 on: state, parent, … Raises OSError when there is no such process."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - pathlib would cost 5 ms at the start
        return file.read().rsplit(")", 1)[1].split()


def start_time(pid: int | str) -> str:
    """Return field 22 of /proc/<pid>/stat: together with the pid and the boot id it names a process.

    Raises OSError when there is no such process, or only its zombie.
    """
    fields = stat_fields(pid)
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return fields[19]


def boot_id() -> str:
    """Return the identity of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - as above
        return file.read().strip()


def memory_file(data: bytes) -> int:
    """Return a memory file that holds `data`."""
    descriptor = os.memfd_create("oce", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_memory_file(descriptor: int) -> bytes:
    """Return the whole content of a memory file and close it."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet with its descriptors, close-on-exec from the first moment (`socket.recv_fds` would not)."""
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
    data, ancillary, _, _ = channel.recvmsg(PACKET, room, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += memoryview(payload)[: len(payload) // 4 * 4].cast("i").tolist()
    return data, descriptors


class Connection:
    """A gateway process, or one reader of the output."""

    def __init__(self, channel: socket.socket, number: int) -> None:
        channel.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        self.channel = channel
        self.number = number
        self.executions: set[str] = set()
        self.output_at: int | None = None
        """Next line to send; None: not a reader of output."""

    def send(self, message: dict[str, object], descriptors: list[int]) -> bool:
        """Send one packet; False when the other side is gone or does not read."""
        data = json.dumps(message).encode()
        try:
            if descriptors:
                socket.send_fds(self.channel, [data], descriptors)
            else:
                self.channel.send(data)
        except OSError:
            return False
        return True


def packed_command(request: dict[str, object]) -> int:
    """Return a memory file with the marshalled command of `{"argv", "environment", "workdir"}` for the launcher."""
    argv, environment = request["argv"], request["environment"]
    if not isinstance(argv, list) or not isinstance(environment, dict):
        raise TypeError("command")
    return memory_file(
        marshal.dumps(
            (
                [_bytes(word) for word in argv],
                {_bytes(name): _bytes(value) for name, value in environment.items()},
                str(request["workdir"]),
            )
        )
    )


def _bytes(text: object) -> bytes:
    return str(text).encode("utf-8", "surrogateescape")
