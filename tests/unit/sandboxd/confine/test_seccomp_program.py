"""The filter is run by a small BPF machine against tables of calls: a wrong jump would deny or allow something else."""

import errno
import struct

import pytest

from oce.sandboxd.confine import seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWUSER, NEWNET, NEWNS = 0x10000000, 0x40000000, 0x00020000


def run(program, arch, number, *arguments):
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, arch, 0, *words)
    code = [struct.unpack_from("=HBBI", program, n) for n in range(0, len(program), 8)]
    position = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, value)[0]
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x35:
                position += if_true if accumulator >= value else if_false
            case 0x45:
                position += if_true if accumulator & value else if_false
            case 0x54:
                accumulator &= value
            case 0x06:
                return value
            case _:
                raise AssertionError(operation)


def refused(number):
    return seccomp.ERRNO | number


@pytest.mark.parametrize("machine", ARCH)
def test_every_denied_call_and_no_neighbour(machine):
    program = seccomp.program(machine, keep_dumpable=True)
    denied = set(seccomp.DENIED[machine].values())
    examined = set(seccomp.EXAMINED[machine].values())
    for number in range(600):
        if number in denied:
            assert run(program, ARCH[machine], number) == refused(errno.EPERM), number
        elif number not in examined:
            assert run(program, ARCH[machine], number) == seccomp.ALLOW, number
    assert len(denied) == len(seccomp.DENIED[machine])
    assert not denied & examined


@pytest.mark.parametrize("machine", ARCH)
def test_calls_judged_by_their_arguments(machine):
    number = seccomp.EXAMINED[machine]
    program = seccomp.program(machine, keep_dumpable=True)
    table = [
        ("clone", (17,), seccomp.ALLOW),
        ("clone", (0x3D0F00,), seccomp.ALLOW),  # a thread
        *(("clone", (flag | 17,), refused(errno.EPERM)) for flag in (NEWUSER, NEWNET, NEWNS)),
        ("clone3", (), refused(errno.ENOSYS)),
        ("ioctl", (0, 0x5401), seccomp.ALLOW),
        ("ioctl", (0, 0x5412), refused(errno.EPERM)),
        ("ioctl", (0, 0x1_0000_5412), refused(errno.EPERM)),  # the kernel looks at the low word
        ("ioctl", (0, 0x541C), refused(errno.EPERM)),
        ("socket", (1, 1, 0), seccomp.ALLOW),
        ("socket", (2, 3, 255), seccomp.ALLOW),
        ("socket", (10, 1, 0), seccomp.ALLOW),
        ("socket", (16, 3, 0), seccomp.ALLOW),
        ("socket", (16, 3, 4), refused(errno.EAFNOSUPPORT)),
        *(
            ("socket", (family, 1, 0), refused(errno.EAFNOSUPPORT))
            for family in (0, 17, 31, 38, 40, 44)
        ),
        ("prctl", (4, 0), refused(0)),
        ("prctl", (38, 1), seccomp.ALLOW),
        ("seccomp", (1, 0), seccomp.ALLOW),
    ]
    for name, arguments, answer in table:
        assert run(program, ARCH[machine], number[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize("machine", ARCH)
def test_truncation_is_guarded_where_landlock_does_not_know_it(machine):
    number = seccomp.TRUNCATING[machine]
    guarded = seccomp.program(machine, keep_dumpable=True, guard_truncation=True)
    plain = seccomp.program(machine, keep_dumpable=True)
    denied, allowed = refused(errno.EACCES), seccomp.ALLOW
    flags = [(0, allowed), (0o1000, denied), (0o1001, allowed), (0o1002, allowed), (0o1003, denied)]
    flags += [
        (0o1101, allowed),
        (0o2001000, denied),
        (1 << 32, allowed),
        (1 << 32 | 0o1000, denied),
    ]
    table = [("openat", (0, 0, flag), answer) for flag, answer in flags]
    if "open" in number:
        table += [("open", (0, flag), answer) for flag, answer in flags]
    table += [("truncate", (), denied), ("openat2", (), refused(errno.ENOSYS))]
    for name, arguments, answer in table:
        assert run(guarded, ARCH[machine], number[name], *arguments) == answer, (name, arguments)
        assert run(plain, ARCH[machine], number[name], *arguments) == allowed
    assert run(guarded, ARCH[machine], seccomp.EXAMINED[machine]["clone"], 17) == allowed


def test_another_architecture_kills_and_x32_does_not_exist():
    program = seccomp.program("x86_64", keep_dumpable=False)
    assert run(program, 0x40000003, 1) == seccomp.KILL_PROCESS
    assert run(program, ARCH["aarch64"], 1) == seccomp.KILL_PROCESS
    assert run(program, ARCH["x86_64"], 0x40000001) == refused(errno.ENOSYS)
    arm = seccomp.program("aarch64", keep_dumpable=False)
    assert run(arm, 0x40000028, 1) == seccomp.KILL_PROCESS
    assert run(arm, ARCH["aarch64"], 167, 4) == seccomp.ALLOW


def test_an_architecture_without_a_table_is_refused():
    with pytest.raises(KeyError):
        seccomp.program("riscv64", keep_dumpable=True)
