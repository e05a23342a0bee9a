"""The Driver's block of the startup YAML: a closed union of `kubernetes` and `local` (mission document 002).

`kubernetes` carries the keys of the mission: operator workspace, RuntimeClass, one data mount. `local` is for a single-machine
gateway: no Kubernetes key exists there, network defaults may be empty, and mounts name a source that the gateway's own operator
registered. Every error names a path and never repeats a value. Nothing here talks to anybody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast

from oce.contracts.refusals import ConfigurationRefused, Detail
from oce.domain.names import CREDENTIAL_PROVIDER_PATTERN
from oce.drivers.openshell.documents import Block, absolute_path, refuse, text
from oce.drivers.openshell.network_rules import check, parse_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.drivers.openshell.documents import Document
    from oce.policy.model import Rule

DATA_ROOT: Final = "/sandbox/"
RUNTIME_ROOT: Final = "/sandbox/.openclaw-runtime"
HARNESS_HOME: Final = f"{RUNTIME_ROOT}/home"
PYTHON: Final = "/usr/bin/python3"
"""The Sandbox's interpreter for the Driver's own small programs."""
IMAGE_HOME: Final = "/home/node"
"""HOME of the Harness in its image, which paths and mounts of other Computes are written for."""
DEFAULT_DATA_MOUNT: Final = "/sandbox/enterprise"
_CONNECTION_KEYS: Final = (
    "endpoint",
    "scheme",
    "serviceName",
    "port",
    "auth",
    "requestTimeoutMs",
    "rootCertificatePath",
    "insecureTransport",
    "operatorTls",
)
_WORKSPACE_KINDS: Final = {
    "ServiceAccount": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
_CLUSTER_KINDS: Final = frozenset(
    ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Node")
)
_PREFIX: Final = re.compile(r"[a-z][a-z0-9]?")
_USER: Final = re.compile(r"[1-9][0-9]{0,9}")
_SOURCE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MAX_ID: Final = 4_294_967_294
_LOG_LEVELS: Final = ("trace", "debug", "info", "warn", "error")
_GIB: Final = 1024**3
DEFAULT_READ_ONLY: Final = (
    "/bin",
    "/usr",
    "/lib",
    "/proc",
    "/dev/urandom",
    "/etc",
    "/var/log",
    "/app",
)
LOCAL_READ_ONLY: Final = ("/bin", "/usr", "/lib", "/lib64", "/proc", "/dev/urandom", "/etc", "/opt")
DEFAULT_READ_WRITE: Final = ("/tmp", "/dev/null")  # noqa: S108 - the private /tmp of a Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMount:
    """The one approved workspace mount on Kubernetes; `claim` None accepts any claim."""

    claim: str | None
    sub_path: str
    mount_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlace:
    """Where a Sandbox runs on Kubernetes."""

    namespace_labels: Mapping[str, str]
    workspace_resources: tuple[Document, ...]
    network_resources: tuple[Document, ...]
    managed: bool
    runtime_class: str
    data_mount: DataMount
    agent_resources: Document | None
    user_namespaces: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlace:
    """Where a Sandbox runs on one machine. `limits` are bounds of one Sandbox in the gateway's own spelling."""

    mount_source: str
    data_mount: str
    limits: Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """Image paths that the workload may read or write."""

    include_workdir: bool
    read_only: tuple[str, ...]
    read_write: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parsed block."""

    place: KubernetesPlace | LocalPlace
    filesystem: Filesystem
    run_as_user: str
    run_as_group: str
    network_rules: tuple[Rule, ...]
    name_prefix: str = "sb"
    startup_delay_ms: int = 0
    log_level: str = "info"
    providers: tuple[str, ...] = field(default=())

    @property
    def data_mount_path(self) -> str:
        """Where the Agent's workspace lies inside the Sandbox."""
        place = self.place
        return place.data_mount if isinstance(place, LocalPlace) else place.data_mount.mount_path


def parse_settings(configuration: object, *, path: str = "") -> Settings:
    """Check the block `drivers.sandbox.configuration`. Raises ConfigurationRefused."""
    block = Block(configuration, path)
    if block.has("kubernetes") == block.has("local"):
        raise ConfigurationRefused(Detail(path, "REQUIRED", "kubernetes or local, not both"))
    local = block.has("local")
    place: KubernetesPlace | LocalPlace
    if local:
        for key in ("gateway", *_CONNECTION_KEYS):
            if block.has(key):
                refuse(block.at(key), "INVALID_VALUE", "not with local")
        place = _local(block.block("local"))
    else:
        place = _kubernetes(block)
    policy = block.optional_block("policy") if local else block.block("policy")
    filesystem, user, group, rules = _policy(policy, local=local)
    prefix = block.text("sandboxNamePrefix", "sb")
    if not _PREFIX.fullmatch(prefix):
        refuse(block.at("sandboxNamePrefix"), "INVALID_FORMAT", "one or two lower-case characters")
    delay = block.number("startupDelayMs", 1, 120_000, 0) or 0
    level = block.choice("logLevel", {name: name for name in _LOG_LEVELS}, "info")
    providers = tuple(_static_provider(value, where) for value, where in block.items("providers"))
    block.finish()
    return Settings(
        place=place,
        filesystem=filesystem,
        run_as_user=user,
        run_as_group=group,
        network_rules=rules,
        name_prefix=prefix,
        startup_delay_ms=delay,
        log_level=level,
        providers=providers,
    )


def _local(block: Block) -> LocalPlace:
    source = block.text("mountSource", "agents")
    if not _SOURCE.fullmatch(source):
        refuse(block.at("mountSource"), "INVALID_FORMAT", "lower-case letters, digits and '-'")
    data_mount = _sandbox_path(block.text("dataMount", DEFAULT_DATA_MOUNT), block.at("dataMount"))
    limits: dict[str, int | float] = {}
    bounds = block.optional_block("limits")
    if bounds is not None:
        for key, name, high in (
            ("memoryBytes", "memory_bytes", 1024 * _GIB),
            ("processes", "processes", 1_000_000),
        ):
            value = bounds.number(key, 1, high)
            if value is not None:
                limits[name] = value
        percent = bounds.number("cpuPercent", 1, 102_400)
        if percent is not None:
            limits["cpu"] = percent / 100
        bounds.finish()
    block.finish()
    return LocalPlace(mount_source=source, data_mount=data_mount, limits=limits)


def _kubernetes(block: Block) -> KubernetesPlace:
    gateway = block.block("gateway")
    for key in _CONNECTION_KEYS:
        if gateway.has(key):
            refuse(gateway.at(key), "INVALID_VALUE", "belongs to the openshell Backend")
    mode = gateway.choice("workspaceMode", {"operator": "operator", "managed": "managed"})
    labels = _labels(gateway)
    workspace = tuple(_workspace_resource(*i) for i in gateway.items("operatorWorkspaceResources"))
    network = tuple(_resource(*i) for i in gateway.items("networkPolicyResources"))
    if gateway.has("readiness"):
        refuse(
            gateway.at("readiness"), "INVALID_VALUE", "not offered; the gateway's health is read"
        )
    gateway.finish()
    kubernetes = block.block("kubernetes")
    runtime_class = kubernetes.text("runtimeClassName")
    account = kubernetes.block("serviceAccount")
    account.choice("mode", {"gatewayConfigured": "gatewayConfigured"})
    account.finish()
    mount = _data_mount(kubernetes.block("sandboxDataMount"))
    resources = kubernetes.take("agentResources") if kubernetes.has("agentResources") else None
    if resources is not None:
        _resources(resources, kubernetes.at("agentResources"))
    user_namespaces = (
        kubernetes.flag("userNamespaces") if kubernetes.has("userNamespaces") else None
    )
    kubernetes.finish()
    return KubernetesPlace(
        namespace_labels=labels,
        workspace_resources=workspace,
        network_resources=network,
        managed=mode == "managed",
        runtime_class=runtime_class,
        data_mount=mount,
        agent_resources=cast("Document | None", resources),
        user_namespaces=user_namespaces,
    )


def _labels(gateway: Block) -> dict[str, str]:
    where = gateway.at("operatorNamespaceLabels")
    raw = gateway.take("operatorNamespaceLabels")
    if not isinstance(raw, dict) or not raw:
        refuse(where, "REQUIRED", "a nonempty map of labels")
    return {
        text(key, where): text(value, f"{where}/{text(key, where)}") for key, value in raw.items()
    }


def _resource(value: object, path: str) -> Document:
    block = Block(value, path)
    kind = block.text("kind")
    block.text("apiVersion")
    metadata = block.block("metadata")
    metadata.text("name")
    if kind == "Secret":
        refuse(path, "INVALID_VALUE", "a Secret never stands in the startup YAML")
    if kind in _CLUSTER_KINDS or kind.startswith("Cluster"):
        refuse(path, "INVALID_VALUE", "a cluster-scoped object")
    return dict(cast("Document", value))


def _workspace_resource(value: object, path: str) -> Document:
    found = _resource(value, path)
    if _WORKSPACE_KINDS.get(found["kind"]) != found["apiVersion"]:
        refuse(path, "INVALID_VALUE", "ServiceAccount, Role, RoleBinding or NetworkPolicy")
    return found


def _resources(value: object, path: str) -> None:
    block = Block(value, path)
    for name in ("requests", "limits"):
        block.optional_block(name)
    block.finish()


def _data_mount(block: Block) -> DataMount:
    claim = block.optional_text("claimName")
    sub_path = block.text("subPath")
    parts = sub_path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        refuse(block.at("subPath"), "INVALID_FORMAT", "a directory below the claim's root")
    mount_path = _sandbox_path(block.text("mountPath"), block.at("mountPath"))
    read_only = block.flag("readOnly")
    block.finish()
    return DataMount(claim=claim, sub_path=sub_path, mount_path=mount_path, read_only=read_only)


def _sandbox_path(value: str, path: str) -> str:
    absolute_path(value, path)
    if not value.startswith(DATA_ROOT):
        refuse(path, "INVALID_VALUE", f"below {DATA_ROOT}")
    if value == RUNTIME_ROOT or value.startswith(f"{RUNTIME_ROOT}/"):
        refuse(path, "INVALID_VALUE", "the Harness's own runtime directory")
    return value


def _policy(block: Block | None, *, local: bool) -> tuple[Filesystem, str, str, tuple[Rule, ...]]:
    read_only = LOCAL_READ_ONLY if local else DEFAULT_READ_ONLY
    filesystem = Filesystem(
        include_workdir=True, read_only=read_only, read_write=DEFAULT_READ_WRITE
    )
    if block is None:
        return filesystem, "sandbox", "sandbox", ()
    files = block.optional_block("filesystem")
    if files is not None:
        filesystem = _filesystem(files)
        if local and not filesystem.include_workdir:
            refuse(f"{block.at('filesystem')}/includeWorkdir", "INVALID_VALUE", "true with local")
    block.choice("landlockCompatibility", {"hard_requirement": ""}, "")
    process = block.optional_block("process") if local else block.block("process")
    user = group = "sandbox"
    if process is not None:
        user, group = _identity(process, "runAsUser"), _identity(process, "runAsGroup")
        process.finish()
    rules = parse_rules(block.items("networkPolicies"))
    if not rules and not local:
        refuse(block.at("networkPolicies"), "REQUIRED", "at least one rule")
    check(rules, block.at("networkPolicies"))
    block.finish()
    return filesystem, user, group, rules


def _filesystem(block: Block) -> Filesystem:
    include = block.flag("includeWorkdir", default=True)
    read_only = tuple(absolute_path(text(v, p), p) for v, p in block.items("readOnly"))
    read_write = tuple(absolute_path(text(v, p), p) for v, p in block.items("readWrite"))
    block.finish()
    return Filesystem(include_workdir=include, read_only=read_only, read_write=read_write)


def _identity(block: Block, key: Literal["runAsUser", "runAsGroup"]) -> str:
    value = block.text(key)
    if value != "sandbox" and not (_USER.fullmatch(value) and int(value) <= _MAX_ID):
        refuse(block.at(key), "INVALID_VALUE", "'sandbox' or a decimal id that is not 0")
    return value


def _static_provider(value: object, path: str) -> str:
    name = text(value, path)
    if re.match(CREDENTIAL_PROVIDER_PATTERN, name):
        refuse(path, "INVALID_VALUE", "the shape of a credential source's provider")
    return name
