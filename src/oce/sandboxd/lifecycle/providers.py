"""What the attached providers of a Sandbox add to it: placeholders, files, network rules and credential bindings.

Pure over records. A credential's value is never here: a provider record names its keys, the value sits in the egress
process's vault under `vault_id`. A workload holds `openshell:resolve:env:NAME` instead (reference/openshell-gateway.md b.4, b.5,
c.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oce.sandboxd.api.stubs import Proto, data_pb, pb, policy_pb
from oce.sandboxd.egress.model import BoundEndpoint, CredentialBinding
from oce.sandboxd.lifecycle.templates import fill
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oce.sandboxd.state.store import Reader, Record

FILES_ROOT = "/run/openshell/providers"
RULE_PREFIX = "_provider_"
ANY_BINARY = "/**"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """A provider with its profile; `credentials` are key names."""

    id: str
    name: str
    version: int
    profile_version: int
    credentials: tuple[str, ...]
    config: Mapping[str, str]
    profile: Proto


@dataclass(frozen=True, slots=True)
class Placeholder:
    """An environment variable that holds a placeholder, and the credential it stands for."""

    env_var: str
    credential_key: str

    @property
    def text(self) -> str:
        """The exact text inside the Sandbox."""
        return f"openshell:resolve:env:{self.env_var}"


@dataclass(frozen=True, slots=True)
class ProviderFile:
    """A file below `FILES_ROOT`; `path` is relative (`<provider>/<path>`)."""

    path: str
    content: bytes
    env_var: str


def vault_id(provider_id: str, key: str) -> str:
    """Return the vault's name of one credential.

    One entry per key: an update merges key by key, and the gateway can never read a value back to merge it itself.
    """
    return f"{provider_id}.{key}"


def provider_message(record: Record) -> Proto:
    """Return the stored provider; credential values are empty."""
    return data_pb.Provider.FromString(record.payload)


def profile_record(reader: Reader, workspace: str, profile_id: str) -> Record | None:
    """Return the workspace's own profile, else the platform's (workspace "")."""
    own = reader.named(Kind.PROFILE, workspace, profile_id)
    return own if own is not None else reader.named(Kind.PROFILE, "", profile_id)


def view_of(reader: Reader, record: Record) -> ProviderView | None:
    """Return the view of a provider record, or None when its profile is gone."""
    message = provider_message(record)
    profile = profile_record(reader, record.workspace, message.type)
    if profile is None:
        return None
    return ProviderView(
        id=record.id,
        name=record.name,
        version=record.version,
        profile_version=profile.version,
        credentials=tuple(sorted(message.credentials)),
        config=dict(message.config),
        profile=pb.ProviderProfile.FromString(profile.payload),
    )


def views_of(reader: Reader, workspace: str, names: Sequence[str]) -> list[ProviderView]:
    """Return the views of attached providers, in order; a vanished one is left out (it then grants nothing)."""
    views = []
    for name in names:
        record = reader.named(Kind.PROVIDER, workspace, name)
        view = None if record is None else view_of(reader, record)
        if view is not None:
            views.append(view)
    return views


def placeholders(view: ProviderView) -> Iterator[Placeholder]:
    """Yield the placeholders of a provider.

    A profile credential is given by its environment name, or by its own name for all its environment names. One without
    `env_vars` never appears inside.
    """
    for credential in view.profile.credentials:
        for env_var in credential.env_vars:
            if env_var in view.credentials:
                yield Placeholder(env_var, env_var)
            elif credential.name in view.credentials:
                yield Placeholder(env_var, credential.name)


def files(view: ProviderView) -> Iterator[ProviderFile]:
    """Yield the filled files of a provider. Raises MissingConfigError."""
    for item in view.profile.files:
        yield ProviderFile(
            f"{view.name}/{item.path}", fill(item.content, view.config).encode(), item.env_var
        )


def environment(view: ProviderView) -> dict[str, str]:
    """Return everything a provider puts into a launch's environment."""
    result = {item.env_var: item.text for item in placeholders(view)}
    for item in view.profile.files:
        if item.env_var:
            result[item.env_var] = f"{FILES_ROOT}/{view.name}/{item.path}"
    return result


def effective_policy(base: Proto, views: Sequence[ProviderView]) -> Proto:
    """Return base policy plus one layer per provider under a reserved rule key."""
    result = policy_pb.SandboxPolicy()
    result.CopyFrom(base)
    for view in views:
        if not view.profile.endpoints:
            continue
        rule = result.network_policies[RULE_PREFIX + view.name]
        rule.name = RULE_PREFIX + view.name
        rule.endpoints.extend(view.profile.endpoints)
        if view.profile.binaries:
            rule.binaries.extend(view.profile.binaries)
        else:
            rule.binaries.add(path=ANY_BINARY)
    return result


def ports_of(endpoint: Proto) -> tuple[int, ...]:
    """Return an endpoint's ports, single and listed, once each."""
    return tuple(dict.fromkeys([*([endpoint.port] if endpoint.port else []), *endpoint.ports]))


def bindings(base: Proto, views: Sequence[ProviderView]) -> tuple[CredentialBinding, ...]:
    """Return where each placeholder may be replaced.

    A profile's endpoints, or for a profile without endpoints those of the Sandbox's own policy that name the provider.
    """
    result: list[CredentialBinding] = []
    for view in views:
        endpoints = list(view.profile.endpoints) or [
            endpoint
            for rule in base.network_policies.values()
            for endpoint in rule.endpoints
            if endpoint.credential_binding.provider == view.name
        ]
        bound = tuple(
            BoundEndpoint(host=endpoint.host.lower(), port=port, path=endpoint.path)
            for endpoint in endpoints
            for port in ports_of(endpoint)
        )
        binaries = tuple(binary.path for binary in view.profile.binaries)
        result.extend(
            CredentialBinding(
                provider_id=vault_id(view.id, item.credential_key),
                provider_name=view.name,
                credential_key=item.credential_key,
                placeholder=item.text,
                endpoints=bound,
                binaries=binaries,
            )
            for item in placeholders(view)
            if bound
        )
    return tuple(result)
