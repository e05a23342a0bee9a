"""Total limits of a Sandbox (memory, processes, processor time) where the host allows control groups, v1 or v2.

Each Sandbox has an own top-level child `oce-<sandbox id>` in every hierarchy that it needs; no other group is ever written. As an
ordinary user there are none, and the per-process limits of the launcher are all there is; `occ doctor` says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.place import Limits

CONTROLLERS = ("memory", "pids", "cpu")
PREFIX = "oce-"
_PERIOD = 100_000
_SMALLEST_QUOTA = 1_000
_OWN_PROCESSES = 3
"""Two of bubblewrap and the launcher, which count in the group but not against the workload."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where one controller is: its mount point and whether it speaks v2."""

    path: Path
    version: int


def find_hierarchies(mountinfo: str, v2_controllers: str) -> dict[str, Hierarchy]:
    """Return the controllers that can be used, from /proc/self/mountinfo and the v2 root's `cgroup.subtree_control`. Pure."""
    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = Path(before.split()[4])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup":
            names = set(options.split(",")) & set(CONTROLLERS)
            found |= {name: Hierarchy(mount_point, 1) for name in names}
        elif kind == "cgroup2":
            names = set(v2_controllers.split()) & set(CONTROLLERS)
            found = {name: Hierarchy(mount_point, 2) for name in names} | found
    return found


def settings(limits: Limits, version: int) -> Mapping[str, Mapping[str, str]]:
    """Return controller -> file -> value for one Sandbox's limits. Pure."""
    wanted: dict[str, dict[str, str]] = {}
    processes = str(limits.processes + _OWN_PROCESSES)
    wanted["pids"] = {"pids.max": processes}
    if limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        wanted["memory"] = (
            {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
            if version == 1
            else {"memory.max": size, "memory.swap.max": "0"}
        )
    if limits.cpu_fraction is not None:
        quota = str(max(_SMALLEST_QUOTA, int(limits.cpu_fraction * _PERIOD)))
        wanted["cpu"] = (
            {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota}
            if version == 1
            else {"cpu.max": f"{quota} {_PERIOD}"}
        )
    return wanted


def _may_create(hierarchy: Path) -> bool:
    """Try it: a container may show a writable mount and refuse all the same."""
    trial = hierarchy / f"{PREFIX}trial-{os.getpid()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


_OPTIONAL_FILES = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})
"""Exist only where the kernel accounts swap."""


def _subtree_control(mountinfo: str) -> str:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            file = Path(before.split()[4]) / "cgroup.subtree_control"
            return file.read_text() if file.exists() else ""
    return ""


class ControlGroups:
    """The control groups of this machine's Sandboxes."""

    def __init__(self, hierarchies: Mapping[str, Hierarchy]) -> None:
        self._hierarchies = hierarchies

    @classmethod
    def of_this_machine(cls) -> ControlGroups:
        """Return what the caller may use: nothing without root."""
        if os.geteuid() != 0:
            return cls({})
        mountinfo = Path("/proc/self/mountinfo").read_text()
        found = find_hierarchies(mountinfo, _subtree_control(mountinfo))
        return cls({name: h for name, h in found.items() if _may_create(h.path)})

    @property
    def held(self) -> Mapping[str, Hierarchy]:
        """Controller to its hierarchy."""
        return self._hierarchies

    def create(self, sandbox_id: str, limits: Limits) -> list[int]:
        """Make and limit the groups; return descriptors of their `cgroup.procs` for the Sandbox to join. Raises OSError."""
        self.remove(sandbox_id)
        procs: dict[Path, int] = {}
        for name, hierarchy in self._hierarchies.items():
            files = settings(limits, hierarchy.version).get(name)
            if files is None:
                continue
            group = hierarchy.path / f"{PREFIX}{sandbox_id}"
            group.mkdir(exist_ok=True)
            for file, value in files.items():
                if (group / file).exists() or file not in _OPTIONAL_FILES:
                    (group / file).write_text(value)
            if group not in procs:
                procs[group] = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        return list(procs.values())

    def groups_of(self, sandbox_id: str) -> list[Path]:
        """Return the existing groups of a Sandbox."""
        paths = {h.path / f"{PREFIX}{sandbox_id}" for h in self._hierarchies.values()}
        return sorted(path for path in paths if path.exists())

    def remove(self, sandbox_id: str) -> bool:
        """Remove the groups; False while a process is still leaving one."""
        for group in self.groups_of(sandbox_id):
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True
