"""From a Sandbox's spec to a launch on this machine: environment, mounts, limits. Pure but for resolving mount folders.

The environment starts empty: nothing of the gateway's own reaches a Sandbox (reference/openshell-gateway.md c.2, d.8). The driver's
own request key is `driver_config.local`; any other key is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from oce.sandboxd.lifecycle.policies import default_policy
from oce.sandboxd.lifecycle.providers import FILES_ROOT, environment
from oce.sandboxd.lifecycle.quantities import resource_limits
from oce.sandboxd.place import GeneratedFile, Launch, Limits, Mount
from oce.sandboxd.state.refusals import invalid, precondition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.sandboxd.api.stubs import Proto
    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.lifecycle.providers import ProviderView

WORKDIR = "/sandbox"
CA_BUNDLE = "/etc/openshell-tls/ca-bundle.pem"
CA_ALONE = "/etc/openshell-tls/openshell-ca.pem"
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CODEX_CA_CERTIFICATE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_PROCESSES = 65536
_ALWAYS_INSIDE = frozenset(
    {"/etc", "/proc", "/run", "/tmp", "/var/tmp", "/dev", "/dev/null", "/dev/urandom"}  # noqa: S108 - inside
)


@dataclass(frozen=True, slots=True)
class MountRequest:
    """A folder of a configured source, shown at `mount_path`."""

    source_id: str
    sub_path: str
    mount_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The content of `driver_config.local`."""

    mounts: tuple[MountRequest, ...] = ()
    limits: Limits = field(default_factory=Limits)


def local_settings(template: Proto) -> LocalSettings:
    """Parse `template.driver_config`. Raises Refusal INVALID_ARGUMENT, or FAILED_PRECONDITION for an image."""
    if template.image not in {"", "host"}:
        raise precondition(
            "template.image: this gateway runs sandboxes on the host's own system files; only '' and 'host' are possible"
        )
    for unsupported in ("runtime_class_name", "agent_socket"):
        if getattr(template, unsupported):
            raise invalid(f"spec.template.{unsupported}", "is not supported by this gateway")
    where = "spec.template.driver_config"
    config = MessageToDict(template.driver_config)
    for key in config:
        if key != "local":
            raise invalid(f"{where}.{key}", "is not a driver of this gateway; only 'local' is")
    local = _closed(config.get("local", {}), f"{where}.local", {"mounts", "limits"})
    mounts = local.get("mounts", [])
    if not isinstance(mounts, list):
        raise invalid(f"{where}.local.mounts", "must be a list")
    parsed = tuple(
        _mount(item, f"{where}.local.mounts[{index}]") for index, item in enumerate(mounts)
    )
    paths = [mount.mount_path for mount in parsed]
    if len(set(paths)) != len(paths):
        raise invalid(f"{where}.local.mounts", "two mounts have the same mount_path")
    limits = _limits(local.get("limits", {}), f"{where}.local.limits")
    return LocalSettings(parsed, resource_limits(MessageToDict(template.resources), limits))


def _closed(found: object, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise invalid(where, "must be an object")
    for key in found:
        if key not in known:
            raise invalid(f"{where}.{key}", "is not a known key")
    return found


def _clean(path: object, where: str) -> str:
    if not isinstance(path, str) or "\0" in path or ".." in path.split("/"):
        raise invalid(where, "must be a path without '..'")
    return path


def _mount(found: object, where: str) -> MountRequest:
    table = _closed(found, where, {"source_id", "sub_path", "mount_path", "read_only"})
    sub_path = _clean(table.get("sub_path", ""), f"{where}.sub_path")
    if sub_path.startswith("/"):
        raise invalid(f"{where}.sub_path", "must be relative")
    mount_path = str(PurePosixPath(_clean(table.get("mount_path"), f"{where}.mount_path")))
    if not mount_path.startswith(f"{WORKDIR}/"):
        raise invalid(f"{where}.mount_path", f"must be below {WORKDIR}/")
    read_only = table.get("read_only", False)
    source_id = table.get("source_id")
    if not isinstance(read_only, bool):
        raise invalid(f"{where}.read_only", "must be true or false")
    if not isinstance(source_id, str):
        raise invalid(f"{where}.source_id", "is required")
    return MountRequest(source_id, sub_path.strip("/"), mount_path, read_only)


def _limits(found: object, where: str) -> Limits:
    table = _closed(found, where, {"memory_bytes", "processes", "cpu"})
    memory, cpu = table.get("memory_bytes"), table.get("cpu")
    processes = table.get("processes", Limits().processes)
    for key, value in (("memory_bytes", memory), ("cpu", cpu), ("processes", processes)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0
        ):
            raise invalid(f"{where}.{key}", "must be a positive number")
    if processes > _MAX_PROCESSES:
        raise invalid(f"{where}.processes", f"must be at most {_MAX_PROCESSES}")
    return Limits(
        memory_bytes=None if memory is None else int(memory),
        processes=int(processes),
        cpu_fraction=None if cpu is None else float(cpu),
    )


def host_folder(config: GatewayConfig, mount: MountRequest) -> Path:
    """Return the host folder of a mount. Raises Refusal when it is not configured or leads out of its source.

    A writable folder that does not exist yet is made at the launch (as a volume's sub-path is); a read-only one must exist.
    """
    source = config.mount_sources.get(mount.source_id)
    if source is None:
        raise invalid("driver_config.local.mounts.source_id", "is not configured on this gateway")
    try:
        root = source.resolve(strict=True)
        resolved = (source / mount.sub_path).resolve(strict=mount.read_only)
    except (OSError, RuntimeError) as error:
        raise precondition(
            f"mount source '{mount.source_id}' has no folder '{mount.sub_path}'"
        ) from error
    if not resolved.is_relative_to(root):
        raise precondition(f"mount source '{mount.source_id}': '{mount.sub_path}' leads out of it")
    return resolved


def uid_key(sandbox_id: str, mounts: Sequence[MountRequest]) -> str:
    """Return what groups Sandboxes that write the same files: the first writable mount's first folder."""
    for mount in mounts:
        if not mount.read_only:
            return f"{mount.source_id}/{mount.sub_path.partition('/')[0]}"
    return sandbox_id


def base_environment(spec: Proto) -> dict[str, str]:
    """Return the environment without providers and certificates."""
    result = {
        "OPENSHELL_SANDBOX": "1",
        "HOME": WORKDIR,
        "USER": "sandbox",
        "SHELL": "/bin/bash",
        "PATH": _PATH,
        "LANG": "C.UTF-8",
    }
    for source in (spec.template.environment, spec.environment):
        result |= {key: value for key, value in source.items() if not key.startswith("OPENSHELL_")}
    return result


def full_environment(spec: Proto, views: Sequence[ProviderView]) -> dict[str, str]:
    """Return the complete environment of a process inside."""
    result = base_environment(spec)
    result |= dict.fromkeys(_BUNDLE_VARIABLES, CA_BUNDLE)
    for view in views:
        result |= environment(view)
    return result


def launch_of(
    *,
    sandbox_id: str,
    instance_id: str,
    spec: Proto,
    policy: Proto,
    views: Sequence[ProviderView],
    config: GatewayConfig,
    workspace: Path,
    provider_files: Path,
    shown: Mapping[str, str],
    roots: bytes,
    ca: bytes,
) -> Launch:
    """Render the launch. Raises Refusal.

    `shown` is the place's own part of the view, `roots` are the host's trusted certificates, `ca` the Sandbox's own.
    """
    settings = local_settings(spec.template)
    mounts = [
        *(
            Mount(source=item.source, target=item.target, read_only=True)
            for item in config.read_only
        ),
        Mount(source=provider_files, target=FILES_ROOT, read_only=True, private=True),
        Mount(source=workspace, target=WORKDIR, read_only=False),
        *(
            Mount(
                source=host_folder(config, item), target=item.mount_path, read_only=item.read_only
            )
            for item in sorted(settings.mounts, key=lambda item: item.mount_path)
        ),
    ]
    view = {**shown, **{mount.target: str(mount.source) for mount in mounts}}
    writable = [mount.target for mount in mounts if not mount.read_only]
    read_only, read_write = file_paths(policy, writable, view)
    return Launch(
        sandbox_id=sandbox_id,
        instance_id=instance_id,
        uid_key=uid_key(sandbox_id, settings.mounts),
        command=tuple(spec.command),
        environment=full_environment(spec, views),
        workdir=WORKDIR,
        mounts=tuple(mounts),
        files=(
            GeneratedFile(target=CA_BUNDLE, content=roots + ca),
            GeneratedFile(target=CA_ALONE, content=ca),
        ),
        read_only_paths=read_only,
        read_write_paths=read_write,
        limits=settings.limits,
    )


def file_paths(
    policy: Proto, writable_mounts: Sequence[str], view: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (read-only, read-write) paths of a policy; both empty for the default, which leaves them to the place.

    A policy of its own narrows writing to what it lists, and to the work directory's mounts when `include_workdir` is set.
    With `best_effort` a read-only path that does not exist inside is skipped (it would grant nothing); with
    `hard_requirement` the place refuses it by name (c.10).
    """
    filesystem = policy.filesystem
    if filesystem == default_policy().filesystem:
        return (), ()
    read_write = list(filesystem.read_write)
    if filesystem.include_workdir:
        read_write += writable_mounts
    elif not read_write:
        read_write = ["/dev/null"]
    read_only = list(filesystem.read_only)
    if policy.landlock.compatibility != "hard_requirement":
        read_only = [path for path in read_only if _exists_inside(path, view)]
    return tuple(read_only), tuple(dict.fromkeys(read_write))


def _exists_inside(path: str, view: Mapping[str, str]) -> bool:
    pure = PurePosixPath(path)
    if str(pure) in _ALWAYS_INSIDE:
        return True
    for inside in sorted(view, key=len, reverse=True):
        if pure.is_relative_to(inside):
            return (Path(view[inside]) / pure.relative_to(inside)).exists()
    return False


def host_paths(launch: Launch, shown: Mapping[str, str]) -> Mapping[str, str]:
    """Return in-Sandbox path prefixes and the host paths they show (for binary identity); `shown` is the place's own part."""
    return dict(shown) | {mount.target: str(mount.source) for mount in launch.mounts}
