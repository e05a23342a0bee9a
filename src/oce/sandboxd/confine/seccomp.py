"""The system calls that a Sandbox may not make, as a classic BPF program for x86-64 and aarch64.

A deny list, because programs nobody has seen yet must run: what reaches past the mount view, the network namespace or the
process (mounts, namespaces, foreign memory, keys, modules, clocks, io_uring, odd socket families) answers EPERM. It is the last
layer, not the only one: bubblewrap and Landlock refuse most of it as well. Source of the list: the confinement recipe §4.

Imported inside the Sandbox: few imports. `program` is pure; `install` has the effect.
"""

from __future__ import annotations

import errno
import struct

from oce.sandboxd.confine import kernel

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

X86_64 = "x86_64"
AARCH64 = "aarch64"

_AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_X32_BIT = 0x40000000
"""x32 calls arrive with the x86-64 architecture value and this bit in the number."""

# Numbers that both architectures share (every call added since Linux 5.1 has one number everywhere).
_DENIED_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "set_mempolicy_home_node": 450,
    "lsm_set_self_attr": 460,
    "open_tree_attr": 467,
    "listns": 470,
}

DENIED = {
    X86_64: _DENIED_EVERYWHERE
    | {
        "ptrace": 101,
        "syslog": 103,
        "uselib": 134,
        "personality": 135,
        "ustat": 136,
        "sysfs": 139,
        "vhangup": 153,
        "modify_ldt": 154,
        "pivot_root": 155,
        "_sysctl": 156,
        "adjtimex": 159,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "nfsservctl": 180,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "mbind": 237,
        "set_mempolicy": 238,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "migrate_pages": 256,
        "unshare": 272,
        "move_pages": 279,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    AARCH64: _DENIED_EVERYWHERE
    | {
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "chroot": 51,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "personality": 92,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "adjtimex": 171,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "mbind": 235,
        "set_mempolicy": 237,
        "migrate_pages": 238,
        "move_pages": 239,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}

# Calls that are judged by an argument, or answered otherwise than by EPERM.
EXAMINED = {
    X86_64: {"ioctl": 16, "socket": 41, "clone": 56, "prctl": 157, "seccomp": 317, "clone3": 435},
    AARCH64: {
        "ioctl": 29,
        "prctl": 167,
        "socket": 198,
        "clone": 220,
        "seccomp": 277,
        "clone3": 435,
    },
}

# Calls that shorten a file, examined only where Landlock does not (before its ABI 3).
TRUNCATING = {
    X86_64: {"open": 2, "truncate": 76, "openat": 257, "openat2": 437},
    AARCH64: {"truncate": 45, "openat": 56, "openat2": 437},
}
_O_ACCMODE, _O_WRONLY, _O_RDWR, _O_TRUNC = 3, 1, 2, 0x200

_NAMESPACE_FLAGS = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0

# Offsets in struct seccomp_data; arguments are 64-bit little-endian words, BPF loads 32 bits. The kernel itself truncates the
# examined arguments (flags of namespaces, request, family, protocol, option) to their low word.
_NUMBER, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, offset)


def _equal(value: int, if_true: int, if_false: int) -> bytes:
    return _instruction(0x15, value, if_true, if_false)


def _return(value: int) -> bytes:
    return _instruction(0x06, value)


def _refuse(number: int) -> bytes:
    return _return(ERRNO | number)


def _only_for(number: int, block: list[bytes]) -> list[bytes]:
    """Run `block` (which always returns) for one system call, else step over it."""
    return [_equal(number, 0, len(block)), *block]


def _clone_without_namespaces() -> list[bytes]:
    return [
        _load(_ARG0),
        _instruction(0x45, _NAMESPACE_FLAGS, 0, 1),
        _refuse(errno.EPERM),
        _return(ALLOW),
    ]


def _ioctl_without_terminal_injection() -> list[bytes]:
    return [
        _load(_ARG1),
        _equal(_TIOCSTI, 1, 0),
        _equal(_TIOCLINUX, 0, 1),
        _refuse(errno.EPERM),
        _return(ALLOW),
    ]


def _plain_socket_families() -> list[bytes]:
    """UNIX, INET, INET6 and routing netlink (glibc's getaddrinfo and getifaddrs need it); vsock, packet, … do not exist."""
    return [
        _load(_ARG0),
        _equal(_AF_UNIX, 7, 0),
        _equal(_AF_INET, 6, 0),
        _equal(_AF_INET6, 5, 0),
        _equal(_AF_NETLINK, 1, 0),
        _refuse(errno.EAFNOSUPPORT),
        _load(_ARG2),
        _equal(_NETLINK_ROUTE, 1, 0),
        _refuse(errno.EAFNOSUPPORT),
        _return(ALLOW),
    ]


def _no_truncation_without_writing(flags: int) -> list[bytes]:
    """Refuse O_TRUNC on a descriptor that is not for writing: the kernel shortens the file, and old Landlock sees only a read."""
    return [
        _load(flags),
        _instruction(0x45, _O_TRUNC, 0, 4),
        _instruction(0x54, _O_ACCMODE),
        _equal(_O_WRONLY, 2, 0),
        _equal(_O_RDWR, 1, 0),
        _refuse(errno.EACCES),
        _return(ALLOW),
    ]


def _guard_truncation(machine: str) -> list[bytes]:
    """Stand in for Landlock's right to truncate; a descriptor for writing is judged by Landlock in every ABI."""
    numbers = TRUNCATING[machine]
    code = _only_for(numbers["truncate"], [_refuse(errno.EACCES)])
    # Its flags lie in memory where BPF cannot look; ENOSYS makes every libc fall back to openat.
    code += _only_for(numbers["openat2"], [_refuse(errno.ENOSYS)])
    if "open" in numbers:
        code += _only_for(numbers["open"], _no_truncation_without_writing(_ARG1))
    return code + _only_for(numbers["openat"], _no_truncation_without_writing(_ARG2))


def _pretend_undumpable() -> list[bytes]:
    """Answer success to PR_SET_DUMPABLE and change nothing."""
    return [_load(_ARG0), _equal(kernel.PR_SET_DUMPABLE, 0, 1), _refuse(0), _return(ALLOW)]


def program(machine: str, *, keep_dumpable: bool, guard_truncation: bool = False) -> bytes:
    """Return the filter for one architecture (`os.uname().machine`).

    `guard_truncation` is for a kernel whose Landlock does not know the right to truncate.

    `keep_dumpable` is for a host without root: a process that hides its descriptors from the host would have no identity on the
    network and block every connection of its Sandbox. Raises KeyError for an architecture without a table.
    """
    denied, examined = DENIED[machine], EXAMINED[machine]
    code = [_load(_ARCH), _equal(_AUDIT_ARCH[machine], 1, 0), _return(KILL_PROCESS), _load(_NUMBER)]
    if machine == X86_64:
        code += [_instruction(0x35, _X32_BIT, 0, 1), _refuse(errno.ENOSYS)]
    for number in sorted(denied.values()):
        code += _only_for(number, [_refuse(errno.EPERM)])
    # Its flags lie in memory where BPF cannot look; ENOSYS makes every libc fall back to clone.
    code += _only_for(examined["clone3"], [_refuse(errno.ENOSYS)])
    code += _only_for(examined["clone"], _clone_without_namespaces())
    code += _only_for(examined["ioctl"], _ioctl_without_terminal_injection())
    code += _only_for(examined["socket"], _plain_socket_families())
    if guard_truncation:
        code += _guard_truncation(machine)
    if keep_dumpable:
        code += _only_for(examined["prctl"], _pretend_undumpable())
    code.append(_return(ALLOW))
    return b"".join(code)


def install(machine: str, code: bytes) -> None:
    """Put the filter on the calling thread, for good. Needs no_new_privs. Raises OSError."""
    pointer, _owner = kernel.address_of(code)
    set_mode_filter = 1
    kernel.syscall(
        "seccomp",
        EXAMINED[machine]["seccomp"],
        set_mode_filter,
        0,
        struct.pack("=HxxxxxxQ", len(code) // 8, pointer),
    )
