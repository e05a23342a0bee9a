"""What exists inside a Sandbox and what may be done with it: bubblewrap's options and the Landlock rules, from one plan.

Both come from here, so that no mount can exist without a rule, nor a rule without a mount. Pure, but for looking which of
a few system files the host has. Order and reasons: the confinement recipe §1.3 and §1.4.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from oce.sandboxd.confine import landlock, netns
from oce.sandboxd.confine.programs import INSIDE_CODE
from oce.sandboxd.place import LaunchFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.sandboxd.confine.generated import Layout
    from oce.sandboxd.confine.programs import Programs
    from oce.sandboxd.place import Launch

INSIDE_ID = 1000
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - paths inside a Sandbox
_SMALL_TEMPORARY_BYTES = 64 * 1024 * 1024
_RUN_BYTES = 16 * 1024 * 1024
_HOST_ETC = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/openssl.cnf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/debian_version",
    "/etc/os-release",
)
_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

ETC_FILES = {
    "passwd": f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}::/sandbox:/bin/bash\n",
    "group": f"sandbox:x:{INSIDE_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "resolv.conf": f"nameserver {netns.OWN_IPV4}\noptions timeout:2 attempts:1\n",
    "nsswitch.conf": "hosts: files dns\npasswd: files\ngroup: files\n",
    "machine-id": "",
}
"""The private /etc: nothing in it tells about the host."""


@dataclass(frozen=True, slots=True)
class View:
    """bubblewrap's options and the launcher's Landlock rules as (path inside, rights)."""

    options: list[str]
    rules: list[tuple[str, int]]


def build(
    launch: Launch,
    programs: Programs,
    layout: Layout,
    *,
    store: Path,
    etc: Path,
    system_paths: Sequence[str],
) -> View:
    """Return the view of one launch. Raises LaunchFailedError for a path policy that cannot be kept."""
    roots = system_roots(system_paths)
    directories = [path for path, link in roots if link is None]
    options = [*_namespaces(), *_system(roots, etc), *_temporary(launch.limits.temporary_bytes)]
    for mount in sorted(launch.mounts, key=lambda m: len(PurePosixPath(m.target).parts)):
        options += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]
    for inside, stored in {**layout.directories, **layout.files}.items():
        options += ["--ro-bind", str(store / stored), inside]
    options += ["--ro-bind", str(programs.code), INSIDE_CODE]
    if programs.python.prefix is not None:
        options += ["--ro-bind", str(programs.python.prefix), programs.python.inside_prefix]
        directories.append(programs.python.inside_prefix)
    # bubblewrap's root is a tmpfs: without this, new top-level files could be made.
    options += ["--remount-ro", "/", "--chdir", "/"]
    return View(options, _rules(launch, layout, directories))


def _namespaces() -> list[str]:
    """Return the isolation options; a second user namespace, because the network namespace must stay the outer one's."""
    return [
        *("--unshare-user", "--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--disable-userns"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv"),
    ]


def system_roots(system_paths: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return (path, link target or None for a directory) of the read-only system."""
    found: list[tuple[str, str | None]] = [(path, None) for path in system_paths]
    for path in _ROOT_LINKS:
        if Path(path).is_symlink():
            found.append((path, str(Path(path).readlink())))
        elif Path(path).is_dir():
            found.append((path, None))
    return found


def _system(roots: Sequence[tuple[str, str | None]], etc: Path) -> list[str]:
    options: list[str] = []
    for path, link in roots:
        options += ["--ro-bind", path, path] if link is None else ["--symlink", link, path]
    for path in _HOST_ETC:
        if os.path.exists(path):  # noqa: PTH110 - a list of fixed strings
            options += ["--ro-bind", path, path]
    for name in ETC_FILES:
        options += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    return options


def _temporary(size: int) -> list[str]:
    small = str(_SMALL_TEMPORARY_BYTES)
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", small, "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108 - inside
        *("--size", str(size), "--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108 - inside
        *("--size", small, "--perms", "1777", "--tmpfs", "/var/tmp"),  # noqa: S108 - inside
        *("--size", str(_RUN_BYTES), "--tmpfs", "/run"),
    ]


def _rules(launch: Launch, layout: Layout, roots: Sequence[str]) -> list[tuple[str, int]]:
    """Landlock rules. A non-empty `read_write_paths` narrows writing from all writable places to those paths."""
    read_only = [*roots, "/etc", "/run", "/proc", "/opt/oce", *layout.directories, *layout.files]
    read_only += [mount.target for mount in launch.mounts if mount.read_only]
    writable = [mount.target for mount in launch.mounts if not mount.read_only] + [*_TEMPORARY]
    _check_policy(launch, read_only, writable)
    if launch.read_write_paths:
        read_only += writable
        writable = list(launch.read_write_paths)
    read_only += launch.read_only_paths
    # /proc is in no case writable: /proc/<pid>/mem would let one tool patch another program.
    return [
        *((path, landlock.READ) for path in dict.fromkeys(read_only)),
        ("/dev", landlock.DEVICES),
        *((path, landlock.WRITE) for path in dict.fromkeys(writable)),
    ]


def _check_policy(launch: Launch, read_only: Sequence[str], writable: Sequence[str]) -> None:
    for path in (*launch.read_only_paths, *launch.read_write_paths):
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("/"):
            raise LaunchFailedError(f"filesystem policy: {path!r} is not a possible path")
    for path in launch.read_write_paths:
        if not _may_write(PurePosixPath(path), read_only, writable):
            raise LaunchFailedError(f"filesystem policy: {path} lies on a read-only mount")
    granted = launch.read_write_paths or writable
    for path in launch.read_only_paths:
        above = [w for w in granted if PurePosixPath(path).is_relative_to(w)]
        if above:
            raise LaunchFailedError(
                f"filesystem policy: {path} cannot be read-only beneath the writable {above[0]}"
            )


def _may_write(path: PurePosixPath, read_only: Sequence[str], writable: Sequence[str]) -> bool:
    """Return whether the innermost mount is writable; of /dev the device nodes may be named, which are writable anyway."""

    def depth(mounts: Sequence[str]) -> int:
        return max(
            (len(PurePosixPath(m).parts) for m in mounts if path.is_relative_to(m)), default=0
        )

    return depth([*writable, "/dev"]) > depth(read_only)
