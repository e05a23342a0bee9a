"""One small process per Sandbox that outlives the gateway and holds all that must outlive it.

The keeper is forked by the spawner, becomes the Sandbox's host uid, makes the outer user and network namespace, opens its
listeners, starts bubblewrap and then serves one poll loop: requests of whichever gateway process is alive, words from the launcher
inside, the main process' output. Being *in* the network namespace it makes connections into the Sandbox with a plain `socket()`.
Being bubblewrap's parent it takes everything with it when it dies. It holds no secret and decides nothing.

Wire to the gateway: SOCK_SEQPACKET, one JSON object per packet, descriptors as SCM_RIGHTS. A request `{"n", "op", …}` is answered by
`{"re": n, …}`; events are `{"ev": …}`. A connection that asked for `output` receives binary packets: stream byte, then the line.

Runs as `python -I -S`; forked with its modules loaded.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import signal
import socket
import time
from typing import Any

from oce.sandboxd.confine import kernel, netns, wire
from oce.sandboxd.confine.output_ring import OutputRing

_EXEC_DESCRIPTORS = 4
"""Command, stdin, stdout, stderr."""
_CUT = 1000
_FLUSH_SECONDS = 1.0
_BOOT_OUTPUT = 4096


class Failed(Exception):  # noqa: N818 - it is reported, not handled
    """A step of the start failed; `stage` names the right that is missing."""

    def __init__(self, stage: str, sentence: str) -> None:
        super().__init__(sentence)
        self.stage = stage


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Keeper:
    """State of one keeper. `run` returns when nothing of the Sandbox is left."""

    def __init__(
        self, config: dict[str, object], host: socket.socket, control_groups: list[int]
    ) -> None:
        self._config = config
        self._directory = str(config["directory"])
        self._control_groups = control_groups
        self._poll = select.poll()
        self._connections: dict[int, wire.Connection] = {}
        self._made = 0
        self._ring = OutputRing()
        self._host: wire.Connection | None = self._add_connection(host)
        self._launcher: socket.socket | None = None
        self._pipes: dict[int, int] = {}
        self._main_pipes: list[int] = []
        self._boot_output = b""
        self._proc: int | None = None
        self._named: list[tuple[str, socket.socket]] = []
        self._pid = 0
        self._confined = False
        self._failure: tuple[str, str] | None = None
        self._main_code: int | None = None
        self._asked_to_stop = False
        self._kill_at: float | None = None
        self._no_redirect = "no nft program"

    # ---- start

    def run(self) -> None:
        """Start the Sandbox and serve it to its end."""
        try:
            self._become()
            self._take_uid()
            self._make_namespaces()
            self._start_bubblewrap()
        except Failed as failed:
            self._tell(failed.stage, str(failed))
            return
        except OSError as error:
            self._tell("keeper", str(error))
            return
        code = self._serve()
        self._report_end(code)

    def _tell(self, stage: str, sentence: str) -> None:
        self._broadcast({"ev": "failed", "stage": stage, "error": sentence[:_CUT]})

    def _become(self) -> None:
        os.setsid()
        kernel.prctl("name", kernel.PR_SET_NAME, b"oce-keeper\0")
        # The Sandbox's pid 1 falls to us when bubblewrap's outer process dies first, and we report the end only when it is reaped.
        kernel.prctl("subreaper", kernel.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # Everything in the runtime directory is opened now: it may belong to another uid after the change of uid.
        # Bound by a relative name, because the path of a unix socket has at most 107 bytes.
        os.chdir(self._directory)
        self._adoption = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        self._adoption.bind(wire.SOCKET_NAME)
        os.umask(mask)
        self._adoption.listen(16)
        self._exit_file = self._create(wire.EXIT_NAME)
        self._output_file = self._create(wire.OUTPUT_NAME)
        record = self._create(wire.RECORD_NAME + ".new")
        identity = {"pid": os.getpid(), "start": wire.start_time("self"), "boot": wire.boot_id()}
        os.write(record, json.dumps(identity).encode())
        os.close(record)
        os.rename(wire.RECORD_NAME + ".new", wire.RECORD_NAME)  # noqa: PTH104 - pathlib would cost 5 ms at the start
        os.chdir("/")
        self._poll.register(self._adoption, select.POLLIN)

    @staticmethod
    def _create(name: str) -> int:
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def _take_uid(self) -> None:
        uid = self._config["uid"]
        if not isinstance(uid, int):
            return
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # A change of uid makes /proc/self root's, and writing uid_map below would fail.
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)

    def _make_namespaces(self) -> None:
        uid, gid = os.getuid(), os.getgid()
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"0 {uid} 1")
            _write("/proc/self/gid_map", f"0 {gid} 1")
        except OSError as error:
            raise Failed("userns", str(error)) from error
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
            families = netns.families()
            netns.set_up(families)
            nft = self._config["nft"]
            if isinstance(nft, str):
                self._no_redirect = netns.redirect_all(nft)
            self._named = netns.listeners(families)
        except OSError as error:
            raise Failed("netns", str(error)) from error

    def _start_bubblewrap(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A launcher that the workload stopped must not stop the keeper.
        ours.setblocking(False)  # noqa: FBT003 - the method takes no keyword
        # Options go through a descriptor: bubblewrap's command line is readable inside as /proc/1/cmdline and would show host paths.
        options = self._config["options"]
        if not isinstance(options, list):
            raise Failed("keeper", "options")
        arguments = wire.memory_file(b"".join(str(option).encode() + b"\0" for option in options))
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._become_bubblewrap(theirs.fileno(), arguments, writing)
            except OSError as error:
                os.write(writing, f"oce: {error}".encode())
            finally:
                os._exit(126)
        theirs.close()
        os.close(arguments)
        os.close(writing)
        for descriptor in self._control_groups:
            os.close(descriptor)
        self._pidfd = os.pidfd_open(self._pid)
        self._launcher = ours
        self._pipes[reading] = 0
        for descriptor in (reading, self._pidfd, ours.fileno()):
            self._poll.register(descriptor, select.POLLIN)

    def _become_bubblewrap(self, launcher: int, arguments: int, output: int) -> None:
        # Only the Sandbox joins its limits, not the keeper: an out-of-memory kill must not take the keeper.
        for descriptor in self._control_groups:
            os.write(descriptor, b"0")
        nothing = os.open("/dev/null", os.O_RDONLY)
        high = [os.dup(launcher), os.dup(arguments)]
        for source, target in zip((nothing, output, output), range(3), strict=True):
            os.dup2(source, target)
        for source, target in zip(
            high, (wire.LAUNCHER_DESCRIPTOR, wire.ARGUMENTS_DESCRIPTOR), strict=True
        ):
            os.dup2(source, target)
        kernel.default_signals()
        command = self._config["command"]
        if isinstance(command, list):
            os.execve(command[0], command, {})  # noqa: S606 - bubblewrap, chosen by the operator

    # ---- serving

    def _serve(self) -> int:
        while True:
            for descriptor, event in self._poll.poll(self._milliseconds()):
                if descriptor == self._pidfd:
                    return self._reap_all()
                self._handle(descriptor, event)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._kill()

    def _milliseconds(self) -> int | None:
        if self._kill_at is None:
            return None
        return max(0, int((self._kill_at - time.monotonic()) * 1000) + 1)

    def _handle(self, descriptor: int, event: int) -> None:
        if descriptor == self._adoption.fileno():
            self._add_connection(self._adoption.accept()[0])
        elif self._launcher is not None and descriptor == self._launcher.fileno():
            self._hear_launcher(self._launcher)
        elif descriptor in self._pipes:
            self._read_pipe(descriptor)
        elif descriptor in self._connections:
            connection = self._connections[descriptor]
            if event & select.POLLOUT:
                self._send_output(connection)
            if event & ~select.POLLOUT:
                self._hear(connection)

    def _add_connection(self, channel: socket.socket) -> wire.Connection:
        self._made += 1
        connection = wire.Connection(channel, self._made)
        self._connections[channel.fileno()] = connection
        self._poll.register(channel, select.POLLIN)
        return connection

    def _drop(self, connection: wire.Connection) -> None:
        if self._connections.pop(connection.channel.fileno(), None) is None:
            return
        self._poll.unregister(connection.channel)
        connection.channel.close()
        for key in connection.executions:
            self._order("signal", key, int(signal.SIGKILL))
        # A start that nobody waits for any more is undone; a Sandbox that runs is kept for the next gateway.
        if connection is self._host and not self._confined:
            self._kill()

    def _broadcast(self, message: dict[str, object]) -> None:
        for connection in list(self._connections.values()):
            if connection.output_at is None and not connection.send(message, []):
                self._drop(connection)

    def _hear_launcher(self, launcher: socket.socket) -> None:
        try:
            data, descriptors = wire.receive(launcher)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._poll.unregister(launcher)
            launcher.close()
            self._launcher = None
            return
        words = data.decode(errors="replace").split(" ", 2)
        if words[0] == "hello" and self._proc is None and len(descriptors) == 1:
            self._proc = descriptors[0]
            self._order("confine", *self._list("confine"))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        self._hear_word(words)

    def _hear_word(self, words: list[str]) -> None:
        match words:
            case ["confined", _] if not self._confined:
                self._confined = True
                self._start_main()
                self._broadcast({"ev": "confined"} | self._state())
            case ["refused", stage, sentence] if self._failure is None:
                self._failure = (stage, sentence[:_CUT])
            case ["ended", key, code] if code.isdigit():
                self._ended(key, int(code))
            case _:
                pass

    def _ended(self, key: str, code: int) -> None:
        if key == "main":
            self._main_code = code
            return
        for connection in list(self._connections.values()):
            if key in connection.executions:
                connection.executions.discard(key)
                message = {"ev": "exec", "id": key.split(".")[1], "code": code}
                if not connection.send(message, []):
                    self._drop(connection)

    def _list(self, name: str) -> list[Any]:
        value = self._config[name]
        return value if isinstance(value, list) else []

    def _order(self, kind: str, *fields: object, descriptors: list[int] | None = None) -> bool:
        if self._launcher is None:
            return False
        message: Any = (kind, *fields)
        data = marshal.dumps(message)
        try:
            if descriptors:
                socket.send_fds(self._launcher, [data], descriptors)
            else:
                self._launcher.send(data)
        except OSError:
            return False
        return True

    def _start_main(self) -> None:
        main = self._config["main"]
        if not isinstance(main, dict):
            return
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        handed = [wire.packed_command(main), nothing]
        for stream in (1, 2):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._pipes[reading] = stream
            self._poll.register(reading, select.POLLIN)
            handed.append(writing)
        self._order("main", "main", descriptors=handed)
        for descriptor in handed:
            os.close(descriptor)

    def _read_pipe(self, descriptor: int) -> bool:
        """Take what is there; False when nothing was, or at the end."""
        stream = self._pipes[descriptor]
        try:
            data = os.read(descriptor, wire.PACKET)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._pipes[descriptor]
        if stream == 0:
            self._boot_output = (self._boot_output + data)[-_BOOT_OUTPUT:]
        elif data:
            self._ring.feed(stream, data)
        else:
            self._ring.finish(stream)
        self._wake_readers()
        return bool(data)

    def _wake_readers(self) -> None:
        for connection in self._connections.values():
            if connection.output_at is not None and connection.output_at < self._ring.end:
                self._poll.modify(connection.channel, select.POLLIN | select.POLLOUT)

    def _send_output(self, connection: wire.Connection) -> None:
        while connection.output_at is not None:
            found = self._ring.since(connection.output_at)
            if found is None:
                self._poll.modify(connection.channel, select.POLLIN)
                return
            number, stream, line = found
            try:
                connection.channel.send(bytes([stream]) + line)
            except BlockingIOError:
                return
            except OSError:
                self._drop(connection)
                return
            connection.output_at = number + 1

    # ---- requests of a gateway

    def _hear(self, connection: wire.Connection) -> None:
        try:
            data, descriptors = wire.receive(connection.channel)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._drop(connection)
            return
        request = json.loads(data)
        # What is made for this answer alone is appended to `descriptors` and closed with them.
        answer, handed = self._do(connection, request, descriptors)
        if connection.output_at is None and not connection.send(
            {"re": request["n"]} | answer, handed
        ):
            self._drop(connection)
        for descriptor in descriptors:
            os.close(descriptor)

    def _do(
        self, connection: wire.Connection, request: dict[str, object], descriptors: list[int]
    ) -> tuple[dict[str, object], list[int]]:
        match request["op"]:
            case "state":
                return self._state(), []
            case "descriptors" if self._proc is not None:
                names = [name for name, _ in self._named] + ["proc"]
                numbers = [item.fileno() for _, item in self._named] + [self._proc]
                return {"names": names}, numbers
            case "socket":
                made = socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()
                descriptors.append(made)
                return {}, [made]
            case "exec":
                return self._execute(connection, str(request["id"]), descriptors), []
            case "signal":
                key = f"{connection.number}.{request['id']}"
                self._order("signal", key, request["signal"])
            case "stop":
                self._stop(float(str(request["grace"])))
            case "output":
                connection.output_at = 0
                self._poll.modify(connection.channel, select.POLLIN | select.POLLOUT)
            case _:
                return {"error": "unknown request"}, []
        return {}, []

    def _state(self) -> dict[str, object]:
        return {
            "confined": self._confined,
            "instance": self._config["instance"],
            "noRedirect": self._no_redirect,
        }

    def _execute(
        self, connection: wire.Connection, identity: str, descriptors: list[int]
    ) -> dict[str, object]:
        if not self._confined or len(descriptors) != _EXEC_DESCRIPTORS:
            return {"error": "not running"}
        key = f"{connection.number}.{identity}"
        body = wire.packed_command(
            json.loads(os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0))
        )
        try:
            if not self._order("exec", key, descriptors=[body, *descriptors[1:]]):
                return {"error": "not running"}
        finally:
            os.close(body)
        connection.executions.add(key)
        return {}

    # ---- the end

    def _stop(self, grace: float) -> None:
        self._asked_to_stop = True
        if grace <= 0 or not self._order("terminate"):
            self._kill()
            return
        self._kill_at = time.monotonic() + grace

    def _kill(self) -> None:
        if self._pid:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap_all(self) -> int:
        """Wait until every process of the Sandbox is gone and reaped; return bubblewrap's exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(ChildProcessError):
            while True:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    # Killed early, bubblewrap leaves a half-made pid 1 that nothing else would ever end.
                    _kill_children()
                    os.waitpid(-1, 0)
        if self._launcher is not None:
            # Its last words may still be in the socket.
            while self._launcher is not None:
                self._hear_launcher(self._launcher)
        for descriptor in list(self._pipes):
            os.set_blocking(descriptor, False)
            while self._read_pipe(descriptor):
                pass
        return 128 - code if code < 0 else code

    def _report_end(self, code: int) -> None:
        if not self._confined:
            stage, sentence = self._failure or (
                "bubblewrap",
                self._boot_output.decode(errors="replace").strip() or f"ended with {code}",
            )
            self._tell(stage, sentence)
            return
        if self._main_code is not None:
            code = self._main_code
        elif self._asked_to_stop and not isinstance(self._config["main"], dict):
            code = 0
        os.write(self._exit_file, json.dumps({"code": code}).encode())
        os.write(self._output_file, self._ring.pack())
        self._flush_readers()
        self._broadcast({"ev": "exit", "code": code})

    def _flush_readers(self) -> None:
        deadline = time.monotonic() + _FLUSH_SECONDS
        self._wake_readers()
        while time.monotonic() < deadline and any(
            c.output_at is not None and c.output_at < self._ring.end
            for c in self._connections.values()
        ):
            for descriptor, event in self._poll.poll(100):
                connection = self._connections.get(descriptor)
                if connection is None:
                    continue
                if event & select.POLLOUT:
                    self._send_output(connection)
                elif event & (select.POLLHUP | select.POLLERR):
                    self._drop(connection)


def _kill_children() -> None:
    """Kill every process whose parent is this one; a pid 1 takes its namespace with it."""
    own = str(os.getpid())
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would cost 5 ms at the start
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wire.stat_fields(name)[1] == own:
                    os.kill(int(name), signal.SIGKILL)
