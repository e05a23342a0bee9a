"""Providers: named credentials and config of one kind, attached to Sandboxes (reference/openshell-gateway.md b.4, b.6).

Values go to the egress process's vault *before* the record names their keys, under a new version of a new or known id; they are
never stored, logged or returned here. Reads show the keys with empty values.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import listed, show, stamp
from oce.sandboxd.api.stubs import Proto, data_pb, pb, timestamp
from oce.sandboxd.egress.model import EgressError
from oce.sandboxd.lifecycle.providers import (
    files,
    profile_record,
    vault_id,
    view_of,
)
from oce.sandboxd.lifecycle.templates import MissingConfigError
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Reader, Transaction

_MAX_NAME, _MAX_TYPE = 253, 64
_MAX_CREDENTIALS, _MAX_CONFIG = 32, 64
_MAX_CREDENTIAL, _MAX_CONFIG_VALUE = 8192, 65536
_MAX_KEY = 256


@dataclass(frozen=True, slots=True, repr=False)
class _Written:
    """What `prepare` put into the vault: the provider's id and the keys (never the values)."""

    id: str
    put: frozenset[str]
    cleared: frozenset[str]


def _check_values(provider: Proto) -> None:
    if len(provider.credentials) > _MAX_CREDENTIALS:
        raise invalid("provider.credentials", f"has more than {_MAX_CREDENTIALS} entries")
    if len(provider.config) > _MAX_CONFIG:
        raise invalid("provider.config", f"has more than {_MAX_CONFIG} entries")
    for where, entries, limit in (
        ("credentials", provider.credentials, _MAX_CREDENTIAL),
        ("config", provider.config, _MAX_CONFIG_VALUE),
    ):
        for key, value in entries.items():
            if (
                not key
                or len(key) > _MAX_KEY
                or not key.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()
            ):
                raise invalid(f"provider.{where}", "has a key that is not possible")
            if len(value.encode()) > limit:
                raise invalid(f"provider.{where}[{key}]", f"is larger than {limit} bytes")
    for key, value in provider.credentials.items():
        if any(character in value for character in "\r\n\0"):
            raise invalid(f"provider.credentials[{key}]", "must not contain CR, LF or NUL")
    if provider.credential_handles:
        raise invalid("provider.credential_handles", "is set by the gateway")


def _check_name(name: str) -> None:
    segments = name.replace("_", "-").replace(".", "-").split("-")
    if (
        not name
        or len(name) > _MAX_NAME
        or not name.isascii()
        or not all(part.isalnum() for part in segments)
    ):
        raise invalid("provider.metadata.name", "must be at most 253 of A-Z a-z 0-9 . _ -")


def _usable(reader: Reader, record: Record) -> None:
    """Refuse a provider whose profile could not be honoured with it."""
    view = view_of(reader, record)
    if view is None:
        raise precondition("the provider's type has no profile in this workspace")
    try:
        for _file in files(view):
            pass
    except MissingConfigError as error:
        raise invalid("provider.config", str(error)) from error
    names = [{item.name, *item.env_vars} for item in view.profile.credentials]
    unknown = set(view.credentials).difference(*names)
    if unknown:
        raise invalid(
            "provider.credentials", f"'{min(unknown)}' is not a credential of its profile"
        )
    for item, known in zip(view.profile.credentials, names, strict=True):
        if item.required and not known & set(view.credentials):
            raise invalid("provider.credentials", f"the credential '{item.name}' is required")


class Providers:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "CreateProvider": self._g.mutation(
                self._create, prepare=self._prepare_create, settled=self._created
            ),
            "GetProvider": Query(handle=self._get),
            "ListProviders": Query(handle=self._list, spans=True),
            "UpdateProvider": self._g.mutation(
                self._update,
                prepare=self._prepare_update,
                settled=self._updated,
                outside=True,
            ),
            "DeleteProvider": self._g.mutation(self._delete, settled=self._forget_values),
        }

    async def _put(self, provider_id: str, values: Mapping[str, str]) -> None:
        """Hand values to the vault under a version that only grows."""
        self._g.supervisor.credential_written(provider_id)
        version = await self._g.store.write(lambda tx: tx.next("credential"))
        try:
            for key, value in values.items():
                await self._g.egress.put_credentials(
                    vault_id(provider_id, key), version, {key: value}
                )
        except (ConnectionError, EgressError) as error:
            raise Refusal(
                Status.UNAVAILABLE, "the credential store is not reachable", retry_after=1.0
            ) from error

    async def _prepare_create(self, call: Call) -> _Written:
        provider = call.request.provider
        reader = self._g.store.read
        checks.active_workspace(reader, call.workspace)
        _check_name(provider.metadata.name)
        checks.labels(provider.metadata.labels, "provider.metadata.labels")
        checks.check_annotations(provider.metadata.annotations, "provider.metadata.annotations")
        _check_values(provider)
        if provider.credential_expiration_times:
            raise _no_expiry()
        if not provider.type or len(provider.type) > _MAX_TYPE:
            raise invalid("provider.type", "is required, at most 64 characters")
        if provider.profile_workspace not in {"", call.workspace}:
            raise invalid("provider.profile_workspace", "must be empty or the provider's workspace")
        if reader.named(Kind.PROVIDER, call.workspace, provider.metadata.name) is not None:
            raise _taken(provider.metadata.name)
        if not all(provider.credentials.values()):
            raise invalid("provider.credentials", "has an empty value")
        if profile_record(reader, call.workspace, provider.type) is None:
            raise precondition(f"provider profile '{provider.type}' not found")
        provider_id = str(uuid.uuid4())
        await self._put(provider_id, provider.credentials)
        return _Written(provider_id, frozenset(provider.credentials), frozenset())

    def _create(self, tx: Transaction, call: Call, written: _Written) -> Proto:
        checks.active_workspace(tx, call.workspace)
        provider = call.request.provider
        if tx.named(Kind.PROVIDER, call.workspace, provider.metadata.name) is not None:
            raise _taken(provider.metadata.name)
        record = Record(
            kind=Kind.PROVIDER,
            id=written.id,
            workspace=call.workspace,
            name=provider.metadata.name,
            created=self._g.clock.now(),
            facts={"type": provider.type},
        )
        message = data_pb.Provider()
        message.CopyFrom(provider)
        for key in message.credentials:
            message.credentials[key] = ""
        stamp(message.metadata, record)
        record = replace(record, payload=message.SerializeToString())
        tx.insert(record)
        _usable(tx, record)
        return pb.ProviderResponse(provider=show(record), mutation_id=str(uuid.uuid4()))

    def _find(self, reader: Reader, call: Call, name: str) -> Record:
        checks.active_workspace(reader, call.workspace, writing=False)
        record = reader.named(Kind.PROVIDER, call.workspace, name)
        if record is None:
            raise missing("provider", name)
        return record

    async def _get(self, call: Call) -> Proto:
        record = self._find(self._g.store.read, call, call.request.name)
        return pb.ProviderResponse(provider=show(record))

    async def _list(self, call: Call) -> Proto:
        shown, token = listed(self._g.store.read, call, Kind.PROVIDER)
        return pb.ListProvidersResponse(providers=shown, next_page_token=token)

    async def _prepare_update(self, call: Call) -> _Written:
        provider = call.request.provider
        record = self._find(self._g.store.read, call, provider.metadata.name)
        checks.active_workspace(self._g.store.read, call.workspace)
        _check_values(provider)
        if call.request.credential_expiration_times or provider.credential_expiration_times:
            raise _no_expiry()
        self._check_update(record, call)
        put = {key: value for key, value in provider.credentials.items() if value}
        cleared = frozenset(key for key, value in provider.credentials.items() if not value)
        if put:
            await self._put(record.id, put)
        return _Written(record.id, frozenset(put), cleared)

    def _check_update(self, record: Record, call: Call) -> None:
        provider = call.request.provider
        checks.version_fence(provider.metadata.resource_version, record)
        if provider.type and provider.type != record.facts["type"]:
            raise invalid("provider.type", "type cannot be changed")
        current = data_pb.Provider.FromString(record.payload)
        if provider.profile_workspace not in {"", current.profile_workspace}:
            raise invalid("provider.profile_workspace", "cannot be changed")

    def _update(self, tx: Transaction, call: Call, written: _Written) -> Proto:
        request = call.request
        record = self._find(tx, call, request.provider.metadata.name)
        if record.id != written.id:
            raise Refusal(Status.ABORTED, "the provider was replaced meanwhile")
        self._check_update(record, call)
        message = data_pb.Provider.FromString(record.payload)
        for key in written.put:
            message.credentials[key] = ""
        for key in written.cleared:
            message.credentials.pop(key, None)
        for key, value in request.provider.config.items():
            if value:
                message.config[key] = value
            else:
                message.config.pop(key, None)
        if request.provider.metadata.labels:
            checks.labels(request.provider.metadata.labels, "provider.metadata.labels")
            message.metadata.labels.clear()
            message.metadata.labels.update(request.provider.metadata.labels)
        _check_values(message)
        record = tx.update(replace(record, payload=message.SerializeToString()), bump=True)
        _usable(tx, record)
        receipts = [
            receipt(sandbox, record, pb.PROVIDER_MUTATION_KIND_UPDATE, self._g.clock.now())
            for sandbox in attached_sandboxes(tx, record)
        ]
        return pb.ProviderResponse(
            provider=show(record), target_receipts=receipts, mutation_id=str(uuid.uuid4())
        )

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace, writing=False)
        record = tx.named(Kind.PROVIDER, call.workspace, call.request.name)
        if record is None:
            if call.request.allow_missing:
                return pb.DeleteProviderResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise missing("provider", call.request.name)
        users = [sandbox.name for sandbox in attached_sandboxes(tx, record)]
        if users:
            raise precondition(
                f"provider '{record.name}' is attached to sandbox(es): {', '.join(users[:5])}"
            )
        tx.delete(record)
        return pb.DeleteProviderResponse(outcome=pb.DELETION_OUTCOME_COMPLETED)

    def _created(self, _call: Call, response: Proto) -> None:
        self._g.supervisor.credential_recorded(response.provider.metadata.id)

    def _updated(self, call: Call, response: Proto) -> None:
        self._created(call, response)
        self._g.supervisor.wake_all()
        self._forget_values(call, response)

    def _forget_values(self, _call: Call, _response: Proto) -> None:
        self._g.supervisor.sweep_credentials()


def _no_expiry() -> Refusal:
    return invalid("credential_expiration_times", "is not supported by this gateway")


def _taken(name: str) -> Refusal:
    return Refusal(Status.ALREADY_EXISTS, f"provider '{name}' already exists")


def attached_sandboxes(reader: Reader, provider: Record) -> list[Record]:
    """Return the Sandboxes that a provider is attached to."""
    return [
        sandbox
        for sandbox in reader.page(Kind.SANDBOX, workspace=provider.workspace)
        if provider.name in pb.Sandbox.FromString(sandbox.payload).spec.providers
    ]


def receipt(sandbox: Record, provider: Record, kind: int, now: float) -> Proto:
    """Return what a change of a provider asks of one Sandbox; the receipt's id carries everything needed to judge it later."""
    message = pb.ProviderMutationReceipt(
        receipt_id=f"{kind}.{sandbox.id}.{provider.id}.{provider.version}",
        mutation_id=str(uuid.uuid4()),
        provider=provider.name,
        workspace=provider.workspace,
        kind=kind,
        persisted_time=timestamp(now),
    )
    message.desired.sandbox_id = sandbox.id
    message.desired.sandbox = sandbox.name
    message.desired.provider_id = provider.id
    message.desired.provider_resource_version = provider.version
    return message
