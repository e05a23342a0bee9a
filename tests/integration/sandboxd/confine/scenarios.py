"""What every Sandbox of this machine must do, as root and as an ordinary user. Standard library only (see machine_place)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

from oce.sandboxd.confine.running import recorded_keeper
from oce.sandboxd.place import (
    ExecExit,
    ExecRequest,
    ExitStatus,
    GeneratedFile,
    LaunchFailedError,
    Mount,
    NotRunningError,
)
from oce.testing.machine_place import (
    PATH,
    WORKSPACE,
    Kit,
    processes_with,
    run_inside,
    serve_scenarios,
    until,
)

ECHO_SERVER = """
import socket
s = socket.create_server(("127.0.0.1", 8765))
print("listening", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"echo " + c.recv(100))
    c.close()
"""


async def lines_of(sandbox, count):
    lines = []
    async with asyncio.timeout(20), aclosing(sandbox.output()) as output:
        async for line in output:
            lines.append(line)
            if len(lines) == count:
                break
    return lines


async def exit_codes(kit: Kit) -> None:
    commands = {"true": 0, "exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143}
    for command, code in commands.items():
        sandbox = await kit.start(["sh", "-c", command])
        assert await sandbox.wait() == ExitStatus(code=code), command
        assert kit.place.last_exit(sandbox.sandbox_id) == ExitStatus(code=code)
    missing = await kit.start(["no-such-program"])
    assert await missing.wait() == ExitStatus(code=127)
    assert (2, b"cannot run no-such-program: No such file or directory") in [
        line async for line in missing.output()
    ]
    not_executable = await kit.start(["/etc/passwd"])
    assert await not_executable.wait() == ExitStatus(code=126)


async def identity(kit: Kit) -> None:
    os.environ["DEMO_CLOUD_TOKEN"] = "s3cr3t-aaa"
    script = "id -u; id -g; env; echo --; grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc/self/fd"
    sandbox = await kit.start(["/bin/sh", "-c", script], environment={"ONLY": "this", "PATH": PATH})
    await sandbox.wait()
    text = b"\n".join([line async for _, line in sandbox.output()]).decode()
    before, _, after = text.partition("\n--\n")
    uid, gid, *environment = before.splitlines()
    assert (uid, gid) == ("1000", "1000")
    assert set(environment) == {"ONLY=this", f"PATH={PATH}", f"PWD={WORKSPACE}"}
    facts = dict(line.split(":\t") for line in after.splitlines() if ":\t" in line)
    assert {facts[name] for name in facts if name.startswith("Cap")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    # 3 is the directory that `ls` itself reads.
    assert [line for line in after.splitlines() if line.isdigit()] == ["0", "1", "2", "3"]
    assert "s3cr3t-aaa" not in text


async def write_protection(kit: Kit) -> None:
    script = """
    for path in /x /usr/x /etc/x /etc/passwd /proc/x /dev/x /run/x /opt/oce/x /proc/self/comm; do
        (echo x > "$path") 2>/dev/null && echo "wrote $path"
    done
    for path in /sandbox/x /tmp/x /var/tmp/x /dev/shm/x /dev/null; do
        (echo x > "$path") 2>/dev/null || echo "could not write $path"
    done
    for path in / /root /home /srv /sys; do
        ls "$path" >/dev/null 2>&1 && echo "listed $path"
    done
    exit 0
    """
    sandbox = await kit.start(["sh", "-c", script])
    assert await sandbox.wait() == ExitStatus(code=0)
    assert [line async for line in sandbox.output()] == []
    assert (kit.workspace / "x").exists()


async def commands_beside(kit: Kit) -> None:
    sandbox = await kit.start([])
    echoed = await run_inside(
        sandbox, ["sh", "-c", "cat; echo oops >&2; exit 3"], stdin=b"hello " * 50_000
    )
    assert (echoed.code, echoed.stderr) == (3, "oops\n")
    assert echoed.stdout == "hello " * 50_000
    ignoring = await run_inside(sandbox, ["true"], stdin=b"x" * 500_000)
    assert ignoring.code == 0
    assert (await run_inside(sandbox, ["sh", "-c", "kill -9 $$"])).code == 137
    assert (await run_inside(sandbox, ["no-such-program"])).code == 127
    environment = await run_inside(sandbox, ["/usr/bin/env"], environment={"A": "ü"})
    assert environment.stdout == "A=ü\n"
    background = await run_inside(sandbox, ["sh", "-c", "sleep 60 & echo done"])
    assert (background.code, background.stdout) == (0, "done\n")
    both = await asyncio.gather(*(run_inside(sandbox, ["echo", str(n)]) for n in range(8)))
    assert [b.stdout for b in both] == [f"{n}\n" for n in range(8)]
    assert await sandbox.stop(1.0) == ExitStatus(code=0)
    try:
        await run_inside(sandbox, ["true"])
    except NotRunningError:
        return
    raise AssertionError("exec in an ended Sandbox")


async def time_limits(kit: Kit) -> None:
    marker = f"300.{uuid4().int % 10**9}"
    sandbox = await kit.start([])
    limited = await run_inside(
        sandbox, ["sh", "-c", f"echo started; sleep {marker}"], timeout_seconds=0.3
    )
    assert (limited.code, limited.stdout) == (124, "started\n")
    stubborn = f"trap '' TERM; sleep {marker} & while true; do sleep {marker}; done"
    assert (await run_inside(sandbox, ["sh", "-c", stubborn], timeout_seconds=0.2)).code == 124
    await until(lambda: not processes_with(marker))


async def closing_kills(kit: Kit) -> None:
    marker = f"301.{uuid4().int % 10**9}"
    sandbox = await kit.start([])
    request = ExecRequest(
        command=["sh", "-c", f"sleep {marker} & echo up; wait"],
        workdir=WORKSPACE,
        environment={"PATH": PATH},
    )
    async with aclosing(sandbox.exec(request)) as events:
        async for event in events:
            assert not isinstance(event, ExecExit)
            break
        await until(lambda: len(processes_with(marker)) > 0)
    await until(lambda: not processes_with(marker))


async def impossible_commands(kit: Kit) -> None:
    for bad in (["a\0b"], [""]):
        try:
            await kit.place.start(kit.launch(bad))
        except ValueError:
            continue
        raise AssertionError(bad)
    sandbox = await kit.start([])
    try:
        await run_inside(sandbox, ["echo", "a\0b"])
    except ValueError:
        pass
    else:
        raise AssertionError("NUL in a command")
    assert (await run_inside(sandbox, ["echo", "still works"])).code == 0


async def inbound(kit: Kit) -> None:
    sandbox = await kit.start([await kit.python(), "-I", "-c", ECHO_SERVER])
    assert await lines_of(sandbox, 1) == [(1, b"listening")]
    loop = asyncio.get_running_loop()
    with await sandbox.connect(8765) as connection:
        await loop.sock_sendall(connection, b"ping")
        assert await loop.sock_recv(connection, 100) == b"echo ping"
    try:
        await sandbox.connect(8766)
    except ConnectionError:
        return
    raise AssertionError("connected to a closed port")


async def outbound(kit: Kit) -> None:
    """Every address of both families arrives at our listeners with its original destination; what is not listened on is refused."""
    client = """
import socket, sys
for host, port in (("93.184.216.34", 443), ("2606:4700::1111", 80)):
    s = socket.create_connection((host, port), 5)
    s.sendall(b"hi")
    print(s.recv(10).decode(), flush=True)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b"query", ("8.8.8.8", 53))
try:
    socket.create_server(("", 444))
except PermissionError:
    print("no low port", flush=True)
"""
    sandbox = await kit.start([await kit.python(), "-I", "-c", client])
    egress = await sandbox.egress_descriptors()
    again = await sandbox.egress_descriptors()
    assert set(egress.tcp) == set(again.tcp) >= {(socket.AF_INET, p) for p in (443, 80, 53, 1)}
    loop = asyncio.get_running_loop()
    destinations = []
    for key in ((socket.AF_INET, 443), (socket.AF_INET6, 80)):
        connection, _ = await asyncio.wait_for(loop.sock_accept(egress.tcp[key]), 10)
        destinations.append(connection.getsockname()[:2])
        await loop.sock_sendall(connection, b"seen")
        connection.close()
    assert destinations == [("93.184.216.34", 443), ("2606:4700::1111", 80)]
    assert await asyncio.wait_for(loop.sock_recv(egress.udp[socket.AF_INET], 100), 10) == b"query"
    await sandbox.wait()
    assert [line for _, line in [x async for x in sandbox.output()]] == [
        *(b"seen", b"seen", b"no low port"),
    ]
    for held in (egress, again):
        for item in (*held.tcp.values(), *held.udp.values(), held.diag):
            item.close()
        os.close(held.proc)


async def other_ports(kit: Kit) -> None:
    """A port that nobody listens on is refused by the kernel, or arrives at the catch-all with its true destination."""
    client = "import socket; print(socket.create_connection(('93.184.216.34', 8443), 5).recv(9))"
    sandbox = await kit.start([await kit.python(), "-I", "-c", client])
    if sandbox.no_redirect:
        assert await sandbox.wait() == ExitStatus(code=1)
        lines = [line async for _, line in sandbox.output()]
        assert lines[-1] == b"ConnectionRefusedError: [Errno 111] Connection refused"
        return
    egress = await sandbox.egress_descriptors()
    loop = asyncio.get_running_loop()
    catch_all = egress.tcp[socket.AF_INET, 1]
    connection, _ = await asyncio.wait_for(loop.sock_accept(catch_all), 10)
    original = connection.getsockopt(socket.IPPROTO_IP, 80, 16)
    assert (original[2:4], original[4:8]) == (bytes([32, 251]), bytes([93, 184, 216, 34]))
    await loop.sock_sendall(connection, b"caught")
    connection.close()
    assert await sandbox.wait() == ExitStatus(code=0)
    for item in (*egress.tcp.values(), *egress.udp.values(), egress.diag):
        item.close()
    os.close(egress.proc)


def _executables(proc):
    """Return /proc/<pid>/exe of every process but pid 1, which has another user namespace."""
    names = [n for n in os.listdir(proc) if n.isdigit() and n != "1"]  # noqa: PTH208 - a descriptor, no path
    return [f"{name}/exe" for name in names]


async def proc_is_the_sandbox_only(kit: Kit) -> None:
    sandbox = await kit.start(["sleep", "300"])
    egress = await sandbox.egress_descriptors()

    def running():
        return sorted(
            Path(os.readlink(e, dir_fd=egress.proc)).name for e in _executables(egress.proc)
        )

    await until(lambda: "sleep" in running())
    assert len(running()) == 2, "the launcher and the main process, nothing of the host"
    for item in (*egress.tcp.values(), *egress.udp.values(), egress.diag):
        item.close()
    os.close(egress.proc)


async def stopping(kit: Kit) -> None:
    marker = f"302.{uuid4().int % 10**9}"
    daemon = f"(setsid sh -c 'sleep {marker} & exec sleep {marker}' &) ; trap 'exit 5' TERM; echo up; sleep 300 & wait"
    polite = await kit.start(["sh", "-c", daemon])
    await lines_of(polite, 1)
    await until(lambda: len(processes_with(marker)) >= 2)
    assert await polite.stop(5.0) == ExitStatus(code=5)
    assert processes_with(marker) == []
    stubborn = await kit.start(["sh", "-c", "trap '' TERM; echo up; while true; do sleep 1; done"])
    await lines_of(stubborn, 1)
    assert await stubborn.stop(0.2) == ExitStatus(code=137)
    at_once = await kit.start(["sleep", "300"])
    assert await at_once.stop(0) == ExitStatus(code=137)


async def keeper_death(kit: Kit) -> None:
    marker = f"303.{uuid4().int % 10**9}"
    sandbox = await kit.start(["sleep", marker])
    await until(lambda: len(processes_with(marker)) > 0)
    os.kill(int(sandbox.proc_id.split(":")[0]), signal.SIGKILL)
    assert await asyncio.wait_for(sandbox.wait(), 10) == ExitStatus(code=None)
    await until(lambda: not processes_with(marker))
    assert await kit.place.adopt(sandbox.sandbox_id) is None


async def generated_files(kit: Kit) -> None:
    files = [
        GeneratedFile(target="/etc/openshell-tls/ca-bundle.pem", content=b"first"),
        GeneratedFile(target="/run/openshell/runtime.json", content=b"{}"),
        GeneratedFile(target="/run/openshell/providers/a/config.toml", content=b"a"),
        GeneratedFile(target="/etc/single", content=b"alone"),
    ]
    sandbox = await kit.start([], files=files)
    for file in files:
        assert (await run_inside(sandbox, ["cat", file.target])).stdout == file.content.decode()
        for attempt in (f"echo x > {file.target}", f"rm {file.target}", f"chmod 777 {file.target}"):
            assert (await run_inside(sandbox, ["sh", "-c", attempt])).code != 0


async def path_policy(kit: Kit) -> None:
    (kit.workspace / "out").mkdir(parents=True)
    if os.geteuid() == 0:
        # The Sandbox's uid owns only the mounted directory itself.
        (kit.workspace / "out").chmod(0o777)
    shared = kit.folder / "shared"
    shared.mkdir(mode=0o755)
    mounts = (
        Mount(source=kit.workspace, target=WORKSPACE, read_only=False),
        Mount(source=shared, target="/srv/shared", read_only=True),
    )
    narrowed = await kit.start([], mounts=mounts, read_write_paths=["/sandbox/out", "/dev/null"])
    attempts = {
        "echo x > /sandbox/out/x": 0,
        "echo x > /sandbox/x": 2,
        "echo x > /tmp/x": 2,
        "echo x > /dev/null": 0,
        "ls /sandbox /srv/shared": 0,
        "echo x > /srv/shared/x": 2,
    }
    for attempt, code in attempts.items():
        assert (await run_inside(narrowed, ["sh", "-c", attempt])).code == code, attempt
    impossible = [
        {"read_only_paths": ["/no/such"]},
        {"read_only_paths": ["/"]},
        {"read_only_paths": ["/sandbox/out"]},
        {"read_write_paths": ["/usr/local"]},
        {"read_write_paths": ["/proc"]},
        {"read_write_paths": ["/srv/shared"]},
        {"read_write_paths": ["/sandbox/none"]},
        {"workdir": "/no/such"},
        {"files": [GeneratedFile(target="/usr/x", content=b"")]},
        {"mounts": (Mount(source=kit.folder / "none", target="/none", read_only=True),)},
    ]
    for changes in impossible:
        try:
            await kit.start(["true"], **({"mounts": mounts} | changes))
        except LaunchFailedError:
            continue
        raise AssertionError(changes)


async def bounded_output(kit: Kit) -> None:
    sandbox = await kit.start(["sh", "-c", "seq 5000; echo -n tail; echo up >&2; sleep 300"])
    await until(lambda: len(processes_with("sleep\x00300")) > 0)
    async with asyncio.timeout(20):
        while True:
            lines = await lines_of(sandbox, 1)
            if int(lines[0][1]) > 3000:
                break
    lines = await lines_of(sandbox, 2000)
    assert (2, b"up") in lines
    numbers = [int(line) for stream, line in lines if stream == 1]
    assert numbers == list(range(3002, 5001))


async def many_at_once(kit: Kit) -> None:
    sandboxes = await asyncio.gather(*(kit.start(["sh", "-c", f"exit {n}"]) for n in range(12)))
    codes = await asyncio.gather(*(s.wait() for s in sandboxes))
    assert [c.code for c in codes] == list(range(12))


async def same_id_twice(kit: Kit) -> None:
    launch = kit.launch(["sleep", "300"])
    kit.started.append(launch.sandbox_id)
    first = await kit.place.start(launch)
    try:
        await kit.place.start(launch)
    except LaunchFailedError:
        pass
    else:
        raise AssertionError("two of one id")
    assert (await run_inside(first, ["true"])).code == 0
    assert list(await kit.place.adoptable()) == [launch.sandbox_id]
    await first.stop(0)
    assert list(await kit.place.adoptable()) == []
    assert list(await kit.place.leftovers()) == [launch.sandbox_id]
    again = await kit.place.start(launch)
    assert again.instance_id == launch.instance_id


FIRST_GATEWAY = """
import asyncio, sys
from pathlib import Path
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.confine.machine import MachinePlace
from oce.sandboxd.place import GeneratedFile, Launch, Mount

async def main():
    folder, bwrap, python, sandbox_id, program = sys.argv[1:]
    place = MachinePlace(ConfineConfig(runtime_dir=Path(folder) / "run", state_dir=Path(folder) / "state",
                                       bwrap=Path(bwrap), python=Path(python)))
    sandbox = await place.start(Launch(
        sandbox_id=sandbox_id, instance_id="first", uid_key="tests", command=[python, "-I", "-c", program]
        if python.startswith("/usr/") else ["/opt/oce/python/bin/" + Path(python).name, "-I", "-c", program],
        environment={"PATH": "/usr/bin:/bin"}, workdir="/sandbox",
        mounts=[Mount(source=Path(folder) / "workspace", target="/sandbox", read_only=False)],
        files=[GeneratedFile(target="/run/openshell/a", content=b"old")]))
    print("started", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""

WAITING_CLIENT = """
import socket
print("up", flush=True)
while True:
    s = socket.create_connection(("203.0.113.7", 443), 60)
    s.sendall(b"during the outage")
    print(s.recv(100).decode(), flush=True)
    s.close()
    break
s = socket.create_server(("127.0.0.1", 8765))
print("listening", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(b"here")
    c.close()
"""


async def adoption(kit: Kit) -> None:
    """SIGKILL of the gateway: the Sandbox runs on, its connections wait, a new process serves them."""
    installed = await kit.place._prepare()
    sandbox_id = str(uuid4())
    kit.started.append(sandbox_id)
    first = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FIRST_GATEWAY,
        *(
            str(kit.folder),
            str(installed.bwrap),
            str(installed.python.host),
            sandbox_id,
            WAITING_CLIENT,
        ),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert first.stdout is not None
    assert await asyncio.wait_for(first.stdout.readline(), 30) == b"started\n"
    first.kill()
    await first.wait()

    assert list(await kit.place.adoptable()) == [sandbox_id]
    sandbox = await kit.place.adopt(sandbox_id)
    assert sandbox is not None
    assert sandbox.instance_id == "first"
    assert await kit.place.adopt(sandbox_id) is sandbox
    egress = await sandbox.egress_descriptors()
    loop = asyncio.get_running_loop()
    connection, _ = await asyncio.wait_for(loop.sock_accept(egress.tcp[socket.AF_INET, 443]), 20)
    assert connection.getsockname()[:2] == ("203.0.113.7", 443)
    assert await loop.sock_recv(connection, 100) == b"during the outage"
    await loop.sock_sendall(connection, b"answered")
    connection.close()
    assert await lines_of(sandbox, 3) == [(1, b"up"), (1, b"answered"), (1, b"listening")]
    with await sandbox.connect(8765) as inner:
        assert await loop.sock_recv(inner, 10) == b"here"
    for item in (*egress.tcp.values(), *egress.udp.values(), egress.diag):
        item.close()
    os.close(egress.proc)
    assert await sandbox.stop(0) == ExitStatus(code=137)


async def killed_while_starting(kit: Kit) -> None:
    """A gateway that dies before confinement was confirmed leaves nothing that runs."""
    installed = await kit.place._prepare()
    sandbox_id = str(uuid4())
    kit.started.append(sandbox_id)
    directory = kit.config.runtime_dir / sandbox_id

    def recorded():
        return (directory / "keeper.json").exists()

    def ended():
        return recorded_keeper(directory) is None

    for delay in (0.0, 0.005, 0.01, 0.02):
        first = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            FIRST_GATEWAY,
            *(
                str(kit.folder),
                str(installed.bwrap),
                str(installed.python.host),
                sandbox_id,
                ECHO_SERVER,
            ),
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        await until(recorded, 30)
        await asyncio.sleep(delay)
        first.kill()
        await first.wait()
        if await kit.place.adopt(sandbox_id) is None:
            await until(ended)
        await kit.place.discard(sandbox_id)
        assert sandbox_id not in await kit.place.leftovers()


async def spawner_death(kit: Kit) -> None:
    first = await kit.start(["sleep", "300"])
    process, _ = kit.place._spawner
    process.kill()
    await asyncio.to_thread(process.wait)
    second = await kit.start(["true"])
    assert await second.wait() == ExitStatus(code=0)
    assert (await run_inside(first, ["true"])).code == 0


async def shown_paths(kit: Kit) -> None:
    """What the place says it shows is the very file that runs inside, by device and inode."""
    sandbox = await kit.start([await kit.python(), "-I", "-c", "import time; time.sleep(300)"])
    shown = kit.place.shown()
    assert "/" not in shown
    inside = await kit.python()
    prefix = next(p for p in shown if inside.startswith(p + "/"))
    host = os.stat(shown[prefix] + inside[len(prefix) :])  # noqa: PTH116 - compared with stat by descriptor
    egress = await sandbox.egress_descriptors()

    def same():
        found = [os.stat(e, dir_fd=egress.proc) for e in _executables(egress.proc)]
        return [(f.st_dev, f.st_ino) for f in found] == [(host.st_dev, host.st_ino)] * 2

    await until(same)
    for item in (*egress.tcp.values(), *egress.udp.values(), egress.diag):
        item.close()
    os.close(egress.proc)


async def discarding(kit: Kit) -> None:
    """Nothing runs any more when discard returns, also with a keeper that does not answer."""
    marker = f"305.{uuid4().int % 10**9}"
    for stopped in (False, True):
        sandbox = await kit.start(["sh", "-c", f"(setsid sleep {marker} &); exec sleep {marker}"])
        await until(lambda: len(processes_with(marker)) >= 2)
        keeper = int(sandbox.proc_id.split(":")[0])
        if stopped:
            os.kill(keeper, signal.SIGSTOP)
        waiting = asyncio.ensure_future(sandbox.wait())
        await kit.place.discard(sandbox.sandbox_id)
        if stopped:
            await until(lambda: not processes_with(marker))
        assert processes_with(marker) == []
        assert keeper not in processes_with("confine.spawner")
        status = await asyncio.wait_for(waiting, 5)
        assert status == ExitStatus(code=None if stopped else 137)


async def letting_go(kit: Kit) -> None:
    sandbox = await kit.start(["sleep", "300"])
    await kit.place.close()
    adopted = await kit.place.adopt(sandbox.sandbox_id)
    assert adopted is not None
    assert (await run_inside(adopted, ["true"])).code == 0


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        exit_codes,
        identity,
        write_protection,
        commands_beside,
        time_limits,
        closing_kills,
        impossible_commands,
        inbound,
        outbound,
        other_ports,
        proc_is_the_sandbox_only,
        stopping,
        keeper_death,
        generated_files,
        path_policy,
        bounded_output,
        many_at_once,
        same_id_twice,
        adoption,
        killed_while_starting,
        letting_go,
        discarding,
        shown_paths,
        spawner_death,
    )
}

if __name__ == "__main__":
    serve_scenarios(SCENARIOS)
