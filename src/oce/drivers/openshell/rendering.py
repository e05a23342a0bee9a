"""From a frozen revision and Compute's requirements to the exact requests of a Sandbox. Pure, versioned, golden-tested.

A revision stores the `render_version` it was admitted under and is always rendered under it, so that upgrading this program never
strands a running Sandbox. A changed rule is a new entry of `_RULES` beside the old one. Refusals come before anything is sent, in the order of
reference/sandbox-openshell.md §8.4.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from oce.contracts.refusals import DriverRefusal, RevisionUnsupported, WorkspaceSetupRefused
from oce.contracts.sandbox import EnvironmentLiteral, EnvironmentSecret, SandboxResourceRef
from oce.domain import names
from oce.domain.failures import Tempo
from oce.drivers.openshell import home_program, marks, node_setup, profiles
from oce.drivers.openshell.documents import certificates
from oce.drivers.openshell.mounts import Mounts, place_mounts
from oce.drivers.openshell.network_rules import parse_document, wire_rule
from oce.drivers.openshell.settings import (
    HARNESS_HOME,
    IMAGE_HOME,
    PYTHON,
    RUNTIME_ROOT,
    KubernetesPlace,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oce.contracts.sandbox import HarnessContext, HarnessWorkloadRequirements, RevisionContext
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.node_setup import NodeSetup
    from oce.policy.model import Rule

RENDER_VERSION: Final = 1
"""Version under which new revisions are admitted."""
_VERIFIER: Final = re.compile(r"[0-9a-f]{64}")
_ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_MAX: Final = 65_536
_FILES_MAX: Final = 262_144
_VALUE_MAX: Final = 8192
_MAX_PORT: Final = 65_535
_CODEX_FILES: Final = {
    "runtime.json": profiles.RUNTIME_MANIFEST_ENV,
    "config.toml": profiles.CODEX_CONFIG_ENV,
}
HOME_PROGRAM: Final = Path(home_program.__file__).read_text(encoding="utf-8")
"""Part of a Sandbox's command and thereby of version 1: another text is another render version."""
_INTERPRETER: Final = re.compile(r"/(?:[A-Za-z0-9._-]+/)*python3(?:\.[0-9]{1,2})?")
WORKSPACE_SETUP_ENV: Final = "OCE_WORKSPACE_SETUP"
"""Tells the Harness which setup's completion marker it waits for before it starts."""
_NODE_CA_ENV: Final = "OPENCLAW_NODE_CA_PEM"
_SECRET_NAMES: Final = frozenset(
    ("APP_SERVER_TOKEN", "CODEX_ACCESS_TOKEN", "OPENAI_API_KEY", node_setup.SETUP_ENV)
)
"""Names whose value is a secret however it is spelled: never a literal."""
_LOGIN_MODES: Final = {"codex": ("api_key", "codex_pat"), "openclaw": ("api_key",)}
_CREDENTIAL_REF: Final = re.compile(names.CREDENTIAL_PROVIDER_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Everything the Driver will send for one revision; equal inputs give an equal rendering."""

    workspace: str
    sandbox: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Document
    port: int
    exposed: bool
    profile: profiles.Profile
    provider: str
    provider_labels: Mapping[str, str]
    provider_config: Mapping[str, str]
    node_setup: EnvironmentSecret | None

    def enrolling(self, setup: NodeSetup | None) -> Rendering:
        """Return the rendering with the one rule by which its node reaches the Gateway; the envelope itself is never part of it."""
        if setup is None:
            return self
        policy = self.spec["policy"]
        own = node_setup.rule(setup)
        rules = {**policy["network_policies"], own.key: wire_rule(own)}
        return replace(self, spec={**self.spec, "policy": {**policy, "network_policies": rules}})

    def create_request(self, request_id: str) -> Document:
        """Return the CreateSandbox document under one request id; an enrolled native worker is not exposed again."""
        exposure = {
            "service": "",
            "target_port": self.port,
            "authorization_mode": "SERVICE_AUTHORIZATION_MODE_BEARER_PASSTHROUGH",
        }
        return {
            "name": self.sandbox,
            "request_id": request_id,
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "spec": self.spec,
            "service_exposures": [exposure] if self.exposed else [],
        }


def check_revision(driver_id: str, settings: Settings, context: RevisionContext) -> None:
    """Refuse what this Driver never runs, before any call. Raises RevisionUnsupported, DriverRefusal."""
    revision = context.revision
    place = settings.place
    if isinstance(place, KubernetesPlace) and place.managed:
        raise RevisionUnsupported("SANDBOX_MODE_UNSUPPORTED")
    if revision.harness.mode != "dedicated" or revision.harness.id not in _LOGIN_MODES:
        unsupported("only dedicated Codex and dedicated native OpenClaw")
    if revision.sandbox_driver_id != driver_id:
        raise DriverRefusal("SANDBOX_DRIVER_MISMATCH", Tempo.PERMANENT)
    if revision.namespace_id != context.namespace.id:
        raise DriverRefusal("INVALID_REVISION_OWNER", Tempo.PERMANENT)


def resource_ref(settings: Settings, context: RevisionContext) -> SandboxResourceRef:
    """Return the stable reference of a revision's Sandbox."""
    return SandboxResourceRef(
        namespace_name=context.namespace.name,
        resource_name=names.sandbox_name(context.revision.id, settings.name_prefix),
        agent_id=context.revision.agent_id,
        revision_id=context.revision.id,
    )


def render(driver_id: str, settings: Settings, context: HarnessContext) -> Rendering:
    """Render a revision under its own render version. Raises RevisionUnsupported, DriverRefusal."""
    check_revision(driver_id, settings, context)
    rules = _RULES.get(context.revision.render_version)
    if rules is None:
        unsupported("a render version this program does not know")
    return rules(settings, context)


def _first(settings: Settings, context: HarnessContext) -> Rendering:
    """Render under version 1. What it renders must never change: Sandboxes made under it are recognised by it."""
    revision, wanted = context.revision, context.requirements
    if wanted.workload_identity is not None:
        unsupported("a projected workload identity")
    if wanted.workspace_setup is not None and context.private is None:
        raise WorkspaceSetupRefused("nobody stages the private document here")
    if wanted.login_mode not in _LOGIN_MODES[revision.harness.id]:
        unsupported("this login mode")
    if not wanted.labels:
        unsupported("a Harness without labels")
    literals, setup = _literals(wanted)
    _verifier(literals)
    native = revision.harness.id == "openclaw"
    config = _no_files(wanted) if native else _files(wanted)
    mounts = place_mounts(settings, revision, wanted.workspace_mounts)
    provider = names.runtime_provider(revision.id)
    return Rendering(
        workspace=context.namespace.name,
        sandbox=names.sandbox_name(revision.id, settings.name_prefix),
        labels=dict(wanted.labels),
        annotations=marks.sandbox_annotations(revision),
        spec=_spec(settings, revision, wanted, literals, mounts, provider),
        port=_port(literals),
        exposed=not (native and context.workspace_node_enrolled),
        profile=profiles.openclaw_runtime() if native else profiles.codex_runtime(),
        provider=provider,
        provider_labels=marks.provider_labels(revision),
        provider_config={
            **config,
            "node_setup_json": profiles.NO_NODE_SETUP,
            "node_ca_pem": _node_ca(literals),
        },
        node_setup=setup,
    )


_RULES: Final[dict[int, Callable[[Settings, HarnessContext], Rendering]]] = {1: _first}
"""Render version to its rules."""


def unsupported(what: str) -> NoReturn:
    """Refuse with SANDBOX_HARNESS_UNSUPPORTED; `what` is one of our own words."""
    raise RevisionUnsupported("SANDBOX_HARNESS_UNSUPPORTED", f"not supported: {what}")


def _literals(
    wanted: HarnessWorkloadRequirements,
) -> tuple[dict[str, str], EnvironmentSecret | None]:
    """Return the literal environment, and the one Secret-backed entry that a provider file can carry."""
    literals: dict[str, str] = {}
    setup: EnvironmentSecret | None = None
    for entry in wanted.environment:
        if isinstance(entry, EnvironmentSecret):
            if entry.name != node_setup.SETUP_ENV or setup is not None:
                raise RevisionUnsupported("SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED")
            setup = entry
        elif entry.name in _SECRET_NAMES:
            raise RevisionUnsupported("SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED")
        else:
            _literal(entry, literals)
    return literals, setup


def _literal(entry: EnvironmentLiteral, literals: dict[str, str]) -> None:
    reserved = entry.name.upper().startswith("OPENSHELL_")
    if reserved or not _ENVIRONMENT_NAME.fullmatch(entry.name):
        unsupported("an environment name the gateway reserves or refuses")
    if entry.name in literals:
        unsupported("an environment name given twice")
    limit = _FILE_MAX if entry.name == _NODE_CA_ENV else _VALUE_MAX
    if "\0" in entry.value or len(entry.value.encode()) > limit:
        unsupported("an environment value the gateway refuses")
    literals[entry.name] = entry.value


def _verifier(literals: Mapping[str, str]) -> None:
    if not _VERIFIER.fullmatch(literals.get("APP_TOKEN_SHA", "")):
        raise RevisionUnsupported("SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED", "no transport verifier")


def _port(literals: Mapping[str, str]) -> int:
    text = literals.get("APP_SERVER_PORT", "")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_PORT:
        unsupported("a Harness without a literal APP_SERVER_PORT")
    return int(text)


def _node_ca(literals: Mapping[str, str]) -> str:
    """Return the Gateway's CA for the node: certificates only, whatever else the text holds."""
    given = literals.get(_NODE_CA_ENV)
    if given is None:
        return profiles.NO_NODE_CA
    found = certificates(given)
    if not found:
        unsupported("a node CA without a certificate")
    return found


def _no_files(wanted: HarnessWorkloadRequirements) -> dict[str, str]:
    if wanted.files:
        unsupported("runtime files for native OpenClaw")
    return {}


def _files(wanted: HarnessWorkloadRequirements) -> dict[str, str]:
    found = {file.name: file for file in wanted.files}
    if found.keys() != _CODEX_FILES.keys() or len(wanted.files) != len(_CODEX_FILES):
        unsupported("other runtime files than runtime.json and config.toml")
    total = 0
    for name, variable in _CODEX_FILES.items():
        file = found[name]
        size = len(file.content.encode())
        total += size
        if file.environment_variable != variable or not 0 < size <= _FILE_MAX:
            unsupported("a runtime file of that size or variable")
    if total > _FILES_MAX:
        unsupported("runtime files of that size")
    _manifest(found["runtime.json"].content)
    return {
        "runtime_json": found["runtime.json"].content,
        "config_toml": found["config.toml"].content,
    }


def _manifest(content: str) -> None:
    try:
        manifest = json.loads(content)
    except ValueError:
        unsupported("a runtime.json that is not JSON")
    if not isinstance(manifest, dict) or manifest.get("kind") != "codex":
        unsupported("a runtime.json of another kind")
    policy = manifest.get("networkPolicy")
    if isinstance(policy, dict) and "repositoryBroker" in policy:
        unsupported("a repository broker")


def _spec(
    settings: Settings,
    revision: AgentRevision,
    wanted: HarnessWorkloadRequirements,
    literals: Mapping[str, str],
    mounts: Mounts,
    provider: str,
) -> Document:
    template: Document = {"image": wanted.image, "labels": dict(wanted.labels)}
    place = settings.place
    if isinstance(place, KubernetesPlace):
        template["runtime_class_name"] = place.runtime_class
        if place.user_namespaces is not None:
            template["user_namespaces"] = place.user_namespaces
    template["driver_config"] = mounts.driver_config
    return {
        "log_level": settings.log_level,
        "environment": _environment(settings, wanted, literals, mounts),
        "template": template,
        "policy": _policy(settings, revision, mounts),
        "providers": _providers(settings, wanted, provider),
        "command": _command(wanted, mounts, _private_directories(revision, wanted, mounts)),
        "restart_policy": "SANDBOX_RESTART_POLICY_ALWAYS",
    }


def _environment(
    settings: Settings,
    wanted: HarnessWorkloadRequirements,
    literals: Mapping[str, str],
    mounts: Mounts,
) -> dict[str, str]:
    moved = {
        name: _moved(value, mounts) for name, value in literals.items() if name != _NODE_CA_ENV
    }
    return {
        **moved,
        "HOME": HARNESS_HOME,
        "TMPDIR": "/tmp",  # noqa: S108 - the private /tmp of the Sandbox
        "OPENCLAW_WORKSPACE_DIR": settings.data_mount_path,
        **(
            {}
            if wanted.workspace_setup is None
            else {WORKSPACE_SETUP_ENV: wanted.workspace_setup.id}
        ),
    }


def _moved(value: str, mounts: Mounts) -> str:
    """Rewrite a path of the image's home; a mount's own path means a state directory below where that mount now lives."""
    if value in mounts.moved:
        return f"{mounts.moved[value]}/state"
    if value == IMAGE_HOME or value.startswith(f"{IMAGE_HOME}/"):
        return HARNESS_HOME + value[len(IMAGE_HOME) :]
    return value


def _private_directories(
    revision: AgentRevision, wanted: HarnessWorkloadRequirements, mounts: Mounts
) -> list[str]:
    """Return the owner-only directory that Compute keeps native hook credentials in, if it asks for one.

    It lies below HOME and outside everything that a workspace, a file transfer or a relocated mount can reach.
    """
    path = wanted.native_hook_directory
    if path is None:
        return []
    if revision.harness.id != "codex":
        unsupported("a native hook directory for another Harness than Codex")
    parts = path.split("/")[1:]
    if not path.startswith(f"{HARNESS_HOME}/") or {"", ".", ".."} & set(parts) or "\0" in path:
        unsupported("a native hook directory outside the Harness's home")
    reachable = {*mounts.read_only, *mounts.read_write, *(path for _, path in mounts.links)}
    reachable.discard(RUNTIME_ROOT)  # the revision's own, not a workspace
    own = f"{path}/"
    if any(own.startswith(f"{other}/") or f"{other}/".startswith(own) for other in reachable):
        unsupported("a native hook directory that meets a workspace mount")
    return [path]


def interpreter(command: Sequence[str]) -> str:
    """Return the Sandbox's Python for the Driver's own small programs: the Harness's when it runs on one, else the image's."""
    return command[0] if command and _INTERPRETER.fullmatch(command[0]) else PYTHON


def _command(
    wanted: HarnessWorkloadRequirements, mounts: Mounts, directories: Sequence[str]
) -> list[str]:
    """Return the command, behind the program that prepares the Harness's home when there is something to prepare."""
    if not mounts.links and not directories:
        return list(wanted.command)
    links = [text for link in mounts.links for text in link]
    prepare = [str(len(mounts.links)), *links, str(len(directories)), *directories]
    python = interpreter(wanted.command)
    return [python, "-I", "-S", "-c", HOME_PROGRAM, *prepare, *wanted.command]


def _policy(settings: Settings, revision: AgentRevision, mounts: Mounts) -> Document:
    files = settings.filesystem
    if set(files.read_write) & set(mounts.read_only):
        unsupported("a read-write grant on a read-only mount")
    read_only = dict.fromkeys((*files.read_only, *mounts.read_only))
    kubernetes = isinstance(settings.place, KubernetesPlace)
    runtime = (RUNTIME_ROOT,) if kubernetes else ()  # a mount there; inside the workdir here
    read_write = dict.fromkeys((*files.read_write, *mounts.read_write, *runtime, "/tmp"))  # noqa: S108 - inside
    return {
        "version": 1,
        "filesystem": {
            "include_workdir": files.include_workdir,
            "read_only": [path for path in read_only if path not in read_write],
            "read_write": list(read_write),
        },
        "landlock": {"compatibility": "hard_requirement"},
        "process": {"run_as_user": settings.run_as_user, "run_as_group": settings.run_as_group},
        "network_policies": {
            rule.key: wire_rule(rule) for rule in network_rules(settings, revision)
        },
    }


def network_rules(settings: Settings, revision: AgentRevision) -> tuple[Rule, ...]:
    """Return the rules of a revision: its admitted snapshot when it has one, else the startup defaults."""
    snapshot = revision.network_policy
    if snapshot is None:
        return settings.network_rules
    if snapshot["driver_id"] != revision.sandbox_driver_id:
        raise DriverRefusal("SANDBOX_DRIVER_MISMATCH", Tempo.PERMANENT)
    defaults = parse_document(snapshot["defaults"], "/networkPolicy/defaults")
    additions = parse_document(snapshot["additions"], "/networkPolicy/additions")
    return (*defaults, *additions)


def _providers(settings: Settings, wanted: HarnessWorkloadRequirements, provider: str) -> list[str]:
    listed = list(settings.providers)
    for attachment in wanted.credential_attachments:
        if not _CREDENTIAL_REF.fullmatch(attachment.ref) or attachment.ref in listed:
            unsupported("a credential attachment that this Backend did not issue")
        if attachment.ref != names.credential_provider(attachment.source_id):
            unsupported("a credential attachment that this Backend did not issue")
        listed.append(attachment.ref)
    if provider in listed:
        unsupported("a static provider with the runtime provider's name")
    return [*listed, provider]
