"""The request ledger over the wire: a mutation with a request id happens at most once."""

from __future__ import annotations

import asyncio
import sqlite3

import grpc
from openshell._proto import datamodel_pb2
from openshell._proto import openshell_pb2 as pb

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def creation(tools, request_id, name="one", **fields):
    return pb.CreateSandboxRequest(**tools.in_default(name=name, request_id=request_id, **fields))


async def test_a_lost_answer_is_replayed_with_the_same_sandbox(world, control, tools):
    exposures = [pb.SandboxServiceExposure(target_port=8080, authorization_mode=2)]
    request = creation(tools, tools.new_id(), service_exposures=exposures)
    first = await control.CreateSandbox(request)
    await tools.ready(control, "one")
    again = control.CreateSandbox(request)
    assert dict(await again.initial_metadata())["openshell-replayed"] == "true"
    response = await again
    assert response.sandbox.metadata.id == first.sandbox.metadata.id
    assert response.sandbox.status.phase == pb.SANDBOX_PHASE_READY
    assert dict(response.service_urls) == dict(first.service_urls)
    assert len(world.place.started) == 1


async def test_map_order_and_case_of_the_id_do_not_matter_but_the_payload_does(control, tools):
    request_id = tools.new_id()
    await control.CreateSandbox(creation(tools, request_id, labels={"a": "1", "b": "2"}))
    again = creation(tools, request_id.upper(), labels={"b": "2", "a": "1"})
    await control.CreateSandbox(again)
    async with tools.refused(PRECONDITION) as caught:
        await control.CreateSandbox(creation(tools, request_id, labels={"a": "2"}))
    assert tools.reason(caught.value) == "REQUEST_ID_PAYLOAD_MISMATCH"


async def test_a_refused_request_frees_its_id(control, tools):
    request_id = tools.new_id()
    spec = pb.SandboxSpec(providers=["absent"])
    async with tools.refused(PRECONDITION, "provider 'absent' not found"):
        await control.CreateSandbox(creation(tools, request_id, spec=spec))
    await control.CreateSandbox(creation(tools, request_id))


async def test_a_malformed_id_is_invalid(control, tools):
    for wrong in ("1", tools.new_id().replace("-", ""), "00000000-0000-0000-0000-000000000000"):
        async with tools.refused(grpc.StatusCode.INVALID_ARGUMENT, "request_id"):
            await control.CreateSandbox(creation(tools, wrong))


async def test_a_deletion_replays_its_outcome_and_a_lost_creation_cannot(control, tools):
    creating, deleting = tools.new_id(), tools.new_id()
    await control.CreateSandbox(creation(tools, creating))
    deletion = pb.DeleteSandboxRequest(**tools.in_default(name="one", request_id=deleting))
    first = await control.DeleteSandbox(deletion)
    assert first.outcome == pb.DELETION_OUTCOME_COMPLETED
    assert await control.DeleteSandbox(deletion) == first
    async with tools.refused(PRECONDITION) as caught:
        await control.CreateSandbox(creation(tools, creating))
    assert tools.reason(caught.value) == "REQUEST_REPLAY_UNAVAILABLE"


async def test_a_changed_object_cannot_be_replayed(control, tools):
    await control.ImportProviderProfiles(
        pb.ImportProviderProfilesRequest(
            **tools.in_default(profiles=[{"profile": pb.ProviderProfile(id="files")}])
        )
    )
    request_id = tools.new_id()
    provider = datamodel_pb2.Provider(
        metadata=datamodel_pb2.ObjectMeta(name="p"), type="files", config={"a": "1"}
    )
    request = pb.CreateProviderRequest(**tools.in_default(provider=provider, request_id=request_id))
    made = await control.CreateProvider(request)
    assert (await control.CreateProvider(request)).provider == made.provider
    provider.config["a"] = "2"
    await control.UpdateProvider(pb.UpdateProviderRequest(**tools.in_default(provider=provider)))
    async with tools.refused(PRECONDITION) as caught:
        await control.CreateProvider(request)
    assert tools.reason(caught.value) == "REQUEST_REPLAY_UNAVAILABLE"


async def test_a_crash_frees_what_certainly_did_not_happen_and_keeps_the_rest_uncertain(
    world, tools
):
    ids = {name: tools.new_id() for name in ("CreateWorkspace", "UpdateProvider")}
    workspace = pb.CreateWorkspaceRequest(name="team", request_id=ids["CreateWorkspace"])
    update = pb.UpdateProviderRequest(
        **tools.in_default(
            provider=datamodel_pb2.Provider(metadata=datamodel_pb2.ObjectMeta(name="p")),
            request_id=ids["UpdateProvider"],
        )
    )
    async with world.channel() as channel:
        control = tools.Control(world, channel)
        await control.CreateWorkspace(workspace)
        with_profile = pb.ImportProviderProfilesRequest(
            **tools.in_default(profiles=[{"profile": pb.ProviderProfile(id="files")}])
        )
        await control.ImportProviderProfiles(with_profile)
        provider = datamodel_pb2.Provider(metadata=datamodel_pb2.ObjectMeta(name="p"), type="files")
        await control.CreateProvider(
            pb.CreateProviderRequest(**tools.in_default(provider=provider))
        )
        await control.UpdateProvider(update)
    await world.close()
    # The state that a kill between admission and commit leaves: the rows say running.
    with sqlite3.connect(world.state / "gateway.db") as database:
        database.execute("UPDATE requests SET state='running', receipt=x''")
        database.execute("DELETE FROM objects WHERE kind='workspace' AND name='team'")
    database.close()
    await world.open()
    async with world.channel() as channel:
        control = tools.Control(world, channel)
        await control.CreateWorkspace(workspace)
        async with tools.refused(PRECONDITION) as caught:
            await control.UpdateProvider(update)
        assert tools.reason(caught.value) == "REQUEST_OUTCOME_UNCERTAIN"


async def test_parallel_retries_of_one_request_make_one_sandbox(world, control, tools):
    request = creation(tools, tools.new_id(), name="")
    answers = await asyncio.gather(*(control.CreateSandbox(request) for _ in range(8)))
    assert len({answer.sandbox.metadata.id for answer in answers}) == 1


async def test_a_cancelled_caller_does_not_stop_the_creation(world, control, tools):
    request = creation(tools, tools.new_id())
    call = control.CreateSandbox(request)
    await asyncio.sleep(0)
    call.cancel()

    async def settled():
        try:
            return await control.CreateSandbox(request)
        except grpc.aio.AioRpcError:
            return None

    await tools.eventually(settled)
    await tools.ready(control, "one")
    assert len(world.place.started) == 1


async def test_the_same_id_of_another_caller_is_another_request(world, control, tools):
    request = creation(tools, tools.new_id(), name="")
    one = await control.CreateSandbox(request)
    async with world.channel(certificate=True) as channel:
        stub = pb_stub(channel)
        other = await stub(request)
    assert other.sandbox.metadata.id != one.sandbox.metadata.id


async def test_a_command_runs_once_and_its_output_is_not_kept(control, tools):
    await tools.create(control)
    await tools.ready(control, "one")
    request = pb.ExecSandboxRequest(
        **tools.in_default(sandbox="one", command=["a"], request_id=tools.new_id())
    )
    events = [event async for event in control.ExecSandbox(request)]
    assert events[-1].WhichOneof("payload") == "exit"
    async with tools.refused(PRECONDITION) as caught:
        await control.ExecSandbox(request).read()
    assert tools.reason(caught.value) == "REQUEST_STREAM_UNAVAILABLE"
    refused = pb.ExecSandboxRequest(
        **tools.in_default(sandbox="two", command=["a"], request_id=tools.new_id())
    )
    for _ in range(2):
        async with tools.refused(grpc.StatusCode.NOT_FOUND):
            await control.ExecSandbox(refused).read()


def pb_stub(channel):
    return channel.unary_unary(
        "/openshell.v1.OpenShell/CreateSandbox",
        request_serializer=pb.CreateSandboxRequest.SerializeToString,
        response_deserializer=pb.SandboxResponse.FromString,
    )
