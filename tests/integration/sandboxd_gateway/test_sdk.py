"""The official SDK drives the gateway over mutual TLS."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from openshell import GatewayError, WorkspaceClient
from openshell._proto import openshell_pb2


async def test_sdk_workspaces(world):
    def drive():
        with world.sdk() as client:
            workspaces = WorkspaceClient.from_sandbox_client(client)
            assert workspaces.create("team").name == "team"
            assert [item.name for item in workspaces.list_all()] == ["default", "team"]
            client.create(workspace="team", name="one")
            with pytest.raises(GatewayError) as caught:
                workspaces.delete("team")
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            client.delete("one", workspace="team")
            client.wait_deleted("one", workspace="team", timeout_seconds=10)
            workspaces.delete("team")
            with pytest.raises(GatewayError) as caught:
                client.get("one", workspace="default")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    await asyncio.to_thread(drive)


async def test_sdk_creates_executes_lists_and_deletes(world, tools):
    def drive():
        with world.sdk() as client:
            assert client.health().status == openshell_pb2.SERVICE_STATUS_HEALTHY
            made = client.create(workspace="default", name="one", labels={"team": "a"})
            assert made.name == "one"
            client.wait_ready("one", workspace="default", timeout_seconds=10)
            result = client.exec("one", ["echo", "hi"], workspace="default", env={"CODE": "7"})
            assert result.exit_code == 7
            assert result.stdout == "/bin/bash -lc echo hi"
            assert [
                item.name for item in client.list_all(workspace="default", label_selector="team=a")
            ] == ["one"]
            assert client.list_all_for_all_workspaces(page_size=1)[0].id == made.id
            deleted = client.delete("one", workspace="default")
            assert deleted.sandbox_id == made.id
            client.wait_deleted("one", workspace="default", timeout_seconds=10)

    await asyncio.to_thread(drive)
    assert world.place.running == {}
    assert world.egress.served == {}
