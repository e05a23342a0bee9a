"""Run a program as another uid with a private view of the account files. Run by path as root: `python -I -S unprivileged.py`.

PostgreSQL refuses to run as root and looks its own uid up in the account database. Rather than create an account on the host, this
program gives the child a mount namespace in which /etc/passwd and /etc/group name the uid, then drops to it and executes. Standard
library only; it must start fast and be readable without the project's packages.

Usage: unprivileged.py UID PASSWD_FILE GROUP_FILE PROGRAM [ARGUMENT ...]
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE, _MS_BIND = 0x4000, 0x40000, 0x1000
_PR_SET_NO_NEW_PRIVS = 38


def _check(libc: ctypes.CDLL, result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    del libc


def main(arguments: list[str]) -> None:
    """Enter the private view, drop to the uid, execute the program."""
    uid, passwd, group, program = int(arguments[0]), arguments[1], arguments[2], arguments[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc, libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(libc, libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount / private")
    for source, target in ((passwd, b"/etc/passwd"), (group, b"/etc/group")):
        _check(
            libc, libc.mount(os.fsencode(source), target, None, _MS_BIND, None), f"bind {target!r}"
        )
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    os.execv(program[0], program)  # noqa: S606 - the whole point: no shell, exactly this program


if __name__ == "__main__":
    main(sys.argv[1:])
