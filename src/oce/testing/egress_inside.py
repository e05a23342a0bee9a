"""The inner half of `egress_rig`: a bare Sandbox namespace that runs what a test asks for.

Started as a program of its own, because a user namespace can be made only by a single-threaded process. It makes user, network,
mount and pid namespaces with the Sandbox network of `sandboxd.confine`, hands out the sockets, and then runs commands and opens
connections on request. It confines nothing else: it is for testing the egress process, not the walls.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

from oce.sandboxd.confine.netns import OWN_IPV4, families, listeners, set_up

NEW_USER, NEW_NET, NEW_MOUNT, NEW_PID = 0x10000000, 0x40000000, 0x00020000, 0x20000000
MESSAGE = 1 << 17
_MS_PRIVATE, _MS_BIND = 0x44000, 0x1000


def main() -> None:
    """Serve on the inherited SEQPACKET socket whose number is the only argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    work = Path(sys.argv[2])
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    _must(libc.unshare(NEW_USER | NEW_NET | NEW_MOUNT | NEW_PID), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    child = os.fork()
    if child:
        control.close()
        os.waitpid(child, 0)
        return
    libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: the namespace ends with its starter
    _mount(libc, b"none", b"/", None, _MS_PRIVATE)
    _mount(libc, b"proc", b"/proc", b"proc", 0)
    resolver = work / "resolv.conf"
    resolver.write_text(f"nameserver {OWN_IPV4}\noptions timeout:2 attempts:1\n")
    _mount(libc, bytes(resolver), b"/etc/resolv.conf", None, _MS_BIND)
    wanted = families()
    set_up(wanted)
    made = listeners(wanted)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    names = [name for name, _ in made] + ["proc"]
    socket.send_fds(control, [json.dumps(names).encode()], [s.fileno() for _, s in made] + [proc])
    for _, sock in made:
        sock.close()
    os.close(proc)
    _serve(control)


def _must(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


def _mount(libc: ctypes.CDLL, source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _must(libc.mount(source, target, kind, ctypes.c_ulong(flags), None), f"mount {target!r}")


def _serve(control: socket.socket) -> None:
    kept: list[socket.socket] = []
    while message := control.recv(MESSAGE):
        request = json.loads(message)
        if "argv" in request:
            threading.Thread(target=_run, args=(control, request), daemon=True).start()
        elif "connect" in request:
            threading.Thread(target=_connect, args=(control, request, kept), daemon=True).start()


def _run(control: socket.socket, request: dict[str, object]) -> None:
    argv = cast("list[str]", request["argv"])
    environment = cast("dict[str, str]", request["env"])
    done = subprocess.run(  # noqa: S603 - the test says what to run
        argv,
        input=str(request.get("input", "")).encode(),
        capture_output=True,
        env=environment,
        check=False,
    )
    answer = {
        "id": request["id"],
        "code": done.returncode,
        "out": done.stdout.decode("utf-8", "replace")[: MESSAGE // 4],
        "err": done.stderr.decode("utf-8", "replace")[: MESSAGE // 4],
    }
    control.send(json.dumps(answer).encode())


def _connect(control: socket.socket, request: dict[str, object], kept: list[socket.socket]) -> None:
    """Connect and hand the socket out; it stays open here too, so that this process counts as its holder."""
    address, port = str(request["connect"]), int(str(request["port"]))
    ident = int(str(request["id"]))
    kind = socket.SOCK_DGRAM if request.get("udp") else socket.SOCK_STREAM
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    try:
        sock.connect((address, port))
    except OSError as error:
        sock.close()
        control.send(json.dumps({"id": ident, "errno": error.errno}).encode())
        return
    kept.append(sock)
    socket.send_fds(control, [json.dumps({"id": ident}).encode()], [sock.fileno()])


if __name__ == "__main__":
    main()
