"""Landlock: which paths a Sandbox may read, run and write, on top of the mounts.

The mount view says what exists; Landlock says what may be done with it, and keeps saying so when a mount was a mistake. It also
keeps /proc read-only: without that, a tool could patch the allowed program through `/proc/<pid>/mem`, which seccomp cannot see.

Imported inside the Sandbox: few imports. The masks are pure; `Ruleset` has the effects.
"""

from __future__ import annotations

import os
import stat
import struct

from oce.sandboxd.confine import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

OLDEST_ABI = 2
"""Linux 5.19; Debian 12 brings 6.1. Before ABI 2 no file can be moved between directories."""
TRUNCATE_SINCE = 3
"""Before this ABI (Linux 6.2) truncation is not controlled here; `seccomp` stands in."""
NEWEST_ABI = 7
"""The newest ABI whose rights are known here; a newer kernel is used as this one."""

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (1 << 16) - 1
DEVICES = WRITE_FILE | READ_FILE | READ_DIR | TRUNCATE | IOCTL_DEV
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_SCOPE_ABSTRACT_UNIX = 1
_SCOPE_SIGNAL = 2


def handled_rights(abi: int) -> int:
    """Return every filesystem right that the ABI knows: 13 in ABI 1, then refer (2), truncate (3), device ioctl (5)."""
    first_of = {13: 1, 14: 2, 15: 3, 16: 5}
    bits = max(bits for bits, since in first_of.items() if abi >= since)
    return (1 << bits) - 1


def attributes(abi: int) -> bytes:
    """Return `struct landlock_ruleset_attr` in the size the ABI expects: all rights handled, no network rule, all scopes.

    Network rights stay open: the network namespace decides, and a Sandbox may serve and reach its own ports.
    """
    scoped = (_SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL) if abi >= _SCOPES_SINCE else 0
    size = 24 if abi >= _SCOPES_SINCE else 16 if abi >= _NETWORK_SINCE else 8
    return struct.pack("=QQQ", handled_rights(abi), 0, scoped)[:size]


def kernel_abi() -> int:
    """Return the kernel's Landlock ABI. Raises OSError (ENOSYS, EOPNOTSUPP) without Landlock."""
    return kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _VERSION_FLAG)


class Ruleset:
    """Rules being collected; `restrict` applies them to the calling thread and all that it starts, for good."""

    def __init__(self) -> None:
        """Make an empty ruleset. Raises OSError when the kernel's ABI is missing or too old."""
        found = kernel_abi()
        if found < OLDEST_ABI:
            raise OSError(f"landlock: ABI {found} is older than {OLDEST_ABI}")
        self.abi = min(found, NEWEST_ABI)
        self._handled = handled_rights(self.abi)
        wanted = attributes(self.abi)
        self._ruleset = kernel.syscall(
            "landlock_create_ruleset", _CREATE_RULESET, wanted, len(wanted), 0
        )

    def allow(self, path: str, rights: int) -> None:
        """Allow `rights` beneath an existing path. A missing path raises: a rule is never dropped silently."""
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_FILES
            rule = struct.pack("=QI", rights & self._handled, descriptor)
            kernel.syscall(
                f"landlock_add_rule {path}", _ADD_RULE, self._ruleset, _PATH_BENEATH, rule, 0
            )
        finally:
            os.close(descriptor)

    def restrict(self) -> None:
        """Apply the rules. Needs no_new_privs."""
        kernel.syscall("landlock_restrict_self", _RESTRICT_SELF, self._ruleset, 0)
        os.close(self._ruleset)
