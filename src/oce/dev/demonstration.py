"""`occ demo`: the whole product in a throw-away directory, told step by step.

With OPENAI_API_KEY it talks to the real endpoint. Without it, an offline model server on loopback answers as `api.openai.com`, which
sandboxd reaches by the operator's override: Sandbox, policy and credential swap are exactly those of production. Its last line is one
JSON object for machines.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oce.client.api import AGENT, CONFIGURATION, SECRET, SOURCE, Client
from oce.client.errors import ClientError
from oce.client.turns import Turns
from oce.dev.daemon import FAILURES, sentence
from oce.dev.files import write_private
from oce.dev.machine import Machine, MachinePlan, Step
from oce.dev.pki import ensure_identity
from oce.dev.programs import Program
from oce.dev.state import Ports, StateDirectory, free_ports
from oce.dev.traces import sandboxes_of, secret_in_reach, traces_of
from oce.domain.clock import SystemClock

if TYPE_CHECKING:
    from oce.client.context import Context

MODEL: Final = "gpt-5.1-codex"
ENDPOINT: Final = "api.openai.com"
DENIED_HOST: Final = "example.com"
_LOOK: Final = (
    "echo \"what the Sandbox sees of the key (':' shown as '|'):\"; tr ':' '|' < \"$CODEX_HOME/auth.json\"; echo; "
    f"echo 'asking https://{DENIED_HOST}/ :'; "
    '/usr/bin/python3 -I -c "import urllib.request,urllib.error; '
    f'exec(\'try:\\n print(urllib.request.urlopen(\\"https://{DENIED_HOST}/\\", timeout=10).status)\\n'
    "except urllib.error.HTTPError as e:\\n print(e.code, e.read().decode())\\n"
    "except Exception as e:\\n print(type(e).__name__, e)')\""
)
"""The tool's command. Colons are replaced because the egress process refuses a request whose body carries a placeholder, and what a
tool prints goes to the model."""


@dataclass(slots=True)
class _Report:
    ok: bool = False
    turns: int = 0
    deploy_ms: float = 0.0
    first_turn_ms: float = 0.0
    key_in_sandbox: bool = True
    denied: str = ""
    left_over: int = -1
    steps: dict[str, float] = field(default_factory=dict)
    sandboxes: frozenset[str] = frozenset()

    def line(self) -> str:
        """Return the last line of the demonstration."""
        return json.dumps(
            {
                "ok": self.ok,
                "turns": self.turns,
                "deploy_ms": round(self.deploy_ms),
                "first_turn_ms": round(self.first_turn_ms),
                "key_in_sandbox": self.key_in_sandbox,
                "denied": self.denied,
                "left_over": self.left_over,
            }
        )


def run(*, keep: bool) -> int:
    """Run the demonstration; return the exit status."""
    root = Path(tempfile.mkdtemp(prefix="oce-demo-"))
    report = _Report()
    try:
        asyncio.run(_demonstrate(root, report))
    except* (*FAILURES, ClientError, OSError, _DemoFailed) as group:
        for error in _leaves(group):
            told = isinstance(error, _DemoFailed | ClientError)
            click.echo(f"the demonstration failed: {error if told else sentence(error)}", err=True)
            if hint := getattr(error, "hint", ""):
                click.echo(hint, err=True)
        _show_logs(root)
    if keep:
        click.echo(f"kept {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    own = (os.getpid(), os.getppid())
    left = () if keep else traces_of(root, sandboxes=report.sandboxes, own_pids=own)
    for trace in left:
        click.echo(f"left over: {trace}", err=True)
    report.left_over = len(left)
    report.ok = report.turns == 2 and not report.key_in_sandbox and bool(report.denied) and not left  # noqa: PLR2004 - one text turn and one tool turn
    click.echo(report.line())
    return 0 if report.ok else 1


class _DemoFailed(Exception):  # noqa: N818 - ends the story
    """The product ran and answered something that the demonstration cannot accept."""


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _demonstrate(root: Path, report: _Report) -> None:
    root.chmod(0o711)
    state = StateDirectory(root / "state")
    state.prepare()
    ports = free_ports(root)
    real_key = os.environ.get("OPENAI_API_KEY", "")
    key = real_key or f"sk-demo-{secrets.token_hex(16)}"
    write_private(state.operator_file, _operator_settings(state, ports, offline=not real_key))
    plan = MachinePlan(
        state=state,
        ports=ports,
        context_name="demo",
        environment={**os.environ, "OCC_HOME": str(root / "contexts")},
    )
    click.echo("starting PostgreSQL, sandboxd, API, worker and Agent Gateway")
    async with Machine(plan, report=lambda step: _say(step, report)) as machine:
        if not real_key:
            write_private(state.keys / "model.key", key)
            await machine.keeper.start(_model_server(state, ports))
        await asyncio.to_thread(_story, machine.context, key, state, report)
        report.sandboxes = sandboxes_of(state.sandboxd)
    click.echo("stopped everything")


def _say(step: Step, report: _Report) -> None:
    report.steps[step.name] = step.milliseconds
    click.echo(f"  {step.name:<22} {step.milliseconds:7.0f} ms")


def _operator_settings(state: StateDirectory, ports: Ports, *, offline: bool) -> str:
    """Return `operator.toml` of a throw-away machine, which may reach the offline model as the real endpoint."""
    lines = ["durable = false"]
    if offline:
        lines += [
            "[[upstream]]",
            f'host = "{ENDPOINT}"',
            "port = 443",
            f'connect = "127.0.0.1:{ports.model}"',
            f"ca_file = {json.dumps(str(state.tls / 'ca.crt'))}",
        ]
    return "\n".join(lines) + "\n"


def _model_server(state: StateDirectory, ports: Ports) -> Program:
    identity = ensure_identity(state.tls, "model", (ENDPOINT,), SystemClock().now())
    ready_file = state.run / "model.ready"

    async def ready() -> bool:
        return ready_file.exists()

    return Program(
        name="model-server",
        command=[
            sys.executable,
            "-m",
            "oce.dev.model_server",
            "--listen",
            f"127.0.0.1:{ports.model}",
            "--cert",
            str(identity.certificate),
            "--key",
            str(identity.key),
            "--api-key-file",
            str(state.keys / "model.key"),
            "--ready-file",
            str(ready_file),
        ],
        log=state.logs / "model-server.log",
        ready=ready,
        pid_file=state.run / "model-server.pid",
    )


def _story(context: Context, key: str, state: StateDirectory, report: _Report) -> None:
    client, turns = Client(context), Turns(context)
    try:
        _tell(client, turns, key, state, report)
    finally:
        client.close()
        turns.close()


def _tell(client: Client, turns: Turns, key: str, state: StateDirectory, report: _Report) -> None:
    agent = _create(client, key)
    _deploy(client, agent, report)
    namespace = client.namespace()
    click.echo("\nturn 1: Say hello.")
    started = time.monotonic()
    thread, answer = _turn(turns, namespace, agent, "Say hello in one short sentence.", None)
    report.first_turn_ms = (time.monotonic() - started) * 1000
    click.echo(f"  {answer}")
    report.turns += 1
    click.echo("\nturn 2: a shell tool inside the Sandbox")
    _, answer = _turn(turns, namespace, agent, _tool_request(), thread)
    report.turns += 1
    report.key_in_sandbox = key in answer or bool(secret_in_reach(key, state.agents))
    report.denied = _denial(answer)
    if not report.denied:
        raise _DemoFailed(f"no denied connection was seen in: {answer[-400:]}")
    click.echo(f"\ndenied: {report.denied}")


def _tool_request() -> str:
    if os.environ.get("OPENAI_API_KEY"):
        return f"Run exactly this shell command and quote its whole output, nothing else: {_LOOK}"
    return f"run: {_LOOK}"


def _create(client: Client, key: str) -> str:
    for _ in range(600):
        if client.read(f"/namespaces/{client.namespace()}")["status"] == "ready":
            break
        time.sleep(0.05)
    secret = client.create(SECRET, {"name": "openai-key", "value": key})
    source = client.create(
        SOURCE,
        {"name": "openai", "type": "openai", "config": {}, "secrets": {"api_key": secret["ref"]}},
    )
    configuration = client.create(
        CONFIGURATION,
        {
            "kind": "agent",
            "values": {"agents": {"defaults": {"model": {"primary": f"openai/{MODEL}"}}}},
        },
    )
    agent = client.create(
        AGENT,
        {
            "name": "hello",
            "configurationId": configuration["id"],
            "executionMode": "dedicated",
            "credentialSources": [{"sourceId": source["id"]}],
            "harnessAuth": {"method": "credential_source", "sourceId": source["id"]},
        },
    )
    click.echo(
        f"\ncreated Secret, credential source, Configuration and Agent {agent['name']} ({agent['id']})"
    )
    return str(agent["id"])


def _deploy(client: Client, agent: str, report: _Report) -> None:
    started = time.monotonic()
    revision = client.deploy(agent)
    click.echo(f"deploying revision {revision['revision']}")
    last: dict[str, Any] = {}
    for event in client.deployment_events(agent, revision["id"]):
        last = event.data
        if (
            event.name == "step"
            and last.get("durationMs") is not None
            and last.get("outcome") != "started"
        ):
            click.echo(f"  {last.get('step', ''):<22} {last['durationMs']:7.0f} ms")
    report.deploy_ms = (time.monotonic() - started) * 1000
    view = client.read(f"{client.path_of(AGENT, agent)}/deployments/{revision['id']}")
    if view["status"] != "succeeded":
        error = view.get("error") or {}
        raise _DemoFailed(
            f"the deployment ended {view['status']}: {error.get('code')}: {error.get('message')} ({last})"
        )
    click.echo(f"serving after {report.deploy_ms:.0f} ms")


def _turn(
    turns: Turns, namespace: str, agent: str, text: str, thread: str | None
) -> tuple[str, str]:
    answer, pieces = "", []
    for event in turns.run(namespace, agent, text, thread):
        if event.name == "thread":
            thread = event.data["threadId"]
        elif event.name == "tool" and event.data.get("output"):
            pieces.append(str(event.data["output"]))
            click.echo("  | " + str(event.data["output"]).strip().replace("\n", "\n  | "))
        elif event.name == "completed":
            answer = str(event.data.get("text", ""))
    return thread or "", "\n".join([*pieces, answer])


def _denial(answer: str) -> str:
    """Return the sentence that explains the denied connection, out of the proxy's 403 document in the tool's output."""
    found = re.search(r'\{"error":"policy_denied".*\}', answer)
    if found is None:
        return ""
    document, _ = json.JSONDecoder().raw_decode(found[0])
    return f"{document['binary']} may not connect to {document['host']}:{document['port']}: {document['detail']}"


def _show_logs(root: Path) -> None:
    for log in sorted((root / "state" / "logs").glob("*.log")):
        text = log.read_text(errors="replace").strip()
        if text:
            click.echo(f"--- {log.name}\n{text[-1500:]}", err=True)
