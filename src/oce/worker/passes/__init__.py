"""One module per kind of work. A pass is bounded, repeatable and ends in one of four outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.store.queue import WorkKind
from oce.worker.passes.agent_delete import DeleteAgent
from oce.worker.passes.common import Unsupported
from oce.worker.passes.deploy import Deploy
from oce.worker.passes.namespace import DeleteNamespace, EnsureNamespace
from oce.worker.passes.stop import StopAgent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.worker.engine import Pass
    from oce.worker.passes.common import Workshop


def all_passes(workshop: Workshop) -> Mapping[WorkKind, Pass]:
    """Return the pass of every kind of work."""
    return {
        WorkKind.NAMESPACE_ENSURE: EnsureNamespace(workshop),
        WorkKind.NAMESPACE_DELETE: DeleteNamespace(workshop),
        WorkKind.AGENT_REVISION: Deploy(workshop),
        WorkKind.AGENT_STOP: StopAgent(workshop),
        WorkKind.AGENT_DELETE: DeleteAgent(workshop),
        WorkKind.UNSUPPORTED: Unsupported(workshop),
    }
