"""A real sandboxd process with its own state in a temporary folder, and an OpenShell Driver pair over its TLS link.

For tests only: the Harness is a few lines of Python that answer the authenticated WebSocket handshake and write down what they see.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oce.contracts.sandbox import EnvironmentLiteral, HarnessContext, HarnessStatusContext
from oce.domain.clock import SystemClock
from oce.domain.secret import SecretText
from oce.drivers.openshell.backend import parse_backend
from oce.drivers.openshell.credentials import GatewaySettings, OpenShellCredentialGateway
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.drivers.openshell.wire import Gateway
from oce.testing.openshell_bench import TOKEN, a_namespace, a_revision, requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.domain.resources import AgentRevision

HARNESS = r"""
import base64, hashlib, json, os, socketserver

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        lines = []
        while (line := self.rfile.readline().strip()):
            lines.append(line.decode())
        head = dict(line.split(": ", 1) for line in lines[1:])
        head = {key.lower(): value for key, value in head.items()}
        token = head.get("authorization", "").removeprefix("Bearer ")
        if hashlib.sha256(token.encode()).hexdigest() != os.environ["APP_TOKEN_SHA"]:
            self.wfile.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        elif "sec-websocket-key" in head:
            key = head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            proof = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n"
                "connection: Upgrade\r\nsec-websocket-accept: %s\r\n\r\n" % proof).encode())
        else:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

environment = dict(os.environ)
runtime = open(environment["OPENCLAW_PLUGIN_RUNTIME_MANIFEST"]).read()
with open(os.path.join(environment["OPENCLAW_WORKSPACE_DIR"], "seen.json"), "w") as out:
    json.dump({"environment": environment, "runtime": json.loads(runtime)}, out)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", int(environment["APP_SERVER_PORT"])), Handler).serve_forever()
"""


class Machine:
    """One sandboxd process; `agents` is the host folder that Sandboxes may mount from, `settings` more lines of `[gateway]`."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.agents = folder / "agents"
        workspace = self.agents / "a1" / "workspace"
        workspace.mkdir(parents=True)
        for path in (self.agents, self.agents / "a1", workspace):
            path.chmod(0o777)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = folder / "sandboxd.toml"
        self.config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:{self.port}"\nstate_dir = "{folder / "s"}"\n{settings}'
            f'[[mount_sources]]\nid = "agents"\npath = "{self.agents}"\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What sandboxd said so far."""
        return (self.folder / "log").read_text()

    def _run(self, command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "oce.sandboxd.main", command, "--config", str(self.config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def start(self) -> None:
        """Start and wait until it listens."""
        self.process = self._run("serve")
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def kill(self) -> None:
        """End the gateway process without a word; Sandboxes run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """End the gateway, every Sandbox and the egress process."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)
        self._run("stop-all").wait(30)

    def drivers(self) -> tuple[Gateway, OpenShellSandbox, OpenShellCredentialGateway]:
        """Return a new connection and a Driver pair that remember nothing."""
        keys = self.folder / "s" / "auth"
        backend = parse_backend(
            {
                "endpoint": f"https://127.0.0.1:{self.port}",
                "auth": {"mode": "bearerTokenFile", "path": str(keys / "control-plane.token")},
                "rootCertificatePath": str(keys / "ca.crt"),
            },
            {"sandbox": "box", "credential_gateway": "keys"},
        )
        gateway = Gateway(backend)
        box = OpenShellSandbox("box", parse_settings({"local": {}}), gateway, SystemClock())
        sources = OpenShellCredentialGateway(
            "keys", GatewaySettings(("/opt/oce/codex/bin/codex",)), gateway, "box"
        )
        return gateway, box, sources


@contextlib.contextmanager
def machine(settings: str = "") -> Iterator[Machine]:
    """Run sandboxd for the duration; afterwards nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="oce-sd-"))
    folder.chmod(0o755)
    made = Machine(folder, settings)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def harness_contexts(
    revision: AgentRevision | None = None,
) -> tuple[HarnessContext, HarnessStatusContext]:
    """Return the contexts of a revision whose Harness is the small responder."""
    wanted = requirements(
        command=("/usr/bin/python3", "-c", HARNESS),
        environment=(
            EnvironmentLiteral(name="APP_SERVER_PORT", value="18790"),
            EnvironmentLiteral(
                name="APP_TOKEN_SHA", value=hashlib.sha256(TOKEN.encode()).hexdigest()
            ),
        ),
    )
    owner = revision or a_revision()
    harness = HarnessContext(namespace=a_namespace(), revision=owner, requirements=wanted)
    status = HarnessStatusContext(
        namespace=a_namespace(),
        revision=owner,
        requirements=wanted,
        transport_token=SecretText(TOKEN),
    )
    return harness, status
