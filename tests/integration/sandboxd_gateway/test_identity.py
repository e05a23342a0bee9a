"""Every caller is authenticated; what is not implemented says its name."""

from __future__ import annotations

import asyncio
import ssl

import grpc
import pytest
from openshell import SandboxClient, TlsConfig
from openshell._proto import openshell_pb2 as pb
from openshell._proto import openshell_pb2_grpc

from oce.sandboxd.state.keys import ensure_keys

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Basic {token}"),),
        (("authorization", "Bearer {token}x"),),
        (("authorization", "Bearer {token}"), ("authorization", "Bearer {token}")),
    ],
)
async def test_without_the_exact_token_or_a_certificate_only_health_answers(world, tools, metadata):
    token = world.keys.control_plane_token()
    shown = tuple((key, value.replace("{token}", token)) for key, value in metadata)
    async with world.channel() as channel:
        stub = openshell_pb2_grpc.OpenShellStub(channel)
        assert (await stub.Health(pb.HealthRequest())).version == "0.1.5"
        async with tools.refused(UNAUTHENTICATED):
            await stub.GetCurrentUser(pb.GetCurrentUserRequest(), metadata=shown)
        async with tools.refused(UNAUTHENTICATED):
            await stub.IssueSandboxToken(pb.IssueSandboxTokenRequest(), metadata=shown)


async def test_the_two_identities(world, control):
    user = await control.GetCurrentUser(pb.GetCurrentUserRequest())
    assert (user.subject, user.identity_provider) == ("control-plane", "token")
    async with world.channel(certificate=True) as channel:
        stub = openshell_pb2_grpc.OpenShellStub(channel)
        user = await stub.GetCurrentUser(pb.GetCurrentUserRequest())
        assert (user.subject, user.identity_provider) == ("local-user", "mtls")
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetCurrentUser(
                pb.GetCurrentUserRequest(), metadata=(("authorization", "Bearer wrong"),)
            )


async def test_a_stranger_s_certificate_and_the_server_s_own_do_not_open_the_door(world, tmp_path):
    stranger = ensure_keys(tmp_path, "openshell.localhost")
    keys = world.keys

    def attempt(certificate, key):
        tls = TlsConfig(keys.ca, certificate, key)
        with SandboxClient(f"127.0.0.1:{world.port}", tls=tls, timeout=3) as client:
            client.list_all(workspace="default")

    for pair in (
        (stranger.client_certificate, stranger.client_key),
        (keys.server_certificate, keys.server_key),
    ):
        with pytest.raises(grpc.RpcError):
            await asyncio.to_thread(attempt, *pair)


async def test_plain_text_is_not_spoken(world):
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(4), 5)
    writer.close()


async def test_private_files_are_private(world):
    keys = world.keys
    for path in (keys.token, keys.client_key, keys.server_key, keys.fingerprint_key):
        assert path.stat().st_mode & 0o777 == 0o600
    for path in world.state.glob("gateway.db*"):
        assert path.stat().st_mode & 0o777 == 0o600
    for folder in (keys.folder, world.state / "run", world.state / "egress"):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_every_other_method_answers_unimplemented_with_its_name(control, world, tools):
    service = pb.DESCRIPTOR.services_by_name["OpenShell"]
    known = world.gateway.server.dispatcher.methods
    missing = [
        method
        for method in service.methods
        if method.name not in known and not method.client_streaming
    ]
    assert {"CreateSshSession", "EditDraftChunk", "IssueSandboxToken"} <= {m.name for m in missing}
    for method in missing:
        request = getattr(pb, method.input_type.name, None)
        if request is None:
            continue
        async with tools.refused(grpc.StatusCode.UNIMPLEMENTED, method.name):
            call = getattr(control, method.name)(request())
            if method.server_streaming:
                await call.read()
            else:
                await call
    stream = control.ForwardTcp(iter([pb.TcpForwardFrame()]))
    async with tools.refused(grpc.StatusCode.UNIMPLEMENTED, "ForwardTcp"):
        await stream.read()


async def test_healthz_over_http(world):
    context = ssl.create_default_context(cafile=world.keys.ca)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.port, ssl=context, server_hostname="localhost"
    )
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    writer.close()
