"""Workspaces, names, scopes, pages, selectors, mounts: the plain rules of the wire."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import struct_pb2
from openshell._proto import datamodel_pb2
from openshell._proto import openshell_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


async def test_a_workspace_is_deleted_only_when_empty(control, tools):
    await control.CreateWorkspace(pb.CreateWorkspaceRequest(name="team", labels={"a": "b"}))
    async with tools.refused(grpc.StatusCode.ALREADY_EXISTS):
        await control.CreateWorkspace(pb.CreateWorkspaceRequest(name="team"))
    scope = {"workspace_scope": datamodel_pb2.WorkspaceSelector(workspace="team"), "name": "one"}
    await control.CreateSandbox(pb.CreateSandboxRequest(**scope))
    async with tools.refused(PRECONDITION, "sandbox"):
        await control.DeleteWorkspace(pb.DeleteWorkspaceRequest(name="team"))
    async with tools.refused(PRECONDITION, "workspace 'team' is being deleted"):
        await control.CreateSandbox(pb.CreateSandboxRequest(**{**scope, "name": "two"}))
    found = await control.GetWorkspace(pb.GetWorkspaceRequest(name="team"))
    assert found.workspace.status.phase == datamodel_pb2.WORKSPACE_PHASE_TERMINATING
    await control.DeleteSandbox(pb.DeleteSandboxRequest(**scope))

    async def deleted():
        try:
            return await control.DeleteWorkspace(pb.DeleteWorkspaceRequest(name="team"))
        except grpc.aio.AioRpcError:
            return None

    assert (await tools.eventually(deleted)).outcome == pb.DELETION_OUTCOME_COMPLETED
    again = await control.DeleteWorkspace(
        pb.DeleteWorkspaceRequest(name="team", allow_missing=True)
    )
    assert again.outcome == pb.DELETION_OUTCOME_ALREADY_ABSENT
    async with tools.refused(PRECONDITION, "default"):
        await control.DeleteWorkspace(pb.DeleteWorkspaceRequest(name="default"))
    async with tools.refused(grpc.StatusCode.NOT_FOUND, "workspace 'team' not found"):
        await control.GetSandbox(pb.GetSandboxRequest(**scope))


@pytest.mark.parametrize("name", ["x" * 20, "a--b", "-a", "a-", "A", "a_b", "a" * 300, "a.b", "ä"])
async def test_names_that_cannot_be_part_of_a_host_name(control, tools, name):
    async with tools.refused(INVALID, "name"):
        await tools.create(control, name)


async def test_an_empty_name_is_generated_and_an_empty_scope_refused(control, tools):
    made = await tools.create(control, "")
    assert 3 <= len(made.sandbox.metadata.name) <= 19
    async with tools.refused(INVALID, "workspace"):
        await control.CreateSandbox(pb.CreateSandboxRequest(name="one"))
    everywhere = datamodel_pb2.WorkspaceSelector(all_workspaces=datamodel_pb2.AllWorkspaces())
    async with tools.refused(INVALID, "all_workspaces"):
        await control.GetSandbox(pb.GetSandboxRequest(workspace_scope=everywhere, name="one"))


async def test_pages_are_complete_disjoint_and_bound_to_their_request(control, tools):
    for index in range(5):
        await tools.create(control, f"s{index}", labels={"odd": str(index % 2)})
    seen, token = [], ""
    while True:
        page = await control.ListSandboxes(
            pb.ListSandboxesRequest(**tools.in_default(page_size=2, page_token=token))
        )
        assert len(page.sandboxes) <= 2
        seen += [item.metadata.name for item in page.sandboxes]
        token = page.next_page_token
        if not token:
            break
        async with tools.refused(INVALID, "page_token"):
            await control.ListSandboxes(
                pb.ListSandboxesRequest(**tools.in_default(page_size=3, page_token=token))
            )
    assert seen == ["s0", "s1", "s2", "s3", "s4"]
    odd = await control.ListSandboxes(
        pb.ListSandboxesRequest(**tools.in_default(label_selector="odd=1"))
    )
    assert [item.metadata.name for item in odd.sandboxes] == ["s1", "s3"]
    async with tools.refused(INVALID, "page_token"):
        await control.ListSandboxes(
            pb.ListSandboxesRequest(**tools.in_default(page_token="rubbish"))
        )


def driver(**local):
    config = struct_pb2.Struct()
    config.update({"local": local})
    return pb.SandboxSpec(template=pb.SandboxTemplate(driver_config=config))


async def test_mounts_of_configured_sources_only(world, tools, tmp_path):
    (tmp_path / "agents/agt_1/work").mkdir(parents=True)
    (tmp_path / "agents/leak").symlink_to("/etc")
    world.extra = {"mount_sources": [{"id": "agents", "path": str(tmp_path / "agents")}]}
    await world.reopen()
    async with world.channel() as channel:
        control = tools.Control(world, channel)
        mount = {"source_id": "agents", "sub_path": "agt_1/work", "mount_path": "/sandbox/data"}
        for change, words in (
            ({"source_id": "other"}, "source_id"),
            ({"sub_path": "../x"}, "sub_path"),
            ({"sub_path": "/etc"}, "sub_path"),
            ({"mount_path": "/etc/x"}, "mount_path"),
            ({"mount_path": "/sandbox/../etc"}, "mount_path"),
            ({"extra": 1}, "extra"),
        ):
            async with tools.refused(INVALID, words):
                await tools.create(control, spec=driver(mounts=[mount | change]))
        async with tools.refused(PRECONDITION, "leads out"):
            await tools.create(control, spec=driver(mounts=[mount | {"sub_path": "leak"}]))
        async with tools.refused(PRECONDITION, "no folder"):
            await tools.create(
                control, spec=driver(mounts=[mount | {"sub_path": "absent", "read_only": True}])
            )
        spec = driver(mounts=[mount], limits={"memory_bytes": 1 << 30, "cpu": 0.5})
        await tools.create(control, spec=spec)
        await tools.ready(control, "one")
        launch = world.main().launch
        assert launch.uid_key == "agents/agt_1"
        assert launch.limits.memory_bytes == 1 << 30
        assert launch.mounts[-1].source == tmp_path / "agents/agt_1/work"


async def test_other_drivers_and_images_are_refused_by_name(control, tools):
    config = struct_pb2.Struct()
    config.update({"kubernetes": {}})
    async with tools.refused(INVALID, "kubernetes"):
        await tools.create(
            control, spec=pb.SandboxSpec(template=pb.SandboxTemplate(driver_config=config))
        )
    async with tools.refused(PRECONDITION, "image"):
        await tools.create(
            control, spec=pb.SandboxSpec(template=pb.SandboxTemplate(image="python:3.12"))
        )


async def test_reserved_environment_and_exec_limits(control, tools):
    async with tools.refused(INVALID, "OPENSHELL_"):
        await tools.create(control, spec=pb.SandboxSpec(environment={"OPENSHELL_X": "1"}))
    await tools.create(control)
    await tools.ready(control, "one")
    for fields, words in (
        ({}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": ["a"], "workdir": "relative"}, "workdir"),
        ({"command": ["a"], "environment": {"OPENSHELL_X": "1"}}, "OPENSHELL_"),
    ):
        async with tools.refused(INVALID, words):
            await control.ExecSandbox(
                pb.ExecSandboxRequest(**tools.in_default(sandbox="one", **fields))
            ).read()
    async with tools.refused(grpc.StatusCode.NOT_FOUND, "sandbox"):
        await control.ExecSandbox(
            pb.ExecSandboxRequest(**tools.in_default(sandbox="two", command=["a"]))
        ).read()
