"""What a dedicated Codex Harness needs, derived from the frozen revision alone.

Pure: the same revision, token and settings give the same bytes, so that a repeated pass re-sends an identical Sandbox and adopts it
(design §9, invariant 3). HOME, PATH and the relocation of paths belong to the SandboxDriver. The raw transport token never appears
here: the Harness gets its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import RevisionUnsupported
from oce.contracts.sandbox import (
    EnvironmentLiteral,
    HarnessFile,
    HarnessWorkloadRequirements,
    WorkspaceMount,
)
from oce.domain.ids import uuid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oce.contracts.sandbox import CredentialAttachment, WorkspaceSetup
    from oce.domain.resources import AgentRevision, CredentialSource, Json
    from oce.domain.secret import SecretText
    from oce.drivers.local.settings import LocalComputeSettings

DEFAULT_OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
RENDER_VERSION: Final = 1
"""Version of these rules under which new revisions are admitted; another rule is another version beside this one."""
NETWORK_PROFILE: Final = "provider-fenced-v1"
_PROVIDER_PREFIX: Final = "openai/"
_QUIET_TARGETS: Final = "codex_otel=off,codex_app_server_transport::transport::remote_control=off"
"""Telemetry that is off anyway, and a loop that reports once a second that it waits for a ChatGPT sign-in: it would fill the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodexModel:
    """The model a Codex Harness talks to; `base_url` None means the built-in endpoint."""

    model: str
    base_url: str | None


def workspace_sub_path(agent_id: str) -> str:
    """Return where below the agents directory an Agent's workspace lies."""
    return f"{agent_id}/workspace"


def sessions_sub_path(agent_id: str) -> str:
    """Return where below the agents directory an Agent's Codex threads lie; they outlive revisions."""
    return f"{agent_id}/codex-sessions"


def token_digest(token: SecretText) -> str:
    """Return what the Harness may know of the transport token: 64 hex characters."""
    return hashlib.sha256(token.reveal().encode()).hexdigest()


def codex_model(configuration: Json, sources: Iterable[CredentialSource]) -> CodexModel:
    """Read the model from `agents.defaults.model` and the endpoint from `models.providers.openai.baseUrl`.

    Without a `baseUrl` in the document the harness credential source's `base_url` counts, because the key is bound to it. Raises
    RevisionUnsupported when no model is named.
    """
    chosen = _at(configuration, "agents", "defaults", "model")
    if isinstance(chosen, dict):
        chosen = chosen.get("primary")
    if not isinstance(chosen, str) or not chosen.removeprefix(_PROVIDER_PREFIX):
        raise RevisionUnsupported(
            "SANDBOX_HARNESS_UNSUPPORTED",
            "the Configuration names no model (agents.defaults.model)",
        )
    base_url = _at(configuration, "models", "providers", "openai", "baseUrl")
    if not isinstance(base_url, str):
        found = (source.config.get("base_url") for source in sources if source.type == "openai")
        base_url = next((url for url in found if url), None)
    if base_url == DEFAULT_OPENAI_BASE_URL:
        base_url = None
    return CodexModel(model=chosen.removeprefix(_PROVIDER_PREFIX), base_url=base_url)


def runtime_manifest(model: CodexModel) -> str:
    """Return `runtime.json`."""
    manifest: dict[str, Json] = {"kind": "codex", "selections": []}
    if model.base_url is not None:
        manifest["openaiBaseUrl"] = model.base_url
    return json.dumps(manifest, separators=(",", ":"), sort_keys=True)


def codex_config(model: CodexModel) -> str:
    """Return `config.toml`.

    Discovery of models, plugins and apps is off because each opens connections at start that the policy denies, which costs seconds
    (reference/real-components.md §1b). Codex's own tool sandbox is off: the Sandbox is the boundary.
    """
    lines = [f"model = {_toml(model.model)}"]
    if model.base_url is not None:
        lines.append(f"openai_base_url = {_toml(model.base_url)}")
    lines += [
        'approval_policy = "never"',
        'sandbox_mode = "danger-full-access"',
        'cli_auth_credentials_store = "file"',
        "",
        "[features]",
        "plugins = false",
        "apps = false",
        "api_key_model_discovery = false",
        "",
        "[analytics]",
        "enabled = false",
        "",
    ]
    return "\n".join(lines)


def revision_labels(revision: AgentRevision) -> dict[str, str]:
    """Return the ownership labels of everything made for a revision (reference/kubernetes-compute.md §5.2)."""
    return {
        "app.kubernetes.io/managed-by": "openclaw-enterprise",
        "openclaw.dev/namespace": revision.namespace_id,
        "openclaw.dev/agent": revision.agent_id,
        "openclaw.dev/revision": revision.id,
        "openclaw.dev/network-profile": NETWORK_PROFILE,
    }


def requirements(
    revision: AgentRevision,
    *,
    settings: LocalComputeSettings,
    harness_home: str,
    token: SecretText,
    sources: Iterable[CredentialSource],
    attachments: tuple[CredentialAttachment, ...],
    setup: WorkspaceSetup | None = None,
) -> HarnessWorkloadRequirements:
    """Render what the SandboxDriver must provide, under the version that the revision froze.

    Raises RevisionUnsupported when the document names no model, and for the version of a later program.
    """
    if revision.compute_render_version != RENDER_VERSION:
        raise RevisionUnsupported("COMPUTE_DRIVER_MISMATCH")
    model = codex_model(revision.configuration, sources)
    environment: Mapping[str, str] = {
        "APP_SERVER_PORT": str(settings.app_server_port),
        "APP_TOKEN_SHA": token_digest(token),
        "CODEX_BINARY": settings.codex_binary,
        "CODEX_HOME": f"{harness_home}/.codex",
        "CODEX_LOGIN_MODE": "api_key",
        "LOG_FORMAT": "json",
        "OCE_CODEX_SESSIONS_DIR": settings.sessions_path,
        "OPENCLAW_HARNESS_MODEL": model.model,
        "OPENCLAW_WORKSPACE_DIR": settings.workspace_path,
        "RUST_LOG": f"{settings.log_level},{_QUIET_TARGETS}",
    }
    return HarnessWorkloadRequirements(
        image=settings.harness_image,
        command=settings.harness_command,
        login_mode="api_key",
        environment=tuple(
            EnvironmentLiteral(name=name, value=value) for name, value in environment.items()
        ),
        files=(
            HarnessFile(
                name="runtime.json",
                content=runtime_manifest(model),
                environment_variable="OPENCLAW_PLUGIN_RUNTIME_MANIFEST",
            ),
            HarnessFile(
                name="config.toml",
                content=codex_config(model),
                environment_variable="OPENCLAW_PLUGIN_CODEX_CONFIG_TOML",
            ),
        ),
        workspace_mounts=(
            _mount(settings, workspace_sub_path(revision.agent_id), settings.workspace_path),
            _mount(settings, sessions_sub_path(revision.agent_id), settings.sessions_path),
        ),
        credential_attachments=attachments,
        labels=revision_labels(revision),
        workspace_setup=setup,
    )


def transport_secret_id(agent_id: str) -> str:
    """Return the id under which the Secret driver keeps an Agent's transport token."""
    return f"transport-{uuid_of(agent_id)}"


def _mount(settings: LocalComputeSettings, sub_path: str, mount_path: str) -> WorkspaceMount:
    return WorkspaceMount(
        claim=settings.agents_claim, sub_path=sub_path, mount_path=mount_path, read_only=False
    )


def _at(document: Json, *path: str) -> Json:
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _toml(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are valid there, once DEL is escaped and nothing else is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
