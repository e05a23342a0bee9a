"""System calls that Python 3.11 does not offer, each raising OSError with the name of what failed.

Imported inside every Sandbox before its first process exists, so it imports as little as it can (no `typing`, no `signal`).
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

SIGPIPE = 13
SIGXFSZ = 25

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a raw system call. Integers are passed as 64-bit words, bytes as a pointer to them."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(int(_libc.syscall(ctypes.c_long(number), *words)), what)


def prctl(what: str, option: int, argument: int | bytes) -> int:
    """Set a property of this process; the unused arguments must be zero (prctl(2))."""
    word = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    zero = ctypes.c_ulong(0)
    return _checked(int(_libc.prctl(option, word, zero, zero, zero)), what)


def address_of(data: bytes) -> tuple[int, object]:
    """Return the address of a copy of `data` and the owner that keeps it alive."""
    buffer = ctypes.create_string_buffer(data, len(data))
    return ctypes.addressof(buffer), buffer


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the given kinds."""
    _checked(int(_libc.unshare(flags)), "unshare")


def default_signals() -> None:
    """Undo Python's own choice to ignore SIGPIPE and SIGXFSZ, which a program started by exec would inherit."""
    for number in (SIGPIPE, SIGXFSZ):
        _libc.signal(number, None)
