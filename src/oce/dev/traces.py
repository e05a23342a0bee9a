"""What is left of a state directory after it was stopped: processes, mounts, control groups, the directory itself.

The demonstration prints the count and the acceptance tests require zero. It looks at the kernel's own lists and trusts no record of ours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_SANDBOX_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def sandboxes_of(sandboxd: Path) -> frozenset[str]:
    """Return the ids of the Sandboxes that a sandboxd keeps folders for; ask while it still has them."""
    return frozenset(p.name for p in sandboxd.rglob("*") if _SANDBOX_ID.fullmatch(p.name))


def traces_of(
    root: Path, *, sandboxes: frozenset[str] = frozenset(), own_pids: Iterable[int] = ()
) -> tuple[str, ...]:
    """Return a line per process, mount or control group that is left of a directory and of its Sandboxes.

    `own_pids` are not counted.
    """
    needle = str(root)
    found = [
        f"process {pid}: {command}" for pid, command in _processes(needle, frozenset(own_pids))
    ]
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if needle in line]
    found += [f"control group {group}" for group in _control_groups(sandboxes)]
    if root.exists():
        found.append(f"directory {root}")
    return tuple(found)


def _processes(needle: str, own: frozenset[int]) -> Iterator[tuple[int, str]]:
    raw = needle.encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if raw in command or raw in environment:
            yield (
                int(entry.name),
                command.replace(b"\0", b" ").decode(errors="replace").strip()[:120],
            )


def _control_groups(sandboxes: frozenset[str]) -> list[str]:
    """Return the groups of those Sandboxes, in either version's hierarchy; sandboxd names them `oce-<sandbox id>`."""
    base = Path("/sys/fs/cgroup")
    groups = [path for pattern in ("oce-*", "*/oce-*") for path in base.glob(pattern)]
    return [str(path) for path in groups if path.name.removeprefix("oce-") in sandboxes]


def secret_in_reach(secret: str, agents: Path) -> tuple[str, ...]:
    """Return where a secret's value can be seen by a Sandbox: files of its workspaces, and environments or argv of its processes.

    Every process of this machine is looked at except this one: what a Sandbox could see is a part of that.
    """
    raw = secret.encode()
    found = []
    for path in agents.rglob("*"):
        if path.is_file() and not path.is_symlink():
            try:
                if raw in path.read_bytes():
                    found.append(f"file {path.name}")
            except OSError:
                continue
    me = str(Path("/proc/self").resolve().name)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == me:
            continue
        for name in ("cmdline", "environ"):
            try:
                if raw in (entry / name).read_bytes():
                    found.append(f"{name} of process {entry.name}")
            except OSError:
                continue
    return tuple(found)
