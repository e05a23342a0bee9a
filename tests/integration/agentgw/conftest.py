"""A gateway in this process, in front of a scripted Harness or a real Codex, with an API and a model server beside it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import ipaddress
import json
import os
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import codex_cli_bin
import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from oce.agentgw.config import GatewayConfig
from oce.agentgw.main import serve
from oce.dev.model_server import ModelServer, server_context, start
from oce.harness import install

NS = "ns_00000000-0000-4000-8000-000000000001"
AGENT = "agt_00000000-0000-4000-8000-000000000001"
OTHER_AGENT = "agt_00000000-0000-4000-8000-000000000002"
GOOD_KEY, WEAK_KEY = "key-good-7f3a", "key-weak-91bc"
TOKEN = "transport-token-5d1e"
API_TOKEN = "internal-token-aa02"
MODEL_KEY = "sk-model-key-c0de"
PYTHON = os.path.realpath(sys.executable)
CODEX = str(Path(codex_cli_bin.__file__).parent / "bin" / "codex")
HOST = "w--s.openshell.localhost"


@dataclass
class Authority:
    """A CA and one leaf for every local name, as files."""

    ca: Path
    cert: Path
    key: Path


def _authority(folder: Path) -> Authority:
    now = dt.datetime.now(dt.UTC)
    ca_key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    leaf_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])

    def build(subject, key, extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(ca_key, hashes.SHA256())

    usage = dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "encipher_only", "decipher_only"),
        ),
        False,
    )
    ca = build(
        ca_name,
        ca_key,
        [
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
        ],
    )
    names = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("localhost"),
        x509.DNSName("*.openshell.localhost"),
    ]
    leaf = build(
        leaf_name,
        leaf_key,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.SubjectAlternativeName(names), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
        ],
    )
    found = Authority(folder / "ca.pem", folder / "leaf.pem", folder / "leaf.key")
    found.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    found.cert.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(
        leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return found


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return _authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def until():
    """Poll a condition; fail when it does not hold in time."""

    async def wait(condition, seconds=15.0):
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, "the condition did not hold in time"
            await asyncio.sleep(0.01)

    return wait


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@dataclass
class FakeApi:
    """The API's private listener: knows two keys and one Agent; can be taken away."""

    port: int = 0
    asked: list = field(default_factory=list)
    server: asyncio.Server | None = None

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()
        await self.server.wait_closed()

    def _decide(self, body):
        if body["apiKey"] not in {GOOD_KEY, WEAK_KEY}:
            return {"allowed": False, "status": 401, "code": "UNAUTHENTICATED"}
        if body["apiKey"] == WEAK_KEY:
            return {"allowed": False, "status": 403, "code": "FORBIDDEN"}
        agents = {AGENT: AGENT, "helper": AGENT, OTHER_AGENT: OTHER_AGENT}
        if body["namespace"] not in {NS, "default"} or body["agent"] not in agents:
            return {"allowed": False, "status": 404, "code": "NOT_FOUND"}
        return {
            "allowed": True,
            "principalId": "spn_1",
            "namespaceId": NS,
            "agentId": agents[body["agent"]],
        }

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        status = 200 if f"authorization: bearer {API_TOKEN}" in head else 401
        self.asked.append(body)
        content = json.dumps({"data": self._decide(body)}).encode()
        writer.write(
            f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def api():
    found = FakeApi()
    await found.start()
    yield found
    await found.stop()


class ScriptedHarness:
    """Speaks just enough JSON-RPC: a turn runs until the test finishes it. Each connection is recorded."""

    def __init__(self, name):
        self.name = name
        self.requests = []
        self.received = []
        self.sockets = set()
        self.starting = []
        """Statuses that the provider answers first, as long as nothing listens behind it."""

    async def start(self, authority):
        context = server_context(authority.cert, authority.key)
        self.server = await websockets.serve(
            self._serve, "127.0.0.1", 0, ssl=context, compression=None, process_request=self._check
        )
        self.port = self.server.sockets[0].getsockname()[1]

    def _check(self, connection, request):
        self.requests.append(request)
        if self.starting:
            return connection.respond(self.starting.pop(0), "not yet")
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return connection.respond(401, "no")
        return None

    async def _serve(self, connection):
        self.sockets.add(connection)
        try:
            async for text in connection:
                message = json.loads(text)
                self.received.append(message)
                if message.get("method") == "turn/start":
                    turn = {"id": f"turn-{message['id']}", "status": "inProgress"}
                    await connection.send(
                        json.dumps({"id": message["id"], "result": {"turn": turn}})
                    )
                    params = {"threadId": "t", "turn": turn}
                    await connection.send(json.dumps({"method": "turn/started", "params": params}))
                elif message.get("method") == "who":
                    await connection.send(json.dumps({"id": message["id"], "result": self.name}))
        finally:
            self.sockets.discard(connection)

    async def tell(self, message):
        for each in list(self.sockets):
            await each.send(json.dumps(message))

    async def finish(self, turn):
        await self.tell(
            {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": turn}}}
        )

    async def stop(self):
        self.server.close()
        await self.server.wait_closed()


@pytest.fixture
async def harnesses(authority):
    found = [ScriptedHarness("first"), ScriptedHarness("second")]
    for each in found:
        await each.start(authority)
    yield found
    for each in found:
        await each.stop()


class Gateway:
    """A running gateway and the hands of Compute: route documents and the control socket."""

    def __init__(self, folder, authority, api, settings):
        self.folder = folder
        self.authority = authority
        self.routes = folder / "routes"
        self.routes.mkdir()
        (folder / "token").write_text(API_TOKEN)
        self.config = GatewayConfig(
            **{
                "listen": "127.0.0.1:0",
                "tls_cert": authority.cert,
                "tls_key": authority.key,
                "routes_dir": self.routes,
                "control_socket": folder / "ctl",
                "api_url": f"http://127.0.0.1:{api.port}",
                "api_token_file": folder / "token",
                "start_seconds": 0.1,
                **settings,
            }
        )
        self.stop_event = asyncio.Event()
        self.address = ""
        self.generation = 0
        self.client_context = ssl.create_default_context(cafile=str(authority.ca))

    async def start(self):
        started = asyncio.Event()

        async def ready(address):
            self.address = address
            started.set()

        self.task = asyncio.create_task(serve(self.config, stop=self.stop_event, ready=ready))
        await asyncio.wait(
            {self.task, asyncio.create_task(started.wait())}, return_when="FIRST_COMPLETED"
        )

    async def stop(self):
        self.stop_event.set()
        await self.task

    def route(self, port, revision="rev_1", *, agent=AGENT, drain=5, token=TOKEN, bundle=None):
        """Write a route document; port None fails closed."""
        self.generation += 1
        document = {
            "version": 1,
            "namespaceId": NS,
            "namespaceName": "default",
            "agentId": agent,
            "agentName": "helper",
            "generation": self.generation,
            "revisionId": None if port is None else revision,
            "target": None if port is None else f"wss://{HOST}:{port}/",
            "connect": None if port is None else f"127.0.0.1:{port}",
            "caFile": None,
            "caBundle": bundle or self.authority.ca.read_text(),
            "transportToken": token,
            "drainSeconds": drain,
        }
        path = self.routes / f"{agent}.json"
        path.with_suffix(".new").write_text(json.dumps(document))
        path.with_suffix(".new").replace(path)

    def connect(self, path=f"/namespaces/{NS}/agents/{AGENT}", headers=None):
        headers = {"x-api-key": GOOD_KEY} if headers is None else headers
        return websockets.connect(
            f"wss://{self.address}{path}",
            ssl=self.client_context,
            server_hostname="localhost",
            additional_headers=headers,
            proxy=None,
            max_size=None,
        )

    async def status(self, agent=AGENT):
        reader, writer = await asyncio.open_unix_connection(self.config.control_socket)
        writer.write(json.dumps({"op": "status", "agentId": agent}).encode() + b"\n")
        answer = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.fixture
async def gateways(tmp_path, authority, api):
    """Start gateways with given settings; they end with the test."""
    running = []

    async def begin(**settings):
        folder = tmp_path / f"gw{len(running)}"
        folder.mkdir()
        found = Gateway(folder, authority, api, settings)
        running.append(found)
        await found.start()
        return found

    yield begin
    for each in running:
        await each.stop()


@pytest.fixture
async def gateway(gateways):
    return await gateways()


@pytest.fixture
async def model(authority):
    """The offline model server, in this process; ``.port`` and ``.stats``."""
    found = ModelServer(api_key=MODEL_KEY)
    context = server_context(authority.cert, authority.key)
    listener = await start(found, host="127.0.0.1", port=0, context=context)
    found.port = listener.sockets[0].getsockname()[1]
    yield found
    listener.close()


class CodexHarness:
    """The real Harness program as a process of its own."""

    def __init__(self, folder, environment, program):
        self.folder = folder
        self.environment = environment
        self.program = program
        self.port = int(environment["APP_SERVER_PORT"])
        self.process = None
        self.log = folder / "log"

    async def start(self):
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                PYTHON,
                "-I",
                "-S",
                str(self.program),
                env=self.environment,
                stdout=log,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
            )
        return self

    def events(self, name):
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if line.get("event") == name]

    def listening(self):
        phases = self.events("runtime.startup_phase")
        return [line for line in phases if line["phase"] == "app-server-listening"]

    async def stop(self):
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@pytest.fixture
async def codex(tmp_path, authority, model):
    """Start Harness programs with a real Codex; environment entries can be overridden, None removes one."""
    program = install(tmp_path / "programs")
    sessions, workspace = tmp_path / "sessions", tmp_path / "workspace"
    for each in (sessions, workspace, tmp_path / "home"):
        each.mkdir()
    running = []

    async def begin(**overrides):
        folder = tmp_path / f"harness{len(running)}"
        folder.mkdir()
        url = f"https://127.0.0.1:{model.port}/v1"
        (folder / "config.toml").write_text(
            f'model = "gpt-5"\nopenai_base_url = "{url}"\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\ncli_auth_credentials_store = "file"\n'
            "[features]\nplugins = false\napps = false\napi_key_model_discovery = false\n"
            "[analytics]\nenabled = false\n"
        )
        (folder / "runtime.json").write_text(json.dumps({"kind": "codex", "openaiBaseUrl": url}))
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "SSL_CERT_FILE": str(authority.ca),
            "APP_SERVER_PORT": str(free_port()),
            "APP_TOKEN_SHA": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "CODEX_BINARY": CODEX,
            "CODEX_HOME": str(folder / ".codex"),
            "CODEX_LOGIN_MODE": "api_key",
            "OPENAI_API_KEY": MODEL_KEY,
            "OPENCLAW_HARNESS_MODEL": "gpt-5",
            "OPENCLAW_WORKSPACE_DIR": str(workspace),
            "OPENCLAW_PLUGIN_CODEX_CONFIG_TOML": str(folder / "config.toml"),
            "OPENCLAW_PLUGIN_RUNTIME_MANIFEST": str(folder / "runtime.json"),
            "OCE_CODEX_SESSIONS_DIR": str(sessions),
            **overrides,
        }
        kept = {key: value for key, value in environment.items() if value is not None}
        found = CodexHarness(folder, kept, program)
        running.append(found)
        return await found.start()

    yield begin
    for each in running:
        await each.stop()


@pytest.fixture
async def tls_front(authority):
    """Put TLS in front of a clear-text port, as the OpenShell gateway does; returns the TLS port."""
    servers = []

    async def begin(port):
        async def copy(reader, writer):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def serve_one(reader, writer):
            upstream = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

        context = server_context(authority.cert, authority.key)
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=context)
        servers.append(server)
        return server.sockets[0].getsockname()[1]

    yield begin
    for each in servers:
        each.close()
