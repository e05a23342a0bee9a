"""One real sandboxd with its own state in a temporary folder, and raw calls to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from openshell._proto import datamodel_pb2, openshell_pb2, openshell_pb2_grpc

from benchmarks.measure import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pb = openshell_pb2
SCOPE: dict[str, Any] = {"workspace_scope": datamodel_pb2.WorkspaceSelector(workspace="default")}
DOMAIN = "openshell.localhost"
CODEX_INSIDE = "/opt/oce/codex"


class Calls:
    """The control plane's calls to a sandboxd at a port, with the keys of its state directory."""

    def __init__(self, port: int, auth: Path) -> None:
        self.port = port
        self.ca = auth / "ca.crt"
        token = (auth / "control-plane.token").read_text().strip()
        self._metadata = (("authorization", f"Bearer {token}"),)
        credentials = grpc.ssl_channel_credentials(root_certificates=self.ca.read_bytes())
        self._channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
        self._stub = openshell_pb2_grpc.OpenShellStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, metadata=self._metadata, timeout=60)

    def later(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method).future(request, metadata=self._metadata, timeout=60)

    @staticmethod
    def create_request(name: str, command: Sequence[str], **fields: Any) -> Any:
        environment = fields.pop("environment", {})
        spec = pb.SandboxSpec(command=list(command), environment=environment)
        return pb.CreateSandboxRequest(name=name, spec=spec, **SCOPE, **fields)

    def phase(self, name: str) -> int:
        found = self.call("GetSandbox", pb.GetSandboxRequest(name=name, **SCOPE))
        return int(found.sandbox.status.phase)

    def wait_ready(self, name: str) -> None:
        """Return as soon as the gateway says READY: it tells, so that nobody burns its CPU by asking."""
        request = pb.WatchSandboxRequest(sandbox=name, follow_status=True, **SCOPE)
        events = self._stub.WatchSandbox(request, metadata=self._metadata, timeout=60)
        for event in events:
            if event.sandbox.status.phase == pb.SANDBOX_PHASE_ERROR:
                raise RuntimeError(f"{name} failed")
            if event.sandbox.status.phase == pb.SANDBOX_PHASE_READY:
                events.cancel()
                return
        raise RuntimeError(f"{name} went away")

    def ready_count(self) -> int:
        found = self.call("ListSandboxes", pb.ListSandboxesRequest(**SCOPE))
        return sum(item.status.phase == pb.SANDBOX_PHASE_READY for item in found.sandboxes)

    def delete(self, *names: str) -> None:
        """Delete Sandboxes and wait until they are gone."""
        for name in names:
            self.call("DeleteSandbox", pb.DeleteSandboxRequest(name=name, **SCOPE))
        until(lambda: all(self._absent(name) for name in names), pause=0.01)

    def _absent(self, name: str) -> bool:
        try:
            self.phase(name)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.NOT_FOUND)
        return False

    def service(self, sandbox: str, path: str, seconds: float = 30.0) -> None:
        """Ask an exposed service of a Sandbox until it answers 200."""
        context = ssl.create_default_context(cafile=str(self.ca))
        host = f"default--{sandbox}.{DOMAIN}"

        def connect() -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            raw = socket.create_connection(("127.0.0.1", self.port))
            connection.sock = context.wrap_socket(raw, server_hostname=host)
            return connection

        poll_http(connect, path, {"Host": host}, seconds)


def poll_http(connect: Any, path: str, headers: dict[str, str], seconds: float = 30.0) -> None:
    """Ask until the answer is 200, over one connection as long as it holds."""
    deadline = time.monotonic() + seconds
    connection = None
    try:
        while time.monotonic() < deadline:
            try:
                connection = connection or connect()
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    return
                if answer.will_close:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException):
                if connection is not None:
                    connection.close()
                connection = None
            time.sleep(0.003)
        raise TimeoutError(f"{path} was not 200 within {seconds:.0f} s")
    finally:
        if connection is not None:
            connection.close()


@contextlib.contextmanager
def folder(prefix: str = "oce-bench-") -> Iterator[Path]:
    """Yield a temporary folder that every uid may pass."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def codex_binary() -> Path:
    """Return the Codex binary of the locked wheel."""
    spec = find_spec("codex_cli_bin")
    if spec is None or spec.origin is None:
        raise RuntimeError("the Codex wheel is not installed (extra `codex`)")
    return Path(spec.origin).resolve().parent / "bin" / "codex"


def shown_codex(into: Path) -> Path:
    """Return a folder with `bin/codex` that every uid can read: the wheel's, or a link or copy of it."""
    found = codex_binary()
    if found.stat().st_mode & 0o004 and all(one.stat().st_mode & 0o001 for one in found.parents):
        return found.parent.parent
    target = into / "codex" / "bin" / "codex"
    target.parent.mkdir(parents=True)
    try:
        os.link(found, target)
    except OSError:
        shutil.copy2(found, target)
    target.chmod(0o755)
    return target.parent.parent


@contextlib.contextmanager
def sandboxd() -> Iterator[Calls]:
    """Run sandboxd; afterwards no Sandbox and no process of it is left."""
    with folder() as root:
        port = free_port()
        config = root / "sandboxd.toml"
        config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:{port}"\nstate_dir = "{root / "s"}"\n'
            f'[[confinement.read_only]]\nsource = "{shown_codex(root)}"\ntarget = "{CODEX_INSIDE}"\n'
        )

        def command(word: str) -> list[str]:
            return [sys.executable, "-m", "oce.sandboxd.main", word, "--config", str(config)]

        with (root / "log").open("wb") as log:
            process = subprocess.Popen(command("serve"), stdout=log, stderr=log)
        try:
            auth = root / "s" / "auth"
            until(lambda: listens(port) and (auth / "control-plane.token").exists())
            calls = Calls(port, auth)
            yield calls
            calls.close()
        finally:
            subprocess.run(command("stop-all"), capture_output=True, timeout=120, check=False)
            process.terminate()
            process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
