"""The egress process as the gateway meets it: started, asked, killed, started again."""

import asyncio
import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from oce.sandboxd.egress.client import UnixEgressClient
from oce.sandboxd.egress.launch import ensure_egress
from oce.sandboxd.egress.model import EgressError, NotInstalledError
from oce.testing.egress_rig import Inside, ScriptedUpstream, TestAuthority, configuration
from oce.testing.egress_served import (
    API,
    PLACEHOLDER,
    SANDBOX,
    SECRET,
    api_endpoint,
    configured,
    policy_of,
)

pytestmark = pytest.mark.sandbox
CURL = "/usr/bin/curl"


async def gone(pid):
    """Wait until it has ended and asyncio has collected its status, or its handle complains later."""
    async with asyncio.timeout(10):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240 - the kernel offers no event for a stranger
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)


class Process:
    def __init__(self, directory, config):
        self.socket = directory / "egress.sock"
        self.state = directory / "egress"
        self.config = config
        self.client = UnixEgressClient(self.socket)

    async def start(self):
        return await ensure_egress(self.socket, self.state, self.config)


@pytest.fixture
async def process(tmp_path):
    authority = TestAuthority(tmp_path)
    async with ScriptedUpstream(authority.context(API)) as upstream:
        config = tmp_path / "sandboxd.toml"
        config.write_text(configuration([(API, 443, upstream.port, authority.file)]))
        made = Process(tmp_path, config)
        made.upstream = upstream
        try:
            yield made
        finally:
            try:
                pid = await made.client.ping()
                await made.client.shutdown()
                await gone(pid)
            except ConnectionError:
                pass
            await made.client.close()


async def test_trust_and_values_survive_a_kill_and_the_backlog_waits(process, tmp_path):
    client = process.client
    with pytest.raises(ConnectionError):
        await client.ping()
    first = await process.start()
    assert await process.start() == first
    assert stat.S_IMODE(process.socket.stat().st_mode) == 0o600
    certificate = await client.certificate(SANDBOX)
    assert b"PRIVATE" not in certificate
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(certificate)
    await client.put_credentials("p1", 3, {"OPENAI_API_KEY": SECRET})
    await client.put_credentials("p1", 2, {"OPENAI_API_KEY": "older"})
    async with Inside(tmp_path) as inside:
        sandbox = configured(policy_of(api_endpoint(), binaries=(CURL,)))
        await client.install(sandbox, inside.descriptors())
        assert await client.installed() == {SANDBOX: 1}

        def call():
            header = f"Authorization: Bearer {PLACEHOLDER}"
            return inside.run(
                CURL, "-sS", "--cacert", str(trusted), "-H", header, f"https://{API}/v1/x"
            )

        assert (await call()).out == "ok"
        os.kill(first, signal.SIGKILL)
        await gone(first)
        waiting = asyncio.create_task(call())
        assert await process.start() != first
        assert await client.installed() == {}
        assert await client.credential_versions() == {"p1": 3}
        with pytest.raises(NotInstalledError):
            await client.update(sandbox)
        assert await client.certificate(SANDBOX) == certificate
        await client.install(sandbox, inside.descriptors())
        # The name server was away as well; curl asks again.
        ran = await waiting
        assert ran.out == "ok", ran
        assert [s.all("authorization") for s in process.upstream.seen] == [[f"Bearer {SECRET}"]] * 2
        await client.remove(SANDBOX)
        await client.remove(SANDBOX)
        assert await client.installed() == {}
    for file in process.state.rglob("*"):
        assert SECRET.encode() not in (file.read_bytes() if file.is_file() else b"")
        assert stat.S_IMODE(file.stat().st_mode) in (0o600, 0o700), file


async def test_decisions_are_streamed_and_a_refused_request_names_no_value(process, tmp_path):
    await process.start()
    client = process.client
    stream = client.decisions()
    async with Inside(tmp_path) as inside:
        coming = asyncio.create_task(anext(stream))
        await client.certificate(SANDBOX)
        await client.install(configured(policy_of(api_endpoint())), inside.descriptors())
        ran = await inside.run(CURL, "-sk", "https://evil.example/")
        assert json.loads(ran.out)["error"] == "policy_denied"
        async with asyncio.timeout(5):
            told = await coming
            while told.activity != "NET:OPEN":
                told = await anext(stream)
        assert (told.allowed, told.host, told.port) == (False, "evil.example", 443)
        assert told.sandbox_id == SANDBOX
        with pytest.raises(EgressError) as caught:
            await client.certificate("../escape")
        assert "escape" not in str(caught.value)
    await stream.aclose()


async def test_a_second_process_on_the_same_state_gives_up(process):
    first = await process.start()
    other = await asyncio.create_subprocess_exec(
        os.sys.executable, "-m", "oce.sandboxd.egress",
        "--socket", str(process.socket.with_name("other.sock")), "--state-dir", str(process.state),
        env={"PYTHONPATH": os.pathsep.join(os.sys.path)}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await other.communicate()
    assert other.returncode == 3, said
    assert await process.client.ping() == first


async def test_a_stranger_to_the_protocol_is_let_go_of(process):
    await process.start()
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)  # noqa: FBT003 - takes no keyword
    await asyncio.get_running_loop().sock_connect(sock, str(process.socket))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(b"\xff\xff\xff\xff\x00GET / HTTP/1.1")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert await process.client.ping()
