"""What happens to a Sandbox over time: endings, restarts, wishes from every phase, restarts of the gateway and of egress."""

from __future__ import annotations

import grpc
import pytest
from openshell._proto import openshell_pb2 as pb

from oce.sandboxd.place import MissingRightError

NEVER, ON_FAILURE, ALWAYS = 1, 2, 3
PHASES = ("PROVISIONING", "READY", "ERROR", "COMPLETED", "STOPPED", "STARTING")


def spec(policy=NEVER, **fields):
    return pb.SandboxSpec(command=["/usr/bin/agent"], restart_policy=policy, **fields)


async def get(control, tools, name="one"):
    return (await control.GetSandbox(pb.GetSandboxRequest(**tools.in_default(name=name)))).sandbox


@pytest.mark.parametrize(
    ("code", "phase", "reason"),
    [
        (0, pb.SANDBOX_PHASE_COMPLETED, "MainProcessCompleted"),
        (3, pb.SANDBOX_PHASE_ERROR, "MainProcessFailed"),
        (137, pb.SANDBOX_PHASE_ERROR, "MainProcessFailed"),
    ],
)
async def test_the_end_of_the_main_process_is_terminal(world, control, tools, code, phase, reason):
    await tools.create(control, spec=spec())
    await tools.ready(control, "one")
    world.main().end(code)
    status = (await tools.phase(control, "one", phase)).sandbox.status
    assert status.exit_code == code
    assert (status.conditions[0].status, status.conditions[0].reason) == ("False", reason)
    await tools.eventually(lambda: not world.egress.served)


async def test_back_off_shows_as_starting_with_exit_code_and_count(world, control, tools):
    clock = tools.clock()
    world.clock = clock
    await world.reopen()
    await tools.create(control, spec=spec(ALWAYS))
    await tools.ready(control, "one")
    for count, delay in ((1, 0), (2, 1), (3, 2), (4, 4)):
        world.main().end(9)
        if delay:
            status = (await tools.phase(control, "one", pb.SANDBOX_PHASE_STARTING)).sandbox.status
            assert (status.exit_code, status.restart_count) == (9, count)
            assert status.next_restart_time.seconds == int(clock.time) + delay
            assert len(world.place.started) == count
            clock.advance(delay)
        await tools.eventually(lambda wanted=count + 1: len(world.place.started) == wanted)
        status = (await tools.ready(control, "one")).sandbox.status
        assert not status.HasField("exit_code")
        assert status.restart_count == 0
    clock.advance(10)
    world.main().end(9)
    await tools.eventually(lambda: len(world.place.started) == 6)
    assert len({launch.instance_id for launch in world.place.started}) == 6


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("wish", ["stop", "delete", "start"])
async def test_every_phase_has_a_way_out(world, control, tools, phase, wish):
    clock = tools.clock()
    world.clock = clock
    await world.reopen()
    if phase == "PROVISIONING":
        world.egress.away = True
    await tools.create(control, spec=spec(ALWAYS if phase == "STARTING" else NEVER))
    if phase != "PROVISIONING":
        await tools.ready(control, "one")
    if phase in {"ERROR", "COMPLETED"}:
        world.main().end(1 if phase == "ERROR" else 0)
    elif phase == "STOPPED":
        await control.StopSandbox(pb.StopSandboxRequest(**tools.in_default(name="one")))
    elif phase == "STARTING":
        world.main().end(1)
        await tools.eventually(lambda: len(world.place.started) == 2)
        await tools.ready(control, "one")
        world.main().end(1)
    await tools.phase(control, "one", getattr(pb, f"SANDBOX_PHASE_{phase}"))
    world.egress.away = False
    scope = tools.in_default(name="one")
    if wish == "stop":
        await control.StopSandbox(pb.StopSandboxRequest(**scope))
        await tools.phase(control, "one", pb.SANDBOX_PHASE_STOPPED)
        assert world.place.running == {}
    elif wish == "start":
        await control.StartSandbox(pb.StartSandboxRequest(**scope))
        clock.advance(1)
        await tools.ready(control, "one")
    else:
        await control.DeleteSandbox(pb.DeleteSandboxRequest(**scope))
        await tools.gone(control, "one")
        assert world.place.running == {}
        assert not list((world.state / "sandboxes").iterdir())
        await tools.create(control)
        await tools.ready(control, "one")


async def test_a_restarted_gateway_adopts_and_does_not_start_again(world, control, tools):
    await tools.create(control, spec=spec())
    before = (await tools.ready(control, "one")).sandbox
    generation = world.egress.served[before.metadata.id].generation
    await world.reopen()
    async with world.channel() as channel:
        control = tools.Control(world, channel)
        await tools.eventually(
            lambda: world.egress.served[before.metadata.id].generation > generation
        )
        after = (await tools.ready(control, "one")).sandbox
    assert after.status.main_process_instance_id == before.status.main_process_instance_id
    assert len(world.place.started) == 1
    assert world.egress.installs == 2


async def test_what_ended_or_is_unknown_at_a_restart(world, control, tools):
    await tools.create(control, spec=spec())
    await tools.create(control, "two", spec=spec(ALWAYS))
    await tools.ready(control, "one")
    await tools.ready(control, "two")
    await world.close()
    unknown = await world.place.start(
        type("Launch", (), {"sandbox_id": "stranger", "instance_id": "x"})()
    )
    world.place.running = {"stranger": unknown}
    await world.open()
    async with world.channel() as channel:
        control = tools.Control(world, channel)
        assert "stranger" not in world.place.running
        one = (await tools.phase(control, "one", pb.SANDBOX_PHASE_ERROR)).sandbox
        assert not one.status.HasField("exit_code")
        assert one.status.conditions[0].reason == "ControlSupervisorExited"
        await tools.ready(control, "two")


async def test_a_deletion_survives_a_crash(world, control, tools):
    await tools.create(control, spec=spec())
    await tools.ready(control, "one")
    world.egress.away = True
    answer = await control.DeleteSandbox(pb.DeleteSandboxRequest(**tools.in_default(name="one")))
    assert answer.outcome == pb.DELETION_OUTCOME_ACCEPTED
    assert (await get(control, tools)).status.phase == pb.SANDBOX_PHASE_DELETING
    await world.close()
    world.egress.away = False
    await world.open()
    async with world.channel() as channel:
        await tools.gone(tools.Control(world, channel), "one")
    assert world.place.running == {}


async def test_a_new_egress_process_gets_every_sandbox_again(world, control, tools):
    await tools.create(control, spec=spec())
    sandbox_id = (await tools.ready(control, "one")).sandbox.metadata.id
    world.egress.served.clear()
    await world.egress.events.put(None)
    await tools.eventually(lambda: sandbox_id in world.egress.served)
    assert len(world.place.started) == 1


async def test_a_missing_right_is_an_error_that_names_it(world, control, tools):
    world.place.refuse = MissingRightError("user namespaces", "Ask the administrator.")
    await tools.create(control, spec=spec(ALWAYS))
    status = (await tools.phase(control, "one", pb.SANDBOX_PHASE_ERROR)).sandbox.status
    assert "user namespaces" in status.conditions[0].message
    assert status.conditions[0].reason == "ConfinementUnavailable"
    assert not status.HasField("exit_code")


async def test_a_watch_tells_each_change_and_ends_with_the_sandbox(control, tools):
    await tools.create(control, spec=spec())
    stream = control.WatchSandbox(
        pb.WatchSandboxRequest(**tools.in_default(sandbox="one", follow_status=True))
    )
    phases = []
    async for event in stream:
        phases.append(event.sandbox.status.phase)
        if phases[-1] == pb.SANDBOX_PHASE_READY and len(phases) < 50:
            await control.DeleteSandbox(
                pb.DeleteSandboxRequest(**tools.in_default(name="one", allow_missing=True))
            )
    assert pb.SANDBOX_PHASE_READY in phases
    assert phases[-1] == pb.SANDBOX_PHASE_DELETING


async def test_a_crash_loop_before_ready_still_backs_off(world, control, tools):
    clock = tools.clock()
    world.clock = clock
    await world.reopen()
    await tools.create(control, spec=spec(ALWAYS))
    await tools.ready(control, "one")
    clock.advance(100)
    world.main().end(1)
    await tools.eventually(lambda: len(world.place.started) == 2)
    await tools.ready(control, "one")
    for expected in (1, 2, 4):
        world.main().end(1)
        status = (await tools.phase(control, "one", pb.SANDBOX_PHASE_STARTING)).sandbox.status
        assert status.next_restart_time.seconds == int(clock.time) + expected
        clock.advance(expected)
        await tools.ready(control, "one")


async def test_logs_hold_output_and_decisions(world, control, tools):
    await tools.create(control, spec=spec())
    await tools.ready(control, "one")
    world.main().lines.put_nowait((1, b"hello\n"))
    world.main().lines.put_nowait((2, b"oops\n"))

    async def lines():
        answer = await control.GetSandboxLogs(
            pb.GetSandboxLogsRequest(**tools.in_default(sandbox="one", sources=["sandbox"]))
        )
        return [(line.level, line.message) for line in answer.logs]

    async def both():
        return await lines() == [("INFO", "hello"), ("WARN", "oops")]

    await tools.eventually(both)
    async with tools.refused(grpc.StatusCode.INVALID_ARGUMENT, "min_level"):
        await control.GetSandboxLogs(
            pb.GetSandboxLogsRequest(**tools.in_default(sandbox="one", min_level="loud"))
        )
