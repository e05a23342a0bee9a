"""The route document that Compute writes, read by the real Agent Gateway's switchboard over its real control socket."""

import asyncio

import pytest

from oce.agentgw import control
from oce.agentgw.routes import RouteReader
from oce.agentgw.switch import Switchboard
from oce.contracts.refusals import StillPending


class RunningTurn:
    """A relayed connection with one unfinished turn."""

    def __init__(self):
        self.turns = 1
        self.drained = False

    def drain(self):
        self.drained = True

    def interrupt(self):
        self.turns = 0

    def close(self):
        self.turns = 0


@pytest.fixture
async def switchboard(settings):
    settings.routes_dir.mkdir(parents=True)
    board = Switchboard(RouteReader(settings.routes_dir), drain_limit=60)
    server = await control.listen(settings.gateway_control_socket, board)
    yield board
    server.close()
    await server.wait_closed()


async def test_the_gateway_serves_what_compute_activated_and_drains_before_the_next(
    compute, context, switchboard, make_revision
):
    first, second = make_revision(1), make_revision(2)
    await compute.prepare_revision(first, context)
    assert switchboard.agent(first.agent_id).serving.target is None
    await compute.activate_revision(first, context)
    lease = await switchboard.agent(first.agent_id).acquire(first.namespace_id)
    assert lease.revision_id == first.id
    assert lease.target.connect == ("127.0.0.1", 17670)
    turn = RunningTurn()
    assert lease.occupy(turn)

    await compute.prepare_revision(second, context)
    with pytest.raises(StillPending):
        await compute.activate_revision(second, context)
    assert turn.drained
    assert switchboard.agent(first.agent_id).serving.revision_id == first.id

    waiting = asyncio.create_task(switchboard.agent(first.agent_id).acquire(first.namespace_id))
    lease.release()
    await compute.activate_revision(second, context)
    successor = await asyncio.wait_for(waiting, 5)
    assert successor.revision_id == second.id
    successor.release()

    await compute.retire_revision(second, context)
    assert switchboard.agent(first.agent_id).serving.revision_id is None
