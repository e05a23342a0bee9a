"""Removal: of a revision, and of a Namespace's Workspace. By name and ownership mark, never by memory; done only when proved.

Order is fixed: Sandbox, then the providers that could be attached to it, then profiles, then the Workspace. A deletion that the
gateway only *accepted* is waited for briefly and then left pending, so that no lane stands still; one that finds nothing where a read
had just seen the object is unconfirmed. What carries our name but not our marks is a conflict and stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from oce.contracts.refusals import DeletionUnconfirmed, OwnershipConflict, StillPending
from oce.domain import names
from oce.drivers.openshell import adoption, marks, profiles
from oce.drivers.openshell.absence import prove_absent, read_proved
from oce.drivers.openshell.failures import Category, GatewayFailure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.contracts.sandbox import PhysicalNamespace
    from oce.domain.clock import Clock
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.records import ProfileRecord, ProviderRecord, SandboxRecord
    from oce.drivers.openshell.wire import Gateway

_T = TypeVar("_T")
_PENDING: Final = "SANDBOX_DELETION_PENDING"
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.32
_WAIT: Final = 2.0
"""Seconds a pass waits in place for an accepted deletion."""
_CONFLICT_TRIES: Final = 3


class Remover:
    """Removes objects of one gateway; `clock` paces the short wait for accepted deletions."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock

    async def revision(
        self, namespace: PhysicalNamespace, revision: AgentRevision, prefix: str
    ) -> None:
        """Remove a revision's Sandboxes, then its runtime provider. Raises refusals and GatewayFailure.

        The provider's removal also shuts the door on a create whose answer was lost: a Sandbox that still arrives before it makes
        the removal pending (attached), and one that arrives after it is refused for the missing provider.
        """
        sandbox = names.sandbox_name(revision.id, prefix)
        read = partial(self._gateway.get_sandbox, namespace.name, sandbox)
        found = await read_proved(self._gateway, namespace.name, read)
        if found is not None:
            self._require_own(namespace.name, sandbox, revision, found)
            await self._sandbox(namespace.name, found)
        await self._leftovers(namespace.name, revision)
        await self._runtime_provider(namespace.name, revision)

    async def exposure(self, workspace: str, sandbox: str, revision: AgentRevision) -> None:
        """Withdraw a Sandbox's exposure; returns only when its absence is proved (mission documents 000 and 003).

        Raises GatewayUnauthorized, DeletionUnconfirmed, OwnershipConflict, StillPending, GatewayFailure.
        """
        read = partial(self._gateway.get_service, workspace, sandbox)
        found = await read_proved(self._gateway, workspace, read)
        if found is None:
            return
        if found.sandbox != sandbox or found.name:
            raise OwnershipConflict("service", "sandbox")
        owner = await self._gateway.get_sandbox(workspace, sandbox)
        if owner is not None:
            self._require_own(workspace, sandbox, revision, owner)
        outcome = await self._settled(partial(self._gateway.delete_service, workspace, sandbox))
        if outcome == "ALREADY_ABSENT":
            raise DeletionUnconfirmed
        if await read_proved(self._gateway, workspace, read) is not None:
            raise StillPending(_PENDING, "the exposure is still there")

    async def _leftovers(self, workspace: str, revision: AgentRevision) -> None:
        """Remove what carries the revision's marks under another name: all pages, by mark, never by memory.

        The name prefix is a setting; a Sandbox made under an earlier one is still this revision's.
        """
        wanted = marks.sandbox_annotations(revision)
        for found in await self._gateway.list_sandboxes(workspace):
            if marks.difference(wanted, found.meta.annotations) is None:
                await self._sandbox(workspace, found)

    def _require_own(
        self, workspace: str, sandbox: str, revision: AgentRevision, found: SandboxRecord
    ) -> None:
        wanted = marks.sandbox_annotations(revision)
        field = adoption.ownership_difference(workspace, sandbox, wanted, found)
        if field is not None:
            raise OwnershipConflict("Sandbox", field)

    async def namespace(self, namespace: PhysicalNamespace) -> None:
        """Remove everything of ours in a Namespace's Workspace, then the Workspace itself."""
        workspace = await self._gateway.get_workspace(namespace.name)
        if workspace is not None:
            wanted = marks.workspace_labels(namespace.id)
            field = marks.difference(wanted, workspace.meta.labels)
            if field is not None:
                raise OwnershipConflict("Workspace", f"labels.{field}")
            await self._contents(namespace)
        await self._workspace(namespace.name, seen=workspace is not None)

    async def provider(self, workspace: str, found: ProviderRecord) -> None:
        """Delete a provider whose ownership the caller has verified."""
        name = found.meta.name
        try:
            outcome = await self._settled(partial(self._gateway.delete_provider, workspace, name))
        except GatewayFailure as failure:
            if failure.category is Category.PRECONDITION:  # still attached to a Sandbox
                raise StillPending(_PENDING, str(failure)) from failure
            raise
        await self._confirm(
            workspace,
            outcome,
            partial(self._gateway.get_provider, workspace, name),
            lambda other: other.meta.id == found.meta.id,
        )

    async def profile(self, workspace: str, profile: ProfileRecord) -> None:
        """Delete a profile that carries our mark; one still in use stays."""
        try:
            outcome = await self._settled(
                partial(self._gateway.delete_profile, workspace, profile.id)
            )
        except GatewayFailure as failure:
            if failure.category is not Category.PRECONDITION:
                raise
            return
        await self._confirm(
            workspace,
            outcome,
            partial(self._gateway.get_profile, workspace, profile.id),
            lambda other: other.resource_version == profile.resource_version,
        )

    async def _runtime_provider(self, workspace: str, revision: AgentRevision) -> None:
        name = names.runtime_provider(revision.id)
        read = partial(self._gateway.get_provider, workspace, name)
        found = await read_proved(self._gateway, workspace, read)
        if found is None:
            return
        if found.type not in profiles.RUNTIME_PROFILES:
            raise OwnershipConflict("provider", "type")
        labels = marks.provider_labels(revision)
        field = adoption.provider_difference(name, found.type, labels, found)
        if field is not None:
            raise OwnershipConflict("provider", field)
        await self.provider(workspace, found)

    async def _contents(self, namespace: PhysicalNamespace) -> None:
        workspace = namespace.name
        for sandbox in await self._gateway.list_sandboxes(workspace):
            if sandbox.meta.annotations.get(marks.NAMESPACE_ID) == namespace.id:
                await self._sandbox(workspace, sandbox)
        wanted = marks.workspace_labels(namespace.id)
        for provider in await self._gateway.list_providers(workspace):
            if wanted.items() <= provider.meta.labels.items():
                await self.provider(workspace, provider)
        used = {provider.type for provider in await self._gateway.list_providers(workspace)}
        for profile in await self._gateway.list_profiles(workspace):
            if profiles.is_managed(profile.annotations) and profile.id not in used:
                await self.profile(workspace, profile)
            elif profile.id in profiles.RUNTIME_PROFILES and profile.id not in used:
                raise OwnershipConflict("profile", f"annotations.{marks.PROFILE_MANAGER}")

    async def _sandbox(self, workspace: str, found: SandboxRecord) -> None:
        name = found.meta.name
        deleted_id = ""

        async def delete() -> str:
            nonlocal deleted_id
            outcome, deleted_id = await self._gateway.delete_sandbox(workspace, name)
            return outcome

        outcome = await self._settled(delete)
        if deleted_id and found.meta.id and deleted_id != found.meta.id:
            raise DeletionUnconfirmed
        await self._confirm(
            workspace,
            outcome,
            partial(self._gateway.get_sandbox, workspace, name),
            lambda other: not found.meta.id or other.meta.id == found.meta.id,
        )

    async def _workspace(self, name: str, *, seen: bool) -> None:
        """Delete the Workspace. ALREADY_ABSENT, unless a read has just `seen` it, is the answer of an authorised call: proof."""
        try:
            outcome = await self._settled(partial(self._gateway.delete_workspace, name))
        except GatewayFailure as failure:
            if failure.category is Category.PRECONDITION:  # something is left inside
                raise StillPending(_PENDING, str(failure)) from failure
            raise
        if outcome == "ALREADY_ABSENT" and seen:
            raise DeletionUnconfirmed
        if outcome not in {"COMPLETED", "ALREADY_ABSENT"}:
            raise StillPending(_PENDING, "DeleteWorkspace is accepted")

    async def _settled(self, delete: Callable[[], Awaitable[str]]) -> str:
        """Run a deletion; a lost version race is repeated a few times."""
        for _ in range(_CONFLICT_TRIES - 1):
            try:
                return await delete()
            except GatewayFailure as failure:
                if failure.category is not Category.CONFLICT:
                    raise
        return await delete()

    async def _confirm(
        self,
        workspace: str,
        outcome: str,
        read: Callable[[], Awaitable[_T | None]],
        same: Callable[[_T], bool],
    ) -> None:
        """Wait until the deleted object is proved gone; `same` tells it from a later one of its name."""
        if outcome == "COMPLETED":
            return
        if outcome == "ALREADY_ABSENT":
            raise DeletionUnconfirmed
        deadline = self._clock.monotonic() + _WAIT
        pause = _FIRST_PAUSE
        while True:
            found = await read()
            if found is None:
                found = await prove_absent(self._gateway, workspace, read)
            if found is None or not same(found):
                return
            if self._clock.monotonic() + pause > deadline:
                raise StillPending(_PENDING)
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
