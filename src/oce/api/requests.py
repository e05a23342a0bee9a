"""Request bodies: closed, strict, camelCase (reference/control-plane.md §5).

These models check shape and limits, the part that needs no database and no Driver. What a value may mean (is that Secret yours, may this
binding name be used) is decided in `core`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from oce.domain.names import NAME_MAX, name_problem
from oce.domain.resources import (
    AGENT_SOURCES_MAX,
    ROLE_PERMISSIONS_MAX,
    SECRET_BINDINGS_MAX,
    SECRET_MAX_BYTES,
    SOURCE_CONFIG_MAX,
    SOURCE_SECRETS_MAX,
    WORKSPACE_FILE_MAX,
)

KEY_DAYS_MIN_SECONDS: Final = 86_400
KEY_MAX_SECONDS: Final = 31_536_000
_KEY_NAME_MAX: Final = 32
POLICY_ADDITIONS_MAX: Final = 64
_OPAQUE_MAX: Final = 200

_NAME_PATTERN: Final = (
    "^[^\\s\u0000-\u001f\u007f-\u009f](?:[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*"
    "[^\\s\u0000-\u001f\u007f-\u009f])?$"
)


def _name(text: str) -> str:
    problem = name_problem(text)
    if problem is not None:
        raise PydanticCustomError(problem, "name")
    return text


def _secret_size(text: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > SECRET_MAX_BYTES:
        raise PydanticCustomError("TOO_LONG", "value")
    return text


def _unique_permissions(items: list[PermissionBody]) -> list[PermissionBody]:
    if len({(item.action, item.resource_kind) for item in items}) != len(items):
        raise PydanticCustomError("INVALID_VALUE", "repeated")
    return items


def _unique_sources(items: list[SourceReference]) -> list[SourceReference]:
    if len({item.source_id for item in items}) != len(items):
        raise PydanticCustomError("INVALID_VALUE", "repeated")
    return items


Name = Annotated[
    str,
    Field(min_length=1, max_length=NAME_MAX, json_schema_extra={"pattern": _NAME_PATTERN}),
    AfterValidator(_name),
]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
"""An id, or a name in the same Namespace (ours)."""
OpaqueId = Annotated[str, StringConstraints(min_length=1, max_length=_OPAQUE_MAX)]
KubernetesName = Annotated[
    str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
EnvironmentName = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
]
ConfigKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
ConfigValue = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
SecretValue = Annotated[
    str, StringConstraints(min_length=1, max_length=SECRET_MAX_BYTES), AfterValidator(_secret_size)
]
WorkspaceText = Annotated[str, StringConstraints(max_length=WORKSPACE_FILE_MAX)]
KeyName = Annotated[str, StringConstraints(min_length=1, max_length=_KEY_NAME_MAX, pattern=r"\S")]


class Closed(BaseModel):
    """Every request object: unknown members are refused and nothing is converted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        frozen=True,
        hide_input_in_errors=True,
    )


class Empty(Closed):
    """A body that says nothing."""


class NamespaceCreate(Closed):
    """POST /namespaces."""

    name: Name
    existing_namespace: KubernetesName | None = None


class SecretCreate(Closed):
    """POST …/secrets. The value is never returned, logged or audited."""

    name: Name
    value: Annotated[SecretValue, Field(repr=False)]


class SecretUpdate(Closed):
    """PATCH …/secrets/{sec}."""

    value: Annotated[SecretValue, Field(repr=False)]


class SecretReference(Closed):
    """How one resource names a Secret."""

    kind: Literal["secret"]
    namespace_id: Reference
    id: Reference


class SourceCreate(Closed):
    """POST …/credential-sources."""

    name: Name
    type: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    config: Annotated[dict[ConfigKey, ConfigValue], Field(max_length=SOURCE_CONFIG_MAX)] = Field(
        default_factory=dict
    )
    secrets: Annotated[dict[ConfigKey, SecretReference], Field(max_length=SOURCE_SECRETS_MAX)] = (
        Field(default_factory=dict)
    )


class SourceUpdate(Closed):
    """PATCH …/credential-sources/{cs}: `{}` reads the same Secrets again."""

    secrets: (
        Annotated[dict[ConfigKey, SecretReference], Field(max_length=SOURCE_SECRETS_MAX)] | None
    ) = None


class Delivery(Closed):
    """How a bound Secret reaches its program; an environment variable is the only way."""

    type: Literal["env"]


class SecretBinding(Closed):
    """One entry of `secretBindings`."""

    source: SecretReference
    delivery: Delivery | None = None


Bindings = Annotated[dict[EnvironmentName, SecretBinding], Field(max_length=SECRET_BINDINGS_MAX)]


class ConfigurationCreate(Closed):
    """POST …/configurations."""

    name: Name | None = None
    kind: Literal["agent"]
    values: dict[str, Any]
    secret_bindings: Bindings | None = None


class ConfigurationUpdate(Closed):
    """PATCH …/configurations/{cfg}: the whole document; bindings left out are kept, `{}` clears them."""

    values: dict[str, Any]
    secret_bindings: Bindings | None = None


class SecretAuth(Closed):
    """Methods that name a Secret."""

    method: Literal["api_key", "codex_pat", "oauth"]
    source: SecretReference


class CredentialSourceAuth(Closed):
    """The method whose key the Sandbox never holds."""

    method: Literal["credential_source"]
    source_id: Reference


class RuntimeAuth(Closed):
    """The Harness brings its own login."""

    method: Literal["runtime"]


HarnessAuthBody = Annotated[
    SecretAuth | CredentialSourceAuth | RuntimeAuth, Field(discriminator="method")
]


class SourceReference(Closed):
    """One entry of `credentialSources`."""

    source_id: Reference


Sources = Annotated[
    list[SourceReference],
    Field(max_length=AGENT_SOURCES_MAX, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_unique_sources),
]


class InitialWorkspaceFiles(Closed):
    """First files of a workspace, by name; private, and never returned."""

    agents: WorkspaceText | None = Field(default=None, alias="AGENTS.md", repr=False)
    soul: WorkspaceText | None = Field(default=None, alias="SOUL.md", repr=False)
    identity: WorkspaceText | None = Field(default=None, alias="IDENTITY.md", repr=False)
    user: WorkspaceText | None = Field(default=None, alias="USER.md", repr=False)

    def named(self) -> dict[str, str]:
        """Return the files that were given, by name."""
        given: dict[str, str | None] = self.model_dump(by_alias=True)
        return {name: text for name, text in given.items() if text is not None}


class AgentCreate(Closed):
    """POST …/agents. Starts nothing."""

    name: Name
    configuration_id: Reference
    execution_mode: Literal["embedded", "dedicated"] | None = None
    harness_auth: HarnessAuthBody | None = None
    credential_sources: Sources = Field(default_factory=list)
    initial_workspace_files: InitialWorkspaceFiles | None = None


class AgentUpdate(Closed):
    """PATCH …/agents/{agt}: named members are replaced, `harnessAuth: null` clears it; running revisions are untouched."""

    configuration_id: Reference
    execution_mode: Literal["embedded", "dedicated"] | None = None
    harness_auth: HarnessAuthBody | None = None
    credential_sources: Sources | None = None


class NetworkPolicySet(Closed):
    """PUT …/network-policy: the whole list; the Sandbox Driver judges the rules."""

    additions: Annotated[list[dict[str, Any]], Field(max_length=POLICY_ADDITIONS_MAX)]


class PermissionBody(Closed):
    """One pair of a Role; which pairs exist is decided in core."""

    action: OpaqueId
    resource_kind: OpaqueId


class RoleCreate(Closed):
    """POST …/iam/roles."""

    name: Name | None = None
    permissions: Annotated[
        list[PermissionBody],
        Field(
            min_length=1, max_length=ROLE_PERMISSIONS_MAX, json_schema_extra={"uniqueItems": True}
        ),
        AfterValidator(_unique_permissions),
    ]


class BindingCreate(Closed):
    """POST …/iam/access-bindings. Without a resource the binding covers the whole scope (ours)."""

    subject_kind: Literal["identity"]
    subject_id: OpaqueId
    role_id: OpaqueId
    resource_kind: OpaqueId | None = None
    resource_id: OpaqueId | None = None


class KeyCreate(Closed):
    """POST /api/auth/service-keys. `expiresIn` in seconds, 30 days when left out."""

    service_principal_id: OpaqueId
    namespace_id: Reference | None = None
    name: KeyName
    expires_in: Annotated[int, Field(ge=KEY_DAYS_MIN_SECONDS, le=KEY_MAX_SECONDS)] | None = None


class AgentAccessCheck(Closed):
    """POST /internal/agent-access on the private listener. `namespace` and `agent` are ids or names."""

    api_key: Annotated[str, Field(min_length=1, max_length=512, repr=False)]
    namespace: Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
    agent: Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
