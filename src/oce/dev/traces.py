"""What is left of a state directory after it was stopped: processes, mounts, control groups, the directory itself.

The demonstration prints the count and the acceptance tests require zero. It looks at the kernel's own lists and trusts no record of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def traces_of(root: Path, own_pids: Iterable[int] = ()) -> tuple[str, ...]:
    """Return a line per process, mount or control group that still mentions the directory; `own_pids` are not counted."""
    needle = str(root)
    found = [
        f"process {pid}: {command}" for pid, command in _processes(needle, frozenset(own_pids))
    ]
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if needle in line]
    found += [f"control group {group}" for group in _control_groups(root)]
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


def _control_groups(root: Path) -> list[str]:
    """Return our groups whose name carries a Sandbox that this directory knew; sandboxd names them `oce-<sandbox id>`."""
    known = (
        {path.name for path in (root / "sandboxd").rglob("*") if path.is_dir()}
        if root.exists()
        else set()
    )
    base = Path("/sys/fs/cgroup")
    groups = [path for pattern in ("oce-*", "*/oce-*") for path in base.glob(pattern)]
    return [str(path) for path in groups if not known or path.name.removeprefix("oce-") in known]


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
