"""What every group of methods works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oce.sandboxd.api.calls import Mutation
from oce.sandboxd.api.objects import restorer, slim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.sandboxd.api.calls import Call
    from oce.sandboxd.api.stubs import Proto
    from oce.sandboxd.config import GatewayConfig
    from oce.sandboxd.egress.model import EgressClient
    from oce.sandboxd.lifecycle.clock import Clock
    from oce.sandboxd.lifecycle.logs import LogBook
    from oce.sandboxd.lifecycle.supervisor import Supervisor
    from oce.sandboxd.state.store import Store, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of one gateway."""

    config: GatewayConfig
    store: Store
    supervisor: Supervisor
    egress: EgressClient
    logs: LogBook
    clock: Clock

    def mutation(
        self,
        apply: Callable[[Transaction, Call, Any], Proto],
        *,
        prepare: Callable[[Call], Awaitable[Any]] | None = None,
        settled: Callable[[Call, Proto], None] | None = None,
        finish: Callable[[Proto], Awaitable[Proto]] | None = None,
        outside: bool = False,
        spans: bool = False,
    ) -> Mutation:
        """Return a mutation with this gateway's way of replaying."""
        return Mutation(
            apply=apply,
            restore=restorer(self.config),
            slim=slim,
            prepare=prepare,
            settled=settled,
            finish=finish,
            outside=outside,
            spans=spans,
        )
