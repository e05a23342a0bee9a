"""Where the approved workspace mounts go, and how each place spells them. Pure.

Every mount lies below `/sandbox/`. Compute that derives Harness paths from `harness_home` needs nothing moved; a mount below the image's
own home goes to a place of its own and is linked into the Harness's HOME; one anywhere else is refused. On Kubernetes the data mount must match exactly one approved claim sub-path, never its root, and may not turn
read-only into read-write (mission document 002); one more mount of the same claim carries the revision's runtime directory. On one
machine a mount names a source that the gateway's operator registered, never a host path.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, NoReturn

from oce.contracts.refusals import RevisionUnsupported
from oce.drivers.openshell.settings import (
    DATA_ROOT,
    HARNESS_HOME,
    IMAGE_HOME,
    RUNTIME_ROOT,
    DataMount,
    KubernetesPlace,
    LocalPlace,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.contracts.sandbox import WorkspaceMount
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.documents import Document


RELOCATED_ROOT: Final = f"{DATA_ROOT}.openclaw-mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """The place's own configuration, the mounted paths by mode, and what moved.

    `links` are (target, path) pairs to make before the Harness starts; `moved` maps an approved mount path to where its mount lives.
    """

    driver_config: Document
    read_only: tuple[str, ...]
    read_write: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    moved: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Placed:
    claim: str
    sub_path: str
    path: str
    read_only: bool
    approved: str


def place_mounts(
    settings: Settings, revision: AgentRevision, approved: Sequence[WorkspaceMount]
) -> Mounts:
    """Place every approved mount. Raises RevisionUnsupported(SANDBOX_HARNESS_UNSUPPORTED)."""
    place = settings.place
    if isinstance(place, LocalPlace):
        placed = [_placed(mount) for mount in approved]
        _check_local(place, placed)
        config = _local(place, placed)
    else:
        placed = _kubernetes_mounts(place, revision, approved)
        config = _kubernetes(place, placed)
    _check(placed)
    return Mounts(
        driver_config=config,
        read_only=tuple(mount.path for mount in placed if mount.read_only),
        read_write=tuple(mount.path for mount in placed if not mount.read_only),
        links=tuple(
            (mount.path, HARNESS_HOME + mount.approved.removeprefix(IMAGE_HOME))
            for mount in placed
            if mount.path != mount.approved and mount.approved.startswith(f"{IMAGE_HOME}/")
        ),
        moved={
            mount.approved: mount.path
            for mount in placed
            if mount.approved and mount.path != mount.approved
        },
    )


def _placed(mount: WorkspaceMount) -> _Placed:
    path = mount.mount_path
    parts = path.split("/")
    if path.startswith(f"{IMAGE_HOME}/") and not {"", ".", ".."} & set(parts[1:]):
        own = json.dumps([mount.claim, mount.sub_path, path], separators=(",", ":"))
        path = f"{RELOCATED_ROOT}/{hashlib.sha256(own.encode()).hexdigest()[:16]}"
    return _Placed(mount.claim, mount.sub_path, path, mount.read_only, mount.mount_path)


def _check(placed: Sequence[_Placed]) -> None:
    for mount in placed:
        parts = mount.path.split("/")
        if not mount.path.startswith(DATA_ROOT) or any(p in {"", ".", ".."} for p in parts[1:]):
            _refuse("a mount outside /sandbox/")
        if any(part in {"", ".", ".."} for part in mount.sub_path.split("/")):
            _refuse("a mount of a claim's root or with '..'")
    paths = sorted(mount.path for mount in placed)
    for first, second in combinations(paths, 2):
        if first == second or second.startswith(f"{first}/"):
            _refuse("mounts that overlap")


def _check_local(place: LocalPlace, placed: Sequence[_Placed]) -> None:
    if any(mount.claim != place.mount_source for mount in placed):
        _refuse("a mount of another source")
    if sum(mount.path == place.data_mount for mount in placed) != 1:
        _refuse("a Harness without exactly one data mount")


def _local(place: LocalPlace, placed: Sequence[_Placed]) -> Document:
    config: Document = {
        "mounts": [
            {
                "source_id": mount.claim,
                "sub_path": mount.sub_path,
                "mount_path": mount.path,
                "read_only": mount.read_only,
            }
            for mount in placed
        ]
    }
    if place.limits:
        config["limits"] = dict(place.limits)
    return {"local": config}


def _kubernetes_mounts(
    place: KubernetesPlace, revision: AgentRevision, approved: Sequence[WorkspaceMount]
) -> list[_Placed]:
    data = [mount for mount in approved if _matches(place.data_mount, mount)]
    if len(data) != 1:
        _refuse("a data mount that matches not exactly one approved mount")
    if data[0].read_only and not place.data_mount.read_only:
        _refuse("a read-write data mount over a read-only approval")
    placed = [
        _Placed(
            data[0].claim,
            data[0].sub_path,
            place.data_mount.mount_path,
            place.data_mount.read_only,
            data[0].mount_path,
        )
    ]
    placed.extend(_placed(mount) for mount in approved if mount is not data[0])
    if any(mount.path.startswith(f"{RUNTIME_ROOT}/") for mount in placed):
        _refuse("a mount below the runtime directory")
    sub_path = f"openshell-runtime-{hashlib.sha256(revision.id.encode()).hexdigest()[:16]}"
    return [*placed, _Placed(data[0].claim, sub_path, RUNTIME_ROOT, read_only=False, approved="")]


def _matches(data: DataMount, mount: WorkspaceMount) -> bool:
    return mount.sub_path == data.sub_path and data.claim in {None, mount.claim}


def _kubernetes(place: KubernetesPlace, placed: Sequence[_Placed]) -> Document:
    claims = {mount.claim: _volume(mount.claim) for mount in placed}
    resources: Document = {
        name: dict((place.agent_resources or {}).get(name, {})) for name in ("requests", "limits")
    }
    resources["requests"]["ephemeral-storage"] = "256Mi"
    resources["limits"]["ephemeral-storage"] = "1Gi"
    return {
        "kubernetes": {
            "pod": {"runtime_class_name": place.runtime_class},
            "containers": {
                "agent": {
                    "resources": resources,
                    "volume_mounts": [
                        {
                            "name": claims[mount.claim],
                            "mount_path": mount.path,
                            "sub_path": mount.sub_path,
                            "read_only": mount.read_only,
                        }
                        for mount in placed
                    ],
                }
            },
            "volumes": [
                {
                    "name": name,
                    "persistent_volume_claim": {
                        "claim_name": claim,
                        "read_only": all(m.read_only for m in placed if m.claim == claim),
                    },
                }
                for claim, name in claims.items()
            ],
        }
    }


def _volume(claim: str) -> str:
    return f"workspace-{hashlib.sha256(claim.encode()).hexdigest()[:12]}"


def _refuse(what: str) -> NoReturn:
    raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED", f"not supported: {what}")
