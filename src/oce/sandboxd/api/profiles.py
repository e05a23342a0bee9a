"""Provider profiles: what a kind of provider may reach, holds and writes (reference/openshell-gateway.md b.5).

The catalogue is import-only. An import is all or nothing; problems come back as diagnostics of a successful call.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import show
from oce.sandboxd.api.stubs import Proto, pb, unknown_field
from oce.sandboxd.lifecycle.policies import check_profile
from oce.sandboxd.lifecycle.providers import profile_record
from oce.sandboxd.state.refusals import Refusal, invalid, missing, precondition
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Reader, Transaction

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_GENERATED = re.compile(r"v\d+_.*|s[0-9a-f]{64}_.*", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STYLES = frozenset({"", "basic", "bearer", "header", "query", "path"})
_RESERVED = frozenset({"PATH", "HOME", "USER", "SHELL", "LD_PRELOAD", "LD_LIBRARY_PATH"})
_MAX_ID = 64
_MAX_FILE = 65536
_MAX_FILES = 32


def problems(profile: Proto) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) of a profile."""
    found = unknown_field(profile)
    if found is not None:
        yield found, "is not a field this gateway knows"
    if not _ID.fullmatch(profile.id) or len(profile.id) > _MAX_ID:
        yield "id", "must be lowercase kebab of at most 64 characters"
    yield from _variable_problems(profile)
    yield from _credential_problems(profile)
    for binary in profile.binaries:
        if not binary.path.startswith("/"):
            yield "binaries", "must be absolute paths"
    try:
        check_profile(profile)
    except Refusal as refusal:
        yield "endpoints", refusal.message
    yield from _file_problems(profile)


def _variable_problems(profile: Proto) -> Iterator[tuple[str, str]]:
    variables = [name for credential in profile.credentials for name in credential.env_vars]
    variables += [file.env_var for file in profile.files if file.env_var]
    if len(set(variables)) != len(variables):
        yield "credentials.env_vars", "two of them are the same"
    for name in variables:
        if not _VARIABLE.fullmatch(name) or name.startswith("OPENSHELL_") or name in _RESERVED:
            yield "env_vars", "has a name that is not possible"
        if _GENERATED.fullmatch(name):
            yield "env_vars", "has a name that looks like a generated placeholder"


def _credential_problems(profile: Proto) -> Iterator[tuple[str, str]]:
    names = [credential.name for credential in profile.credentials]
    if len(set(names)) != len(names) or not all(names):
        yield "credentials", "need different, nonempty names"
    for credential in profile.credentials:
        if credential.auth_style not in _STYLES:
            yield "credentials.auth_style", "is not known"
        if credential.HasField("refresh") and credential.refresh.strategy > 1:
            yield "credentials.refresh", "is not supported by this gateway"
        if credential.HasField("token_grant") or credential.token_grant_owners:
            yield "credentials.token_grant", "is not supported by this gateway"


def _file_problems(profile: Proto) -> Iterator[tuple[str, str]]:
    if len(profile.files) > _MAX_FILES:
        yield "files", f"are more than {_MAX_FILES}"
    paths = [file.path for file in profile.files]
    if len(set(paths)) != len(paths):
        yield "files.path", "two of them are the same"
    for path in paths:
        pure = PurePosixPath(path)
        if (
            not path
            or pure.is_absolute()
            or ".." in pure.parts
            or "\0" in path
            or str(pure) != path
        ):
            yield "files.path", "must be a plain relative path"
    for file in profile.files:
        if len(file.content.encode()) > _MAX_FILE:
            yield "files.content", f"is larger than {_MAX_FILE} bytes"


def _diagnostics(item: Proto) -> list[Proto]:
    return [
        pb.ProviderProfileDiagnostic(
            source=item.source,
            profile_id=item.profile.id,
            field=field,
            message=message,
            severity="error",
        )
        for field, message in problems(item.profile)
    ]


def _stored(profile: Proto) -> bytes:
    result = pb.ProviderProfile()
    result.CopyFrom(profile)
    for field in ("resource_version", "source", "scope"):
        result.ClearField(field)
    return bytes(result.SerializeToString())


class Profiles:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "ListProviderProfiles": Query(handle=self._list, spans=True),
            "GetProviderProfile": Query(handle=self._get, spans=True),
            "LintProviderProfiles": Query(handle=self._lint, spans=True),
            "ImportProviderProfiles": self._g.mutation(self._import, spans=True),
            "UpdateProviderProfiles": self._g.mutation(
                self._update,
                spans=True,
                settled=lambda _call, _response: self._g.supervisor.wake_all(),
            ),
            "DeleteProviderProfile": self._g.mutation(self._delete, spans=True),
        }

    def _scope(self, reader: Reader, call: Call, *, writing: bool) -> str:
        if not call.all_workspaces:
            checks.active_workspace(reader, call.workspace, writing=writing)
        return call.workspace

    async def _list(self, call: Call) -> Proto:
        reader = self._g.store.read
        own = self._scope(reader, call, writing=False)
        seen = {record.name: record for record in reader.page(Kind.PROFILE, workspace="")}
        seen |= {record.name: record for record in reader.page(Kind.PROFILE, workspace=own)}
        ordered = [
            replace(seen[name], workspace=own or seen[name].workspace) for name in sorted(seen)
        ]
        found, token = checks.page(
            call,
            lambda after: (record for record in ordered if record.name > after[2]),
        )
        return pb.ListProviderProfilesResponse(
            profiles=[show(seen[record.name]) for record in found], next_page_token=token
        )

    async def _get(self, call: Call) -> Proto:
        reader = self._g.store.read
        record = profile_record(reader, self._scope(reader, call, writing=False), call.request.id)
        if record is None:
            raise missing("provider profile", call.request.id)
        return pb.ProviderProfileResponse(profile=show(record))

    async def _lint(self, call: Call) -> Proto:
        found = [line for item in call.request.profiles for line in _diagnostics(item)]
        return pb.LintProviderProfilesResponse(diagnostics=found, valid=not found)

    def _import(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        workspace = self._scope(tx, call, writing=True)
        if not call.request.profiles:
            raise invalid("profiles", "must not be empty")
        found = [line for item in call.request.profiles for line in _diagnostics(item)]
        ids = [item.profile.id for item in call.request.profiles]
        for item in call.request.profiles:
            taken = tx.named(Kind.PROFILE, workspace, item.profile.id) is not None
            if taken or ids.count(item.profile.id) > 1:
                found.append(
                    pb.ProviderProfileDiagnostic(
                        source=item.source,
                        profile_id=item.profile.id,
                        field="id",
                        message="a profile with this id already exists",
                        severity="error",
                    )
                )
        if found:
            return pb.ImportProviderProfilesResponse(diagnostics=found, imported=False)
        now = self._g.clock.now()
        records = [
            Record(
                kind=Kind.PROFILE,
                id=str(uuid.uuid4()),
                workspace=workspace,
                name=item.profile.id,
                payload=_stored(item.profile),
                created=now,
            )
            for item in call.request.profiles
        ]
        for record in records:
            tx.insert(record)
        return pb.ImportProviderProfilesResponse(
            profiles=[show(record) for record in records], imported=True
        )

    def _update(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        request = call.request
        workspace = self._scope(tx, call, writing=True)
        record = tx.named(Kind.PROFILE, workspace, request.id or request.profile.profile.id)
        if record is None:
            raise missing("provider profile", request.id or request.profile.profile.id)
        if not request.expected_resource_version:
            raise invalid("expected_resource_version", "is required")
        checks.version_fence(request.expected_resource_version, record)
        if request.profile.profile.id != record.name:
            raise invalid("profile.profile.id", "cannot be changed")
        found = _diagnostics(request.profile)
        if found:
            return pb.UpdateProviderProfilesResponse(diagnostics=found, updated=False)
        record = tx.update(replace(record, payload=_stored(request.profile.profile)), bump=True)
        return pb.UpdateProviderProfilesResponse(profile=show(record), updated=True)

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        workspace = self._scope(tx, call, writing=False)
        record = tx.named(Kind.PROFILE, workspace, call.request.id)
        if record is None:
            if call.request.allow_missing:
                return pb.DeleteProviderProfileResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise missing("provider profile", call.request.id)
        users = [
            provider.name
            for provider in tx.page(Kind.PROVIDER, workspace=workspace or None)
            if provider.facts["type"] == record.name and _uses(tx, record, provider)
        ]
        if users:
            raise precondition(
                f"profile '{record.name}' is in use by provider(s): {', '.join(sorted(users)[:5])}"
            )
        tx.delete(record)
        return pb.DeleteProviderProfileResponse(outcome=pb.DELETION_OUTCOME_COMPLETED)


def _uses(reader: Reader, profile: Record, provider: Record) -> bool:
    used = profile_record(reader, provider.workspace, profile.name)
    return used is not None and used.id == profile.id
