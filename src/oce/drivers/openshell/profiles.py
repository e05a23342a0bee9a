"""Provider profiles: what a provider contributes to a Sandbox. Pure documents of the wire's ProviderProfile.

A *runtime profile* carries no credential, endpoint or program; its files are templates over the config of a revision's runtime
provider (mission document 000). An *openai profile* binds the key to its endpoint and to the configured programs. A profile is
shared, so its digest stands in an annotation: the Driver updates it only when the digest differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oce.domain import names
from oce.drivers.openshell import marks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.drivers.openshell.documents import Document

CODEX_RUNTIME: Final = "oce-codex-runtime"
OPENCLAW_RUNTIME: Final = "oce-openclaw-runtime"
RUNTIME_PROFILES: Final = (CODEX_RUNTIME, OPENCLAW_RUNTIME)
SOURCE: Final = "openclaw-enterprise"
"""What ImportProviderProfiles names as the origin."""
OPENAI_ENV: Final = "OPENAI_API_KEY"
OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
OPENAI_PREFIX: Final = "oce-openai"
_HTTPS: Final = 443

RUNTIME_MANIFEST_ENV: Final = "OPENCLAW_PLUGIN_RUNTIME_MANIFEST"
CODEX_CONFIG_ENV: Final = "OPENCLAW_PLUGIN_CODEX_CONFIG_TOML"
_NODE_FILES: Final = (
    ("node-setup.json", "node_setup_json", "OPENCLAW_NODE_SETUP_ENVELOPE"),
    ("node-ca.pem", "node_ca_pem", "OPENCLAW_NODE_CA_PATH"),
)
NO_NODE_SETUP: Final = "{}"
NO_NODE_CA: Final = "# no certificate authority\n"
"""A PEM file without a certificate: an empty config value would delete the key."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile document with its mark: `annotation` is the key that holds `mark`."""

    document: Document
    annotation: str
    mark: str

    @property
    def id(self) -> str:
        """The profile id, which is also its providers' type."""
        return str(self.document["id"])


def is_managed(annotations: Mapping[str, str]) -> bool:
    """Tell whether a profile carries one of our marks."""
    managed = annotations.get(marks.PROFILE_MANAGER, "").startswith(f"{marks.MANAGER}:")
    return managed or marks.PROFILE_DIGEST in annotations


def codex_runtime() -> Profile:
    """Return the profile of Codex runtime providers: the two runtime files and the node's."""
    codex = (
        ("runtime.json", "runtime_json", RUNTIME_MANIFEST_ENV),
        ("config.toml", "config_toml", CODEX_CONFIG_ENV),
    )
    return _runtime(CODEX_RUNTIME, "Codex", (*codex, *_NODE_FILES))


def openclaw_runtime() -> Profile:
    """Return the profile of native OpenClaw runtime providers: the node's files only (mission document 000)."""
    return _runtime(OPENCLAW_RUNTIME, "OpenClaw", _NODE_FILES)


def _runtime(profile_id: str, shown: str, files: Sequence[tuple[str, str, str]]) -> Profile:
    """Return a runtime profile.

    The mark is a single annotation: the pinned gateway hashes maps in unordered form, so that two would make the same profile look
    changed (reference/sandbox-openshell.md §5).
    """
    document: Document = {
        "id": profile_id,
        "display_name": f"{shown} runtime files (OpenClaw Enterprise)",
        "category": "PROVIDER_PROFILE_CATEGORY_OTHER",
        "files": [
            {"path": path, "content": f"{{{{config.{key}}}}}", "env_var": variable}
            for path, key, variable in files
        ],
    }
    mark = f"{marks.MANAGER}:{marks.json_digest(document)}"
    return _marked(document, marks.PROFILE_MANAGER, mark)


def openai(base_url: str, auth_header: str, binaries: Sequence[str]) -> Profile:
    """Return the profile of an `openai` source; `binaries` are the programs that may use the key (never empty)."""
    url = urlsplit(base_url)
    scope = f"{url.path.rstrip('/')}/**"
    credential: Document = {
        "name": "api_key",
        "env_vars": [OPENAI_ENV],
        "required": True,
        "auth_style": "bearer" if auth_header == "authorization" else "header",
    }
    if auth_header != "authorization":
        credential["header_name"] = auth_header
    document: Document = {
        "id": names.openai_profile(base_url, auth_header, OPENAI_BASE_URL),
        "display_name": "OpenAI API (OpenClaw Enterprise)",
        "category": "PROVIDER_PROFILE_CATEGORY_INFERENCE",
        "inference_capable": True,
        "credentials": [credential],
        "endpoints": [
            {
                "host": url.hostname or "",
                "ports": [url.port or _HTTPS],
                "protocol": "rest",
                "enforcement": "NETWORK_ENFORCEMENT_MODE_ENFORCE",
                "access": "NETWORK_ACCESS_PRESET_READ_WRITE",
                "path": scope,
            }
        ],
        "binaries": [{"path": path} for path in binaries],
    }
    return _marked(document, marks.PROFILE_DIGEST, marks.json_digest(document))


def _marked(document: Document, annotation: str, mark: str) -> Profile:
    return Profile({**document, "annotations": {annotation: mark}}, annotation, mark)
