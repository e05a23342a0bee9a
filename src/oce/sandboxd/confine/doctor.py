"""What this machine allows: each right, whether it is held, how it was tried and how to get it.

The recipe itself is tried, with a real Sandbox and not with look-alike probes, because most of what goes wrong (AppArmor, masked /proc,
container profiles) shows only in the combination. Used by `occ doctor`; `MachinePlace.check` does the same trial.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oce.sandboxd.confine import landlock, netns, rights
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.confine.control_groups import CONTROLLERS, ControlGroups
from oce.sandboxd.confine.machine import MachinePlace
from oce.sandboxd.place import MissingRightError, PlaceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.confine.control_groups import Hierarchy

_APPARMOR_LIMIT = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_TRIAL = "started a Sandbox that runs `true`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One right. `required`: without it no Sandbox starts; else it is a weaker limit or a missing comfort.

    `how_tried` says what was done and what came of it; `remedy` is empty when the right is held.
    """

    name: str
    held: bool
    how_tried: str
    remedy: str
    required: bool


async def probe(config: ConfineConfig | None = None) -> tuple[Right, ...]:
    """Try everything once and leave nothing behind. Without a configuration a temporary directory is used."""
    if config is not None:
        return await _probe(config)
    with tempfile.TemporaryDirectory(prefix="oce-doctor-") as folder:
        await asyncio.to_thread(Path(folder).chmod, 0o755)
        return await _probe(
            ConfineConfig(runtime_dir=Path(folder) / "run", state_dir=Path(folder) / "state")
        )


async def _probe(config: ConfineConfig) -> tuple[Right, ...]:
    place = MachinePlace(config)
    failed: PlaceError | None = None
    no_redirect = "not tried, because no Sandbox started"
    try:
        no_redirect = await place.try_recipe()
    except PlaceError as error:
        failed = error
    finally:
        await place.close()
    groups = ControlGroups.of_this_machine().held
    return (
        *required_rights(failed),
        *(_total_limit(name, groups, failed) for name in CONTROLLERS),
        _redirect(no_redirect),
        _ipv6(),
    )


def required_rights(failed: PlaceError | None) -> tuple[Right, ...]:
    """Return the rights of the recipe after a trial that ended with `failed` (None: it worked)."""
    missing = failed.right if isinstance(failed, MissingRightError) else None
    found: list[Right] = []
    names = (
        rights.IN_ORDER
        if missing is None or missing in rights.IN_ORDER
        else (missing, *rights.IN_ORDER)
    )
    reached = True
    for name in names:
        if name == missing:
            reached = False
            found.append(_right(name, held=False, how=str(failed), remedy=_remedy(failed)))
        elif reached and (failed is None or missing is not None):
            found.append(_right(name, held=True, how=_how_held(name)))
        else:
            reason = f"not reached: {missing or failed}"
            found.append(
                _right(
                    name, held=False, how=reason, remedy="Mend what failed first, then try again."
                )
            )
    return tuple(found)


def _right(name: str, *, held: bool, how: str, remedy: str = "", required: bool = True) -> Right:
    return Right(name=name, held=held, how_tried=how, remedy=remedy, required=required)


def _how_held(name: str) -> str:
    if name == rights.LANDLOCK:
        return f"{_TRIAL}; the kernel has ABI {landlock.kernel_abi()}"
    if name == rights.SECCOMP:
        return f"{_TRIAL}; filter for {platform.machine()} installed and tested from inside"
    return _TRIAL


def _remedy(failed: PlaceError | None) -> str:
    remedy = failed.remedy if isinstance(failed, MissingRightError) else ""
    if (
        isinstance(failed, MissingRightError)
        and failed.right == rights.USER_NAMESPACES
        and _APPARMOR_LIMIT.exists()
        and _APPARMOR_LIMIT.read_text().strip() == "1"
    ):
        remedy += " On this machine kernel.apparmor_restrict_unprivileged_userns is 1: the profile is what is missing."
    return remedy


def _total_limit(name: str, groups: Mapping[str, Hierarchy], failed: PlaceError | None) -> Right:
    hierarchy = groups.get(name)
    label = f"cgroup {name}"
    if hierarchy is not None and failed is None:
        how = f"{_TRIAL} in an own group of {hierarchy.path} (v{hierarchy.version})"
        return _right(label, held=True, how=how, required=False)
    where = "no writable hierarchy" if hierarchy is None else "the trial failed"
    return _right(
        label,
        held=False,
        how=f"looked for the controller: {where}",
        remedy=(
            "Run sandboxd as root; with cgroup v2 the root's cgroup.subtree_control must list the controller. "
            "Without it only limits per process hold."
        ),
        required=False,
    )


def _redirect(no_redirect: str) -> Right:
    return _right(
        "nftables redirect",
        held=not no_redirect,
        how=f"{_TRIAL} with the redirect"
        if not no_redirect
        else f"tried in a Sandbox: {no_redirect}",
        remedy=""
        if not no_redirect
        else "apt install nftables. Without it connections to other ports are refused, but not logged.",
        required=False,
    )


def _ipv6() -> Right:
    held = len(netns.families()) > 1
    return _right(
        "IPv6",
        held=held,
        how="looked for /proc/sys/net/ipv6",
        remedy="" if held else "Boot without ipv6.disable=1. Without it a Sandbox has IPv4 only.",
        required=False,
    )
