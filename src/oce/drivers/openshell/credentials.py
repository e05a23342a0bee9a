"""OpenShellCredentialGateway: lets a Harness use a key without holding it (reference/sandbox-openshell.md §17).

A credential source is a provider with its profile in the Namespace's Workspace. The Sandbox gets a placeholder; the gateway replaces
it for the bound endpoint and the configured programs. A value travels once, from registration or update to the gateway, and is
never read back. Offered is the type `openai`; every other type is refused by name.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from oce.contracts.credential_gateway import AttachmentStatus, SourceStatus, SourceType
from oce.contracts.refusals import (
    ConfigurationRefused,
    CredentialSourceRefused,
    DriverRefusal,
    OwnershipConflict,
)
from oce.contracts.sandbox import CredentialAttachment
from oce.domain import names
from oce.domain.clock import SystemClock
from oce.domain.failures import Tempo
from oce.drivers.openshell import adoption, marks, profiles
from oce.drivers.openshell.absence import read_proved
from oce.drivers.openshell.cleanup import Remover
from oce.drivers.openshell.documents import Block, absolute_path, refuse, text
from oce.drivers.openshell.failures import Category, GatewayFailure, refusals
from oce.drivers.openshell.provisioning import ensure_profile
from oce.policy.model import PROVIDER_RULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.contracts.sandbox import NamespaceContext, RevisionContext
    from oce.domain.clock import Clock
    from oce.domain.resources import CredentialSource, Json
    from oce.domain.secret import SecretText
    from oce.drivers.openshell.records import ProviderRecord
    from oce.drivers.openshell.wire import Gateway

_OPENAI: Final = SourceType(
    id="openai",
    secret_fields=("api_key",),
    required_config=(),
    optional_config=("base_url", "auth_header"),
    harness_login_mode="api_key",
    harness_provider="openai",
    environment_names=(profiles.OPENAI_ENV,),
)
_AUTH_HEADERS: Final = ("authorization", "x-api-key")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]{1,128}){0,16}/?")
_STATES: Final = {
    "READY": AttachmentStatus.READY,
    "WITHHELD": AttachmentStatus.WITHHELD,
    "REVOKED": AttachmentStatus.REVOKED,
    "FAILED": AttachmentStatus.FAILED,
    3: AttachmentStatus.READY,
    4: AttachmentStatus.WITHHELD,
    5: AttachmentStatus.REVOKED,
    6: AttachmentStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Programs that may use a model credential: absolute paths inside the Sandbox, at least one."""

    binaries: tuple[str, ...]


def parse_gateway_settings(configuration: object, *, path: str = "") -> GatewaySettings:
    """Check the block `drivers.credential_gateway.configuration`. Raises ConfigurationRefused."""
    block = Block(configuration, path)
    binaries = tuple(absolute_path(text(v, p), p) for v, p in block.items("binaries"))
    if not binaries:
        refuse(block.at("binaries"), "REQUIRED", "at least one program")
    if block.has("toolBinaries"):
        refuse(block.at("toolBinaries"), "INVALID_VALUE", "no tool credential type is offered")
    block.finish()
    return GatewaySettings(binaries)


class OpenShellCredentialGateway:
    """The bundled CredentialGatewayDriver, paired with the Sandbox Driver `sandbox_driver_id` of the same Backend."""

    implementation = "openshell"

    def __init__(
        self,
        driver_id: str,
        settings: GatewaySettings,
        gateway: Gateway,
        sandbox_driver_id: str,
        *,
        clock: Clock | None = None,
        sandbox_name_prefix: str = "sb",
    ) -> None:
        self.id = driver_id
        self._settings = settings
        self._gateway = gateway
        self._sandbox_driver_id = sandbox_driver_id
        self._prefix = sandbox_name_prefix
        self._remover = Remover(gateway, clock or SystemClock())

    # -- Catalogue ---------------------------------------------------------------------------------------------------------

    def source_types(self) -> Sequence[SourceType]:
        """Return the catalogue; pure."""
        return (_OPENAI,)

    def validate_source(self, source_type: str, config: Mapping[str, str]) -> None:
        """Raise ConfigurationRefused for a type that is not offered or a config that cannot be."""
        if source_type != _OPENAI.id:
            refuse("/type", "INVALID_VALUE", "a type this gateway offers: openai")
        block = Block(dict(config), "/config")
        base_url = block.text("base_url", profiles.OPENAI_BASE_URL)
        if _base_url_problem(base_url):
            refuse(block.at("base_url"), "INVALID_FORMAT", "an https origin with a plain path")
        block.choice("auth_header", {name: name for name in _AUTH_HEADERS}, "authorization")
        block.finish()

    def network_rules(self, source: CredentialSource) -> Mapping[str, Json]:
        """Return the layer that the gateway composes from the source's profile; pure."""
        document = self._profile(source).document
        endpoints = [
            {
                "host": endpoint["host"],
                "ports": endpoint["ports"],
                "protocol": endpoint["protocol"],
                "enforcement": "enforce",
                "access": "read-write",
                "path": endpoint["path"],
            }
            for endpoint in document["endpoints"]
        ]
        key = f"{PROVIDER_RULE_PREFIX}{names.credential_provider(source.id)}"
        return {key: {"binaries": document["binaries"], "endpoints": endpoints}}

    # -- Sources -----------------------------------------------------------------------------------------------------------

    async def register_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Make or adopt profile and provider. Everything is checked before anything is sent."""
        credentials = self._credentials(source, secrets)
        profile = self._profile(source)
        workspace = context.namespace.name
        with refusals():
            await ensure_profile(self._gateway, workspace, profile)
            try:
                await self._gateway.create_provider(
                    workspace,
                    name=names.credential_provider(source.id),
                    profile=profile.id,
                    labels=marks.source_labels(source),
                    config={},
                    credentials=credentials,
                )
            except GatewayFailure as failure:
                if failure.category is not Category.EXISTS:
                    raise
                if await self._owned(workspace, source) is None:
                    raise
                await self._gateway.update_credentials(
                    workspace, names.credential_provider(source.id), credentials
                )
        return SourceStatus(state="ready")

    async def update_source(
        self, context: NamespaceContext, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> SourceStatus:
        """Replace profile, then values; a source the gateway provably lacks is `absent`."""
        credentials = self._credentials(source, secrets)
        workspace = context.namespace.name
        with refusals():
            if await self._owned(workspace, source) is None:
                return SourceStatus(state="absent")
            await ensure_profile(self._gateway, workspace, self._profile(source))
            await self._gateway.update_credentials(
                workspace, names.credential_provider(source.id), credentials
            )
        return SourceStatus(state="ready")

    async def source_status(
        self, context: NamespaceContext, source: CredentialSource
    ) -> SourceStatus:
        """Read the live view."""
        with refusals():
            try:
                found = await self._owned(context.namespace.name, source)
            except OwnershipConflict:
                return SourceStatus(state="failed", reason="not ours")
        return SourceStatus(state="absent" if found is None else "ready")

    async def remove_source(self, context: NamespaceContext, source: CredentialSource) -> None:
        """Remove the provider, then its profile when nobody uses it; also for a type that is no longer offered."""
        workspace = context.namespace.name
        with refusals():
            found = await self._owned(workspace, source)
            if found is not None:
                await self._remover.provider(workspace, found)
            await self._unused_profile(workspace, source, found)

    # -- Attachments -------------------------------------------------------------------------------------------------------

    async def attach_for_revision(
        self, context: RevisionContext, sources: Sequence[CredentialSource]
    ) -> tuple[CredentialAttachment, ...]:
        """Issue one attachment per source. Raises CredentialSourceRefused, OwnershipConflict."""
        revision = context.revision
        self._check(context)
        if revision.harness.mode != "dedicated":
            raise CredentialSourceRefused("SANDBOX_HARNESS_UNSUPPORTED", "only dedicated Harnesses")
        kinds = [source.type for source in sources]
        if len(set(kinds)) != len(kinds):  # each type exposes its own environment names
            raise CredentialSourceRefused("CREDENTIAL_SOURCE_ENVIRONMENT_CONFLICT")
        attachments = []
        for source in sources:
            profile = self._profile(source)
            with refusals():
                if await self._owned(context.namespace.name, source) is None:
                    raise CredentialSourceRefused("CREDENTIAL_SOURCE_UNAVAILABLE")
                await ensure_profile(self._gateway, context.namespace.name, profile)
            attachments.append(
                CredentialAttachment(source_id=source.id, ref=names.credential_provider(source.id))
            )
        return tuple(attachments)

    async def attachment_status(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> AttachmentStatus:
        """Read whether the attachment is in force; `absent` only on proof."""
        self._check(context)
        workspace = context.namespace.name
        sandbox = names.sandbox_name(context.revision.id, self._prefix)
        read = partial(self._gateway.provider_status, workspace, sandbox, attachment.ref)
        with refusals():
            found = await read_proved(self._gateway, workspace, read)
        return AttachmentStatus.ABSENT if found is None else _status(found.state)

    async def withdraw(
        self, context: RevisionContext, attachment: CredentialAttachment
    ) -> Literal["revoked", "pending", "absent"]:
        """Detach; `revoked` only when the gateway says so of this very detachment."""
        self._check(context)
        workspace = context.namespace.name
        name = names.sandbox_name(context.revision.id, self._prefix)
        with refusals():
            read = partial(self._gateway.get_sandbox, workspace, name)
            sandbox = await read_proved(self._gateway, workspace, read)
            if sandbox is None:
                return "absent"
            wanted = marks.sandbox_annotations(context.revision)
            field = adoption.ownership_difference(workspace, name, wanted, sandbox)
            if field is not None:
                raise OwnershipConflict("Sandbox", field)
            if attachment.ref not in sandbox.spec.get("providers", []):
                return "revoked"
            receipt = await self._gateway.detach_provider(workspace, name, attachment.ref)
            if not receipt:
                return "pending"
            status = await self._gateway.provider_status(workspace, name, attachment.ref, receipt)
        revoked = status is not None and _status(status.state) is AttachmentStatus.REVOKED
        return "revoked" if revoked else "pending"

    # -- Shared ------------------------------------------------------------------------------------------------------------

    def _check(self, context: RevisionContext) -> None:
        revision = context.revision
        if revision.sandbox_driver_id != self._sandbox_driver_id:
            raise DriverRefusal("SANDBOX_DRIVER_MISMATCH", Tempo.PERMANENT)
        if revision.namespace_id != context.namespace.id:
            raise DriverRefusal("INVALID_REVISION_OWNER", Tempo.PERMANENT)
        if any(s.credential_gateway_id != self.id for s in revision.credential_sources):
            raise CredentialSourceRefused("CREDENTIAL_GATEWAY_MISMATCH")

    def _credentials(
        self, source: CredentialSource, secrets: Mapping[str, SecretText]
    ) -> dict[str, SecretText]:
        self.validate_source(source.type, source.config)
        value = secrets.get("api_key")
        if value is None or not value.reveal().strip() or secrets.keys() != {"api_key"}:
            refuse("/secrets/api_key", "REQUIRED", "a nonempty value, and no other field")
        if any(character in value.reveal() for character in "\r\n\0"):
            refuse("/secrets/api_key", "INVALID_FORMAT", "one line without NUL")
        return {profiles.OPENAI_ENV: value}

    def _profile(self, source: CredentialSource) -> profiles.Profile:
        if source.type != _OPENAI.id:
            raise CredentialSourceRefused("CREDENTIAL_SOURCE_UNAVAILABLE")
        base_url = source.config.get("base_url", profiles.OPENAI_BASE_URL)
        header = source.config.get("auth_header", "authorization")
        return profiles.openai(base_url, header, self._settings.binaries)

    async def _owned(self, workspace: str, source: CredentialSource) -> ProviderRecord | None:
        """Return the source's provider when it is ours; None only on proof. Raises OwnershipConflict."""
        name = names.credential_provider(source.id)
        read = partial(self._gateway.get_provider, workspace, name)
        found = await read_proved(self._gateway, workspace, read)
        if found is None:
            return None
        expected = self._profile(source).id if source.type == _OPENAI.id else found.type
        labels = marks.source_labels(source)
        field = adoption.provider_difference(name, expected, labels, found)
        if field is not None:
            raise OwnershipConflict("provider", field)
        return found

    async def _unused_profile(
        self, workspace: str, source: CredentialSource, removed: ProviderRecord | None
    ) -> None:
        try:
            kind = removed.type if removed is not None else self._profile(source).id
        except (CredentialSourceRefused, ConfigurationRefused):
            return  # the config is no longer valid, and the provider is proved gone
        if any(p.type == kind for p in await self._gateway.list_providers(workspace)):
            return
        read = partial(self._gateway.get_profile, workspace, kind)
        profile = await read_proved(self._gateway, workspace, read)
        if profile is not None and profiles.is_managed(profile.annotations):
            await self._remover.profile(workspace, profile)


def _status(state: str | int) -> AttachmentStatus:
    key = state.removeprefix("PROVIDER_READINESS_STATE_") if isinstance(state, str) else state
    return _STATES.get(key, AttachmentStatus.PENDING)


def _base_url_problem(value: str) -> bool:
    try:
        url = urlsplit(value)
        host, port = url.hostname or "", url.port
    except ValueError:
        return True
    plain = url.scheme == "https" and not url.query and not url.fragment and "@" not in url.netloc
    if not plain or port == 0 or "?" in value or "#" in value or value != value.strip():
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return not _HOST.fullmatch(host) or not _PATH.fullmatch(url.path)
    return True
