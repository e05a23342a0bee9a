import os
import socket
import struct

import pytest

from oce.sandboxd.confine import control_groups, generated, landlock, netns, rights, view
from oce.sandboxd.confine.doctor import required_rights
from oce.sandboxd.confine.output_ring import MAX_BYTES, MAX_LINE, MAX_LINES, OutputRing, unpack
from oce.sandboxd.confine.piped_command import check_command
from oce.sandboxd.confine.programs import Programs, Python
from oce.sandboxd.confine.uids import UidAllocator
from oce.sandboxd.place import Launch, LaunchFailedError, Limits, MissingRightError, Mount


@pytest.mark.parametrize(
    ("abi", "rights_known", "size", "scoped"),
    [(3, 15, 8, 0), (4, 15, 16, 0), (5, 16, 16, 0), (6, 16, 24, 3), (7, 16, 24, 3)],
)
def test_landlock_handles_all_rights_of_the_abi(abi, rights_known, size, scoped):
    attributes = landlock.attributes(abi)
    assert landlock.handled_rights(abi) == (1 << rights_known) - 1
    assert len(attributes) == size
    assert struct.unpack("=QQQ", attributes.ljust(24, b"\0")) == (
        (1 << rights_known) - 1,
        0,
        scoped,
    )


def test_landlock_read_rights_hold_no_write_right():
    assert landlock.READ & (landlock.WRITE_FILE | landlock.TRUNCATE) == 0
    assert landlock.DEVICES & landlock.EXECUTE == 0


def test_netlink_requests():
    address = netns.add_own_address(socket.AF_INET)
    length, kind, flags, _, _ = struct.unpack_from("=IHHII", address)
    assert (length, kind, flags) == (len(address), 20, 0x405)
    assert struct.unpack_from("=BBBBI", address, 16) == (2, 32, 2, 0, 1)
    assert address[24:] == b"\x08\0\x02\0\xc6\x12\0\x01" + b"\x08\0\x01\0\xc6\x12\0\x01"
    route = netns.add_any_address_route(socket.AF_INET6)
    assert struct.unpack_from("=BBBBBBBBI", route, 16) == (10, 0, 0, 0, 255, 3, 0, 2, 0)
    assert len(route) % 4 == 0
    assert netns.attribute(5, b"abc") == b"\x07\0\x05\0abc\0"


def test_redirect_spares_loopback_own_addresses_and_listened_ports():
    rules = netns.redirect_rules().splitlines()
    redirect = rules.index("meta l4proto tcp redirect to :1")
    for spared in ("127.0.0.0/8", "198.18.0.1", "::1", "fd7a:5bcd::1", "{ 443, 80, 53 }"):
        assert any(spared in rule and rule.endswith("return") for rule in rules[:redirect])


def test_uids_are_kept_and_never_given_twice(tmp_path):
    file = tmp_path / "uids.json"
    first = UidAllocator(file, 5000)
    assert [first.uid_of(key) for key in ("a", "b", "a")] == [5000, 5001, 5000]
    assert file.stat().st_mode & 0o777 == 0o600
    again = UidAllocator(file, 5000)
    assert [again.uid_of(key) for key in ("b", "c")] == [5001, 5002]
    assert first.uid_of("d") == 5003, "the other process's allocation was not seen"
    assert again.uid_of("d") == 5003
    assert UidAllocator(file, 9000).uid_of("later") == 9000
    assert UidAllocator(file, 100).uid_of("e") == 9001


V1 = """\
30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
31 24 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_control_groups_of_both_versions_are_found():
    mixed = control_groups.find_hierarchies(V1, "pids memory")
    assert {name: (str(h.path), h.version) for name, h in mixed.items()} == {
        "cpu": ("/sys/fs/cgroup/cpu", 1),
        "memory": ("/sys/fs/cgroup/memory", 1),
        "pids": ("/sys/fs/cgroup/unified", 2),
    }
    assert set(control_groups.find_hierarchies(V2, "cpuset cpu io memory pids")) == {
        "cpu",
        "memory",
        "pids",
    }
    assert control_groups.find_hierarchies(V2, "") == {}


def test_control_group_settings():
    limits = Limits(memory_bytes=1000, processes=10, cpu_fraction=0.25)
    assert control_groups.settings(limits, 2) == {
        "pids": {"pids.max": "13"},
        "memory": {"memory.max": "1000", "memory.swap.max": "0"},
        "cpu": {"cpu.max": "25000 100000"},
    }
    assert control_groups.settings(limits, 1)["cpu"]["cpu.cfs_quota_us"] == "25000"
    assert set(control_groups.settings(Limits(), 1)) == {"pids"}


def test_control_groups_on_a_v2_tree(tmp_path):
    # A plain directory with no kernel behind it; the file stands for the kernel's own.
    group = tmp_path / "oce-s"
    group.mkdir()
    (group / "cgroup.procs").touch()
    groups = control_groups.ControlGroups(
        {name: control_groups.Hierarchy(tmp_path, 2) for name in ("memory", "pids", "cpu")}
    )
    descriptors = groups.create("s", Limits(memory_bytes=5))
    assert len(descriptors) == 1
    os.close(descriptors[0])
    assert (group / "memory.max").read_text() == "5"
    assert (group / "pids.max").read_text() == "515"
    assert not (group / "memory.swap.max").exists()
    assert groups.groups_of("s") == [group]
    assert groups.remove("s") is False
    assert groups.remove("other") is True


def test_generated_files_are_grouped_by_directories_of_their_own():
    layout = generated.plan(
        ["/run/openshell/a", "/run/openshell/p/b", "/etc/tls/ca.pem", "/etc/x", "/sandbox/c/d"],
        ["/sandbox"],
    )
    assert layout.directories == {"/etc/tls": "d0", "/run/openshell": "d1"}
    assert layout.files == {"/etc/x": "f0", "/sandbox/c/d": "f1"}
    assert layout.place_of("/run/openshell/p/new") == "d1/p/new"
    assert layout.place_of("/etc/x") is None


@pytest.mark.parametrize(
    "target", ["a", "/a/../b", "/a//b", "/usr/lib/x", "/proc/x", "/dev/x", "/a\0"]
)
def test_impossible_generated_files(target):
    with pytest.raises(generated.ImpossibleFileError):
        generated.plan([target], [])


def test_output_ring_is_bounded_in_lines_bytes_and_line_length():
    ring = OutputRing()
    ring.feed(1, b"a\nb")
    ring.feed(2, b"err\n")
    ring.feed(1, b"c\n")
    assert [ring.since(n) for n in range(4)] == [(0, 1, b"a"), (1, 2, b"err"), (2, 1, b"bc"), None]
    for number in range(MAX_LINES + 10):
        ring.feed(1, b"%d\n" % number)
    assert ring.since(0) == (13, 1, b"10")
    ring.feed(2, b"x" * (2 * MAX_LINE + 5))
    ring.finish(2)
    assert [len(line) for _, line in unpack(ring.pack())][-3:] == [MAX_LINE, MAX_LINE, 5]
    for _ in range(200):
        ring.feed(1, b"y" * MAX_LINE + b"\n")
    assert len(ring.pack()) < MAX_BYTES + 5 * MAX_LINES
    assert unpack(ring.pack()[:-1]) == unpack(ring.pack())[:-1]


@pytest.mark.parametrize(
    ("command", "environment", "workdir"),
    [
        ([], {}, "/"),
        ([""], {}, "/"),
        (["a\0"], {}, "/"),
        (["a"], {"A=": "b"}, "/"),
        (["a"], {"": ""}, "/"),
        (["a"], {"A": "\0"}, "/"),
        (["a"], {}, "b"),
        (["a"], {}, "/\0"),
    ],
)
def test_impossible_commands(command, environment, workdir):
    with pytest.raises(ValueError, match=r"empty|NUL|absolute|'='"):
        check_command(command, environment, workdir)


def plan_of(tmp_path, **changes):
    settings = {
        "sandbox_id": "s",
        "instance_id": "i",
        "uid_key": "k",
        "command": ["true"],
        "environment": {"SECRET": "v"},
        "workdir": "/sandbox",
        "mounts": [
            Mount(source=tmp_path / "ws", target="/sandbox", read_only=False),
            Mount(source=tmp_path / "ro", target="/sandbox/ro", read_only=True),
        ],
    }
    launch = Launch(**(settings | changes))
    programs = Programs(
        bwrap=tmp_path / "bwrap",
        python=Python(host=tmp_path / "p", inside="/opt/oce/python/bin/p", prefix=tmp_path),
        code=tmp_path / "code",
        nft=None,
    )
    layout = generated.plan(["/etc/tls/a"], ["/sandbox"])
    return view.build(
        launch,
        programs,
        layout,
        store=tmp_path / "files",
        etc=tmp_path / "etc",
        system_paths=("/usr",),
    )


def test_view_isolates_and_mounts_in_order(tmp_path):
    options = plan_of(tmp_path).options
    text = " ".join(options)
    for needed in (
        "--unshare-user",
        "--disable-userns",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--die-with-parent",
        "--new-session",
        "--cap-drop ALL",
        "--clearenv",
        "--remount-ro /",
    ):
        assert needed in text
    assert "--unshare-net" not in options
    assert "--share-net" not in options
    assert "SECRET" not in text
    assert options.index("/sandbox") < options.index("/sandbox/ro")
    assert f"--ro-bind {tmp_path}/files/d0 /etc/tls" in text
    assert f"--ro-bind {tmp_path} /opt/oce/python" in text


def test_view_rules_give_write_only_to_writable_mounts(tmp_path):
    rules = plan_of(tmp_path).rules
    writable = {path for path, given in rules if given == landlock.WRITE}
    assert writable == {"/sandbox", "/tmp", "/var/tmp", "/dev/shm"}
    assert ("/proc", landlock.READ) in rules
    assert "/" not in dict(rules)
    narrowed = plan_of(
        tmp_path, read_write_paths=["/sandbox/out"], read_only_paths=["/sandbox/in"]
    ).rules
    assert {path for path, given in narrowed if given == landlock.WRITE} == {"/sandbox/out"}
    assert ("/sandbox", landlock.READ) in narrowed
    assert ("/sandbox/in", landlock.READ) in narrowed


@pytest.mark.parametrize(
    "path", ["/", "relative", "/a/../b", "/usr", "/proc", "/sandbox/ro/x", "/nowhere"]
)
def test_view_refuses_writing_that_mounts_forbid(tmp_path, path):
    with pytest.raises(LaunchFailedError):
        plan_of(tmp_path, read_write_paths=[path])


def test_doctor_orders_rights_after_a_failure():
    missing = MissingRightError(rights.LANDLOCK, "boot another kernel")
    found = {right.name: right for right in required_rights(missing)}
    assert found[rights.MOUNTS].held
    assert (found[rights.LANDLOCK].held, found[rights.LANDLOCK].remedy) == (
        False,
        "boot another kernel",
    )
    assert not found[rights.SECCOMP].held
    assert not any(right.held for right in required_rights(LaunchFailedError("disk full")))
    first, *rest = required_rights(MissingRightError("Python 3.11", "install it"))
    assert (first.name, first.held, any(r.held for r in rest)) == ("Python 3.11", False, False)


@pytest.mark.parametrize("stage", ["userns", "netns", "landlock", "seccomp"])
def test_stages_name_rights(stage):
    error = rights.failure(stage, "said")
    assert isinstance(error, MissingRightError)
    assert error.right in rights.IN_ORDER


def test_other_stages_are_no_rights():
    for stage in ("path", "selftest", "limits", "keeper", "bubblewrap"):
        assert isinstance(rights.failure(stage, "said"), LaunchFailedError)
