"""Attacks on the confinement from inside, as root and as an ordinary user. Standard library only (see machine_place).

Each attack is a Python program run inside by `exec`; it prints one word for each attempt and the scenario knows what it must be.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import aclosing
from uuid import uuid4

from oce.sandboxd.confine import landlock
from oce.sandboxd.place import ExitStatus, GeneratedFile
from oce.testing.machine_place import Kit, processes_with, run_inside, serve_scenarios, until

PRELUDE = """
import ctypes, errno, json, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
results = {}

def call(name, number, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    results[name] = "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
    return result

def attempt(name, function):
    try:
        function()
        results[name] = "done"
    except OSError as error:
        results[name] = errno.errorcode[error.errno]
"""
EPILOGUE = "\nprint(json.dumps(results))\n"

# System call numbers of x86-64 and aarch64, in this order.
NUMBERS = {
    name: pair[0 if os.uname().machine == "x86_64" else 1]
    for name, pair in {
        "clone": (56, 220),
        "clone3": (435, 435),
        "unshare": (272, 97),
        "setns": (308, 268),
        "mount": (165, 40),
        "ptrace": (101, 117),
        "io_uring_setup": (425, 425),
        "bpf": (321, 280),
        "keyctl": (250, 219),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "process_vm_writev": (311, 271),
        "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438),
        "open_by_handle_at": (304, 265),
        "chroot": (161, 51),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "prctl": (157, 167),
    }.items()
}


async def attack(kit: Kit, sandbox, program: str) -> dict[str, str]:
    source = PRELUDE + f"N = {NUMBERS!r}\n" + program + EPILOGUE
    done = await run_inside(sandbox, [await kit.python(), "-I", "-c", source])
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


async def user_namespaces(kit: Kit) -> None:
    results = await attack(
        kit,
        await kit.start([]),
        """
NEWUSER = 0x10000000
call("unshare", N["unshare"], NEWUSER)
call("unshare net", N["unshare"], 0x40000000)
call("clone", N["clone"], NEWUSER | 17, 0, 0, 0, 0)
call("clone3", N["clone3"], struct.pack("=8Q", NEWUSER, 0, 0, 0, 17, 0, 0, 0), 64)
for kind in ("user", "net", "mnt"):
    descriptor = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
    call(f"setns {kind}", N["setns"], descriptor, 0)
attempt("sysctl", lambda: open("/proc/sys/user/max_user_namespaces", "w").write("9"))
""",
    )
    assert results.pop("clone3") == "ENOSYS"
    assert results.pop("sysctl") in {"EACCES", "EROFS"}
    assert set(results.values()) <= {"EPERM", "ENOSPC"}, results


async def foreign_abis(kit: Kit) -> None:
    if os.uname().machine != "x86_64":
        return
    sandbox = await kit.start([])
    results = await attack(kit, sandbox, 'call("x32", 0x40000000 | N["unshare"], 0x10000000)')
    assert results == {"x32": "ENOSYS"}
    legacy = """
import ctypes, mmap
code = bytes.fromhex("b836010000bb00000010cd80c3")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("survived")
"""
    done = await run_inside(sandbox, [await kit.python(), "-I", "-c", legacy])
    assert (done.code, done.stdout) == (159, "")


async def forbidden_calls(kit: Kit) -> None:
    results = await attack(
        kit,
        await kit.start([]),
        """
call("mount", N["mount"], b"none\\0", b"/tmp\\0", b"tmpfs\\0", 0, 0)
call("move_mount", N["move_mount"], -1, 0, -1, 0, 0)
call("fsopen", N["fsopen"], b"tmpfs\\0", 0)
call("chroot", N["chroot"], b"/tmp\\0")
call("ptrace", N["ptrace"], 16, os.getppid(), 0, 0)
call("io_uring", N["io_uring_setup"], 8, bytes(120))
call("bpf", N["bpf"], 0, bytes(128), 128)
call("keyctl", N["keyctl"], 0, -3, 0)
call("perf", N["perf_event_open"], bytes(128), 0, -1, -1, 0)
call("userfaultfd", N["userfaultfd"], 0)
call("vm_writev", N["process_vm_writev"], os.getppid(), 0, 0, 0, 0, 0)
call("handle", N["open_by_handle_at"], -100, bytes(16), 0)
launcher = call("pidfd", N["pidfd_open"], os.getppid(), 0)
call("pidfd_getfd", N["pidfd_getfd"], launcher, 3, 0)
import fcntl
attempt("TIOCSTI", lambda: fcntl.ioctl(0, 0x5412, b"x"))
""",
    )
    del results["pidfd"]
    assert set(results.values()) == {"EPERM"}, results


async def odd_sockets(kit: Kit) -> None:
    results = await attack(
        kit,
        await kit.start([]),
        """
for name, family, kind, protocol in (("vsock", 40, 1, 0), ("packet", 17, 3, 0x300), ("alg", 38, 5, 0),
                                     ("bluetooth", 31, 3, 0), ("diag", 16, 3, 4), ("netfilter", 16, 3, 12),
                                     ("xdp", 44, 3, 0), ("can", 29, 3, 1)):
    attempt(name, lambda: socket.socket(family, kind, protocol))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("route", lambda: socket.socket(16, 3, 0))
attempt("low port", lambda: socket.socket().bind(("127.0.0.2", 443)))
attempt("name server", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("10.0.0.1", 53)))
""",
    )
    assert results.pop("route") == "done"
    assert results.pop("raw") == "EPERM"
    assert {results.pop("low port"), results.pop("name server")} == {"EACCES"}
    assert set(results.values()) == {"EAFNOSUPPORT"}, results


async def the_network_of_the_host(kit: Kit) -> None:
    """Neither the host's loopback, nor its abstract unix sockets, nor any packet to the outside (BR-30)."""
    name = f"oce-test-{uuid4().hex}"
    with socket.create_server(("127.0.0.1", 0)) as host, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        results = await attack(
            kit,
            await kit.start([]),
            f"""
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", {host.getsockname()[1]}), 3))
def unix():
    socket.socket(socket.AF_UNIX).connect("\\0{name}")
attempt("abstract", unix)
def quic():
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.connect(("1.1.1.1", 443))
    u.send(b"x")
    u.recv(1)
attempt("udp", quic)
results["devices"] = [n for _, n in socket.if_nameindex()]
""",
        )
        host.settimeout(0)
        try:
            host.accept()
        except BlockingIOError:
            pass
        else:
            raise AssertionError("reached the host's loopback")
    assert results == {
        "loopback": "ECONNREFUSED",
        "abstract": "EPERM" if results["abstract"] == "EPERM" else "ECONNREFUSED",
        "udp": "ECONNREFUSED",
        "devices": ["lo"],
    }


async def other_processes(kit: Kit) -> None:
    """Neither pid 1 nor the launcher nor a sibling can be changed; pid 1 cannot be signalled or read."""
    sandbox = await kit.start(["sleep", "300"])
    results = await attack(
        kit,
        sandbox,
        """
attempt("kill 1", lambda: os.kill(1, 15))
attempt("environ 1", lambda: open("/proc/1/environ").read())
attempt("root 1", lambda: os.listdir("/proc/1/root/"))
attempt("root self", lambda: os.listdir("/proc/self/root/"))
for pid in [int(n) for n in os.listdir("/proc") if n.isdigit()]:
    attempt(f"mem {pid}", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR))
results["arguments"] = open("/proc/1/cmdline").read()
results["inherited"] = [n for n in range(3, 256) if os.path.exists(f"/proc/self/fd/{n}")]
""",
    )
    arguments = results.pop("arguments")
    assert str(kit.folder.name) + "/run" not in arguments
    assert sandbox.sandbox_id not in arguments
    assert results.pop("inherited") == []
    # Before ABI 6 Landlock has no scope for signals; the init of a pid namespace ignores those of its own processes.
    assert results.pop("kill 1") == ("EPERM" if landlock.kernel_abi() >= 6 else "done")
    assert set(results.values()) <= {"EPERM", "EACCES", "ENOENT"}, results
    assert (await run_inside(sandbox, ["true"])).code == 0


async def hiding_from_the_host(kit: Kit) -> None:
    """A process that makes itself undumpable keeps its descriptors visible, or the egress process could not know it."""
    program = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
print(libc.prctl(4, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0), flush=True)
time.sleep(300)
"""
    sandbox = await kit.start([await kit.python(), "-I", "-c", program])
    async with asyncio.timeout(20), aclosing(sandbox.output()) as output:
        _, line = await anext(output)
    assert line == (b"0 0" if os.geteuid() == 0 else b"0 1")
    egress = await sandbox.egress_descriptors()
    try:
        names = os.listdir(egress.proc)  # noqa: PTH208 - a descriptor, no path
        for name in (n for n in names if n.isdigit() and n != "1"):
            descriptor = os.open(f"{name}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=egress.proc)
            assert os.listdir(descriptor)  # noqa: PTH208 - the same
            os.close(descriptor)
    finally:
        for item in (*egress.tcp.values(), *egress.udp.values(), egress.diag):
            item.close()
        os.close(egress.proc)


async def secrets_of_the_host(kit: Kit) -> None:
    """The gateway's environment and a launch's own environment are on no command line and in no file (BR-38)."""
    os.environ["DEMO_CLOUD_TOKEN"] = "s3cr3t-aaa"
    sandbox = await kit.start(
        ["sleep", "300"],
        environment={"PATH": "/usr/bin:/bin", "MARK": "m4rk-bbb"},
        files=[GeneratedFile(target="/run/openshell/a", content=b"x")],
    )
    script = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; exit 0"
    seen = await run_inside(sandbox, ["sh", "-c", script])
    assert "s3cr3t-aaa" not in seen.stdout
    assert processes_with("m4rk-bbb") == []
    for path in kit.config.runtime_dir.rglob("*"):
        if path.is_file():
            assert b"m4rk-bbb" not in path.read_bytes()
            assert b"s3cr3t-aaa" not in path.read_bytes()


async def flooding(kit: Kit) -> None:
    """A fork bomb, a full /tmp, and endless output stay inside their limits; the Sandbox still answers."""
    sandbox = await kit.start(
        ["sh", "-c", "echo up; yes | head -c 50000000; sleep 300"],
        limits=kit.launch([]).limits.__class__(processes=40, temporary_bytes=1 << 20),
    )
    results = await attack(
        kit,
        sandbox,
        """
def fill():
    with open("/tmp/full", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 16)); file.flush()
attempt("tmp", fill)
os.unlink("/tmp/full")
children = []
def forks():
    while len(children) < 200:
        pid = os.fork()
        if pid == 0:
            import signal
            signal.pause()
        children.append(pid)
attempt("forks", forks)
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
""",
    )
    assert results == {"tmp": "ENOSPC", "forks": "EAGAIN"}
    assert (await run_inside(sandbox, ["true"])).code == 0


async def daemons_after_stop(kit: Kit) -> None:
    """Double-forked daemons, 200 short children and an ignored SIGTERM: nothing lives after stop (BR-36)."""
    marker = f"304.{uuid4().int % 10**9}"
    script = (
        f"trap '' TERM HUP; for n in 1 2 3; do (setsid sh -c 'trap \"\" TERM; sleep {marker} & wait' &); done;"
        " i=0; while [ $i -lt 200 ]; do true & i=$((i+1)); done; echo up; while true; do sleep 1; done"
    )
    sandbox = await kit.start(["sh", "-c", script])
    await until(lambda: len(processes_with(marker)) >= 3)
    zombies = await run_inside(
        sandbox, ["sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"]
    )
    assert int(zombies.stdout) <= 200
    assert await sandbox.stop(0.1) == ExitStatus(code=137)
    assert processes_with(marker) == []


async def a_thread_that_ends(kit: Kit) -> None:
    """A Sandbox asked for from a thread that ends at once lives on (BR-36)."""
    sandbox_id = str(uuid4())
    kit.started.append(sandbox_id)

    def in_a_thread() -> None:
        async def start() -> None:
            place = type(kit.place)(kit.config)
            await place.start(kit.launch(["sleep", "300"], sandbox_id=sandbox_id))
            await place.close()

        asyncio.run(start())

    await asyncio.to_thread(in_a_thread)
    adopted = await kit.place.adopt(sandbox_id)
    assert adopted is not None
    assert (await run_inside(adopted, ["true"])).code == 0


async def ending_the_launcher(kit: Kit) -> None:
    """The workload can kill the launcher, and thereby ends only itself; a stopped launcher cannot hold up time limits or the end."""
    victim = await kit.start(["sh", "-c", "kill -KILL $PPID; sleep 300"])
    status = await asyncio.wait_for(victim.wait(), 10)
    assert status.code != 0
    frozen = await kit.start(["sh", "-c", "sleep 0.2; kill -STOP $PPID; echo stopped; sleep 300"])
    running = asyncio.ensure_future(run_inside(frozen, ["sleep", "300"], timeout_seconds=0.5))
    assert (await asyncio.wait_for(running, 20)).code == 124
    assert await asyncio.wait_for(frozen.stop(0.1), 10) == ExitStatus(code=137)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        user_namespaces,
        foreign_abis,
        forbidden_calls,
        odd_sockets,
        the_network_of_the_host,
        other_processes,
        hiding_from_the_host,
        secrets_of_the_host,
        flooding,
        daemons_after_stop,
        a_thread_that_ends,
        ending_the_launcher,
    )
}

if __name__ == "__main__":
    serve_scenarios(SCENARIOS)
