"""Namespace provisioning and teardown (reference/worker-console.md §4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from oce.domain.resources import NamespaceStatus
from oce.store import namespaces
from oce.worker.outcomes import Instead, Pending, Permanent, Success
from oce.worker.passes.common import BasePass

if TYPE_CHECKING:
    from oce.contracts.compute import NamespaceReadiness
    from oce.domain.resources import Namespace
    from oce.store.database import Tx
    from oce.store.queue import Claim
    from oce.worker.lease import StepRecorder
    from oce.worker.outcomes import Outcome

_LOG = structlog.get_logger()
_SUPERSEDED = Success(reason="SUPERSEDED_TARGET")


class _NamespacePass(BasePass):
    async def load(self, claim: Claim, expected: NamespaceStatus) -> Namespace | None:
        """Return the Namespace if the work still means something."""
        async with self.workshop.platform.db.read() as reader:
            namespace = await namespaces.get(reader, claim.namespace_id)
        if namespace is None or namespace.status is not expected:
            return None
        return namespace

    def judge(self, namespace: Namespace, found: NamespaceReadiness) -> Outcome | None:
        """Return how an incomplete observation ends the pass; None when it is complete."""
        if found.namespace_id != namespace.id:
            return Permanent(code="INVALID_DRIVER_OBSERVATION")
        if found.complete:
            return None
        _LOG.warning(
            "worker.namespace-incomplete-warning", namespace_id=namespace.id, reason=found.reason
        )
        if found.permanent:
            return Permanent(code="NAMESPACE_INCOMPLETE")
        return Pending(code="NAMESPACE_INCOMPLETE")


class EnsureNamespace(_NamespacePass):
    """Bring a Namespace from `provisioning` to `ready`."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Let Compute and the SandboxDriver prepare it."""
        namespace = await self.load(claim, NamespaceStatus.PROVISIONING)
        if namespace is None:
            return _SUPERSEDED
        refusal = await self.workshop.authority.namespace(claim, namespace, "ready")
        if refusal is not None:
            return Permanent(code=refusal.code)
        await step("namespace")
        found = await self.workshop.compute.ensure_namespace(namespace)
        ended = self.judge(namespace, found)
        if ended is not None:
            return ended

        async def apply(tx: Tx) -> None:
            await namespaces.lock(tx, namespace.id)
            if not await namespaces.set_status(
                tx, namespace.id, NamespaceStatus.READY, expected=NamespaceStatus.PROVISIONING
            ):
                raise Instead(_SUPERSEDED)
            action = "openclaw.namespaces.lifecycle.ensure"
            await self.audit(tx, claim, action, ("namespace", namespace.id))

        return Success(reason="NAMESPACE_RECONCILED", apply=apply)


class DeleteNamespace(_NamespacePass):
    """Bring a Namespace from `deleting` to its tombstone. Deletion asks no question before this one."""

    async def run(self, claim: Claim, step: StepRecorder) -> Outcome:
        """Let the SandboxDriver and Compute remove it, with proof."""
        namespace = await self.load(claim, NamespaceStatus.DELETING)
        if namespace is None:
            return _SUPERSEDED
        refusal = await self.workshop.authority.namespace(claim, namespace, "deleted")
        if refusal is not None:
            return Permanent(code=refusal.code)
        await step("namespace")
        found = await self.workshop.compute.delete_namespace(namespace)
        ended = self.judge(namespace, found)
        if ended is not None:
            return ended

        async def apply(tx: Tx) -> None:
            await namespaces.lock(tx, namespace.id)
            if not await namespaces.bury(tx, namespace.id):
                raise Instead(_SUPERSEDED)
            action = "openclaw.namespaces.lifecycle.delete"
            await self.audit(tx, claim, action, ("namespace", namespace.id))

        return Success(reason="NAMESPACE_RECONCILED", apply=apply)
