import os
import sys
from pathlib import Path

import pytest

from oce.sandboxd.confine.control_groups import ControlGroups
from oce.sandboxd.place import ExitStatus, Limits, Mount
from oce.testing.machine_place import run_inside, temporary_place

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="total limits need root"),
]


def held():
    groups = ControlGroups.of_this_machine()
    missing = {"memory", "pids", "cpu"} - set(groups.held)
    if missing:
        pytest.skip(f"this host offers no control group for {', '.join(sorted(missing))}")
    return groups


async def test_memory_processes_and_cpu_are_bounded_and_the_groups_vanish():
    groups = held()
    limits = Limits(memory_bytes=64 << 20, processes=30, cpu_fraction=0.5)
    async with temporary_place() as kit:
        sandbox = await kit.start([], limits=limits)
        made = groups.groups_of(sandbox.sandbox_id)
        inside = set()
        for group in made:
            inside |= set((group / "cgroup.procs").read_text().split())
        assert sandbox.proc_id.split(":")[0] not in inside
        values = {
            file.name: file.read_text().strip()
            for group in made
            for file in group.iterdir()
            if file.name in {"pids.max", "cpu.cfs_quota_us", "cpu.max"}
        }
        assert values["pids.max"] == "33"
        assert values.get("cpu.cfs_quota_us", values.get("cpu.max")) in {"50000", "50000 100000"}
        eater = [await kit.python(), "-c", "x = bytearray(200 << 20); print(len(x))"]
        assert (await run_inside(sandbox, eater)).code == 137
        assert (await run_inside(sandbox, ["true"])).code == 0
        assert await sandbox.stop(1.0) == ExitStatus(code=0)
        await kit.place.discard(sandbox.sandbox_id)
        assert groups.groups_of(sandbox.sandbox_id) == []


async def test_each_key_gets_its_own_uid_and_no_sandbox_takes_anothers_files():
    async with temporary_place() as kit:
        first = await kit.start(["sleep", "300"], uid_key="a")
        owner = kit.workspace.stat().st_uid
        assert owner == kit.config.first_uid
        same = await kit.start(["true"], uid_key="a")
        assert await same.wait() == ExitStatus(code=0)
        with pytest.raises(Exception, match=f"belongs to uid {owner}"):
            await kit.start(["true"], uid_key="b")
        keeper = Path("/proc", first.proc_id.split(":")[0])
        assert keeper.stat().st_uid == owner  # noqa: ASYNC240 - one system call


@pytest.mark.skipif(
    not sys.base_prefix.startswith("/root/"),
    reason="the interpreter of the tests is readable by all",
)
async def test_an_interpreter_that_only_root_can_read_is_installed_for_all():
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    async with temporary_place(python=own) as kit:
        await kit.place.check()
        sandbox = await kit.start([])
        code = "import ssl, sys; print(*sys.version_info[:3])"
        seen = await run_inside(sandbox, [await kit.python(), "-I", "-c", code])
        assert seen.stdout.split() == [*map(str, sys.version_info[:3])], seen.stderr


async def test_a_private_folder_is_entered_by_its_sandbox_alone():
    async with temporary_place() as kit:
        folder = kit.folder / "providers"
        folder.mkdir(mode=0o700)
        (folder / "file").write_text("for this Sandbox")
        (folder / "file").chmod(0o444)
        shown = Mount(
            source=folder, target="/run/openshell/providers", read_only=True, private=True
        )
        sandbox = await kit.start([], uid_key="a", mounts=(*kit.launch([]).mounts, shown))
        seen = await run_inside(sandbox, ["cat", "/run/openshell/providers/file"])
        assert (seen.code, seen.stdout) == (0, "for this Sandbox")
        found = folder.stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (
            0o750,
            0,
            kit.config.first_uid,
        )
