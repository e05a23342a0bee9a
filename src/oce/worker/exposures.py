"""The sweep for exposures that outlived their purpose (mission document 003).

A dedicated native worker is exposed only so that a failure before its node enrolled can be read, and the provider routes that exposure
without asking who calls. A pass withdraws it; this sweep does so where no pass is under way: revisions that served already when the
worker started, and candidates that failed for good. It holds no claim, because withdrawing is right in every later state and may be
repeated by every worker. What it has proved it does not ask again; everything else stays on the list.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oce.contracts.refusals import DeletionUnconfirmed, DriverRefusal
from oce.domain.failures import Tempo
from oce.store import namespaces, revisions
from oce.store.errors import StoreError
from oce.worker.classify import own_words

if TYPE_CHECKING:
    from datetime import datetime

    from oce.core.platform import Platform
    from oce.domain.resources import AgentRevision

_LOG = structlog.get_logger()
_PAGE: Final = 100
_UNCONFIRMED: Final = "worker.harness-exposure-withdrawal-unconfirmed"
_FAILED: Final = "worker.harness-exposure-withdrawal-failed"


class ExposureSweep:
    """Withdraws through the selected Compute; `period` is the pause between two rounds, `limit` the patience with one revision."""

    def __init__(self, platform: Platform, *, period: float, limit: float) -> None:
        self._platform = platform
        self._period = period
        self._limit = limit
        self._proved: set[str] = set()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Sweep at once, then again and again."""
        while True:
            try:
                await self.once()
            except StoreError as error:
                _LOG.warning("worker.harness-exposure-sweep-failed", exc_info=error)
            await asyncio.sleep(self._period)

    async def once(self) -> None:
        """Look at every page and withdraw what is not proved gone yet. Raises StoreError."""
        seen: set[str] = set()
        after: tuple[datetime, str] | None = None
        while True:
            async with self._platform.db.read() as reader:
                page = await revisions.exposed(reader, after, _PAGE)
            for revision in page:
                seen.add(revision.id)
                if revision.id not in self._proved and await self._withdrawn(revision):
                    self._proved.add(revision.id)
            if len(page) < _PAGE:
                break
            after = (page[-1].created_at, page[-1].id)
        self._proved &= seen
        self._told = {key: code for key, code in self._told.items() if key in seen}

    async def _withdrawn(self, revision: AgentRevision) -> bool:
        """Tell whether the exposure is proved gone; whatever forbids it is logged and tried again in the next round."""
        async with self._platform.db.read() as reader:
            namespace = await namespaces.get(reader, revision.namespace_id)
        if namespace is None:
            return False
        try:
            async with asyncio.timeout(self._limit):
                await self._platform.drivers.compute.withdraw_exposure(revision, namespace)
        except DeletionUnconfirmed as refusal:
            self._refused(_UNCONFIRMED, revision, refusal)
        except DriverRefusal as refusal:
            if refusal.tempo in {Tempo.RETRY, Tempo.PERMANENT}:
                self._refused(_FAILED, revision, refusal)
        except Exception as error:  # noqa: BLE001 - one revision's fault must not end the sweep of the others
            _LOG.warning(_FAILED, **_identity(revision), exc_info=error)
        else:
            _LOG.info("worker.harness-exposure-withdrawn", **_identity(revision))
            return True
        return False

    def _refused(self, event: str, revision: AgentRevision, refusal: DriverRefusal) -> None:
        """Say it once for as long as it is the same refusal; an operator may need days."""
        if self._told.get(revision.id) == refusal.code:
            return
        self._told[revision.id] = refusal.code
        hint = {} if refusal.hint_code is None else {"hint_code": refusal.hint_code}
        said = {"code": refusal.code, **own_words(refusal)}
        _LOG.warning(event, **_identity(revision), **said, **hint)


def _identity(revision: AgentRevision) -> dict[str, str]:
    return {
        "namespace_id": revision.namespace_id,
        "agent_id": revision.agent_id,
        "revision_id": revision.id,
    }
