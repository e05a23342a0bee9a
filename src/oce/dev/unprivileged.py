"""Run a program with a private view of the account files, as root under another uid. Run by path: `python -I -S unprivileged.py`.

PostgreSQL refuses to run as root, and `initdb` looks its own uid up in the account database. Rather than create an account on the host,
this program gives the child a mount namespace in which /etc/passwd and /etc/group name the uid, then executes it. Started by root it drops
to that uid first; started by the uid itself it needs a user namespace for the mounts and stays who it is. Standard library only; it must
start fast and be readable without the project's packages.

Usage: unprivileged.py UID PASSWD_FILE GROUP_FILE PROGRAM [ARGUMENT ...]
"""

import ctypes
import os
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_BIND = 0x4000, 0x40000, 0x1000
_PR_SET_NO_NEW_PRIVS = 38


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
        file.write(text)


def main(arguments: list[str]) -> None:
    """Enter the private view, drop to the uid, execute the program. Raises OSError naming the call that was refused."""
    uid, passwd, group, program = int(arguments[0]), arguments[1], arguments[2], arguments[3:]
    privileged, gid = os.geteuid() == 0, os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if privileged:
        _check(libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    else:
        _check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare(CLONE_NEWUSER|CLONE_NEWNS)")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount / private")
    for source, target in ((passwd, b"/etc/passwd"), (group, b"/etc/group")):
        _check(libc.mount(os.fsencode(source), target, None, _MS_BIND, None), f"bind {target!r}")
    if privileged:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    os.execv(program[0], program)  # noqa: S606 - the whole point: no shell, exactly this program


if __name__ == "__main__":
    main(sys.argv[1:])
