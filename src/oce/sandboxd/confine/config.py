"""What the operator may choose about confinement on this machine. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.sandboxd.confine.uids import FIRST_UID

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfineConfig:
    """Settings of a `MachinePlace`.

    `runtime_dir` holds one directory per Sandbox (sockets, generated files) and may be lost at a reboot. `state_dir` must survive:
    it holds the installed programs (`runtime/`) and, as root, the uid allocations. As root other uids must be able to reach both
    (every parent needs `o+x`). `bwrap`, `python` and `nft` name programs instead of searching; `use_nft` False leaves other ports
    refused instead of logged. `system_paths` are host directories shown read-only at the same place.
    """

    runtime_dir: Path
    state_dir: Path
    bwrap: Path | None = None
    python: Path | None = None
    nft: Path | None = None
    use_nft: bool = True
    first_uid: int = FIRST_UID
    system_paths: tuple[str, ...] = ("/usr",)
    start_seconds: float = 20.0
