"""The first program inside a Sandbox: confines itself, proves it, starts the main process and later answers `exec`.

Everything it starts inherits its confinement, so nothing untrusted ever runs less confined than this. It stays as the parent of
the main process; when that ends, or when this program is killed, the whole pid namespace ends with it. Command lines and
environments arrive over an inherited socket and never appear in an argument list. It holds no secret.

Messages to it are marshalled tuples from the keeper, with descriptors; its answers are words, because the keeper must not
have to trust them:

    ("confine", rules, limits, keep_dumpable, workdir)                     -> `confined <abi>` | `refused <stage> <sentence>`
    ("main" | "exec", key) + body, stdin, stdout, stderr                   -> `ended <key> <code>`
    ("signal", key, number)
    ("terminate",)

Started in every Sandbox: each import costs. `_socket` instead of `socket` and `marshal` instead of `json` save
10 ms, and `array` would bring `collections`.
"""

from __future__ import annotations

import _socket
import errno
import marshal
import os
import resource
import select
import struct
import sys

from oce.sandboxd.confine import kernel, landlock, seccomp

_MESSAGE = 65536
_NOT_FOUND, _NOT_EXECUTABLE, _SELF_TEST_FAILED = 127, 126, 125
_TERMINATE, _KILL = 15, 9
_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class Refused(Exception):  # noqa: N818 - it is an answer, not an error of this program
    """Confinement is not complete; `stage` says at which layer."""

    def __init__(self, stage: str, sentence: str) -> None:
        super().__init__(sentence)
        self.stage = stage


def _receive(control: _socket.socket) -> tuple[bytes, list[int]]:
    room = _socket.CMSG_SPACE(8 * 4)
    data, ancillary, _, _ = control.recvmsg(_MESSAGE, room, _socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"={len(payload) // 4}i", payload)
    return data, descriptors


def _read_all(descriptor: int) -> bytes:
    parts = []
    offset = 0
    while part := os.pread(descriptor, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    os.close(descriptor)
    return b"".join(parts)


def _expect_refused(sentence: str, path: str, flags: int) -> None:
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError:
        return
    raise Refused("selftest", sentence)


def _self_test() -> None:
    """Try what must not work, after all layers are on."""
    _expect_refused("the root directory is readable", "/", os.O_RDONLY | os.O_DIRECTORY)
    for path in ("/.oce-probe", "/usr/.oce-probe", "/etc/.oce-probe"):
        _expect_refused(f"{path} was written", path, os.O_CREAT | os.O_WRONLY)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError:
        return
    raise Refused("selftest", "a user namespace was made")


def _confine(
    rules: list[tuple[str, int]],
    limits: list[tuple[int, int]],
    keep_dumpable: bool,
    workdir: str,
) -> int:
    """Apply every layer to this process; return the Landlock ABI in force.

    Order: limits, rules collected (paths are opened while they still can be), no_new_privs, Landlock, seccomp last because
    the calls that set up the others are not needed afterwards.
    """
    for kind, wanted in limits:
        hardest = resource.getrlimit(kind)[1]
        value = wanted if hardest == resource.RLIM_INFINITY else min(wanted, hardest)
        resource.setrlimit(kind, (value, value))
    try:
        ruleset = landlock.Ruleset()
    except OSError as error:
        raise Refused("landlock", str(error)) from error
    try:
        code = seccomp.program(
            os.uname().machine,
            keep_dumpable=keep_dumpable,
            guard_truncation=ruleset.abi < landlock.TRUNCATE_SINCE,
        )
    except KeyError as error:
        raise Refused("seccomp", f"no system call table for {error}") from error
    try:
        for path, rights in rules:
            ruleset.allow(path, rights)
    except OSError as error:
        raise Refused("path", f"{error}") from error
    try:
        kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
        ruleset.restrict()
    except OSError as error:
        raise Refused("landlock", str(error)) from error
    try:
        seccomp.install(os.uname().machine, code)
    except OSError as error:
        raise Refused("seccomp", str(error)) from error
    _self_test()
    try:
        os.chdir(workdir)
    except OSError as error:
        raise Refused("path", f"working directory {error}") from error
    return ruleset.abi


def _candidates(name: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    if b"/" in name:
        return [name]
    folders = environment.get(b"PATH", _DEFAULT_PATH).split(b":")
    return [(folder or b".") + b"/" + name for folder in folders]


def _execute(argv: list[bytes], environment: dict[bytes, bytes], workdir: str) -> int:
    """Replace this (forked) process; return an exit code only when that failed."""
    code = _NOT_FOUND
    reason = os.strerror(errno.ENOENT)
    try:
        os.chdir(workdir)
        for path in _candidates(argv[0], environment):
            try:
                os.execve(path, argv, environment)  # noqa: S606 - running what was asked is its purpose
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                code, reason = _NOT_EXECUTABLE, error.strerror or str(error)
    except OSError as error:
        reason = f"working directory: {error.strerror}"
    os.write(2, b"cannot run " + argv[0] + b": " + reason.encode() + b"\n")
    return code


class Launcher:
    """The confined parent of everything in the Sandbox."""

    def __init__(self, control: _socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._children: dict[int, tuple[str, int]] = {}
        """Descriptor of a pidfd to the key and pid of its process."""
        self._has_main = False

    def _say(self, *words: object) -> None:
        self._control.send(" ".join(str(word) for word in words).encode()[:_MESSAGE])

    def serve(self) -> int:
        """Answer messages until the main process ended; return its code."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    code = self._answer()
                else:
                    code = self._reap(descriptor)
                if code is not None:
                    return code

    def _answer(self) -> int | None:
        data, descriptors = _receive(self._control)
        if not data:
            return _KILL + 128
        message = marshal.loads(data)  # noqa: S302 - the keeper wrote it, outside of the Sandbox
        kind = message[0]
        if kind == "confine":
            return self._confine(message[1:])
        if kind in ("main", "exec"):
            self._start(message[1], descriptors)
            self._has_main = self._has_main or kind == "main"
        elif kind == "signal":
            self._signal(message[1], message[2])
        elif kind == "terminate":
            if not self._has_main:
                return 0
            self._signal("main", _TERMINATE, group=False)
        return None

    def _confine(self, settings: tuple[object, ...]) -> int | None:
        try:
            abi = _confine(*settings)  # type: ignore[arg-type]
        except Refused as refused:
            self._say("refused", refused.stage, refused)
            return _SELF_TEST_FAILED
        except OSError as error:
            self._say("refused", "limits", error)
            return _SELF_TEST_FAILED
        self._say("confined", abi)
        return None

    def _start(self, key: str, descriptors: list[int]) -> None:
        body, *streams = descriptors
        argv, environment, workdir = marshal.loads(_read_all(body))  # noqa: S302 - as above
        pid = os.fork()
        if pid == 0:
            code = _NOT_EXECUTABLE
            try:
                os.setsid()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                kernel.default_signals()
                code = _execute(argv, environment, workdir)
            finally:
                os._exit(code)
        for stream in streams:
            os.close(stream)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (key, pid)
        self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> int | None:
        key, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            code = 128 - code
        self._say("ended", key, code)
        return code if key == "main" else None

    def _signal(self, key: str, number: int, *, group: bool = True) -> None:
        for child, pid in self._children.values():
            if child == key:
                try:
                    # The child may not have made its group yet: then it is still alone and gets the signal itself.
                    (os.killpg if group else os.kill)(pid, number)
                except ProcessLookupError:
                    self._signal_one(pid, number)

    @staticmethod
    def _signal_one(pid: int, number: int) -> None:
        try:  # noqa: SIM105 - contextlib would cost 2 ms at the start
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def main() -> None:
    """Serve the socket whose descriptor number is the last argument."""
    descriptor = int(sys.argv[-1])
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - the function takes no keyword
    control = _socket.socket(fileno=descriptor)
    # The proc directory of *this* pid namespace: the host looks only at our processes, whatever runs elsewhere.
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    control.sendmsg([b"hello"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", proc))])
    os.close(proc)
    os.umask(0o022)
    os._exit(Launcher(control).serve())
