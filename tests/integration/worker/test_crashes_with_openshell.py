"""The crash table of the whole worker: engine, passes, PostgreSQL, local Compute and the OpenShell Drivers over a scripted gateway.

For every gateway call of every kind of work the process dies before it, dies after it, its answer is lost or it never arrives; then a
new process does everything again from the database. At rest there is what the undisturbed run leaves, and no secret was sent or logged.
The table is generated from the calls actually made, so that a new call cannot escape it.
"""

import base64
import contextlib
import dataclasses
import hashlib
import json
import logging
import random
import re

import pytest
import structlog
from google.protobuf.json_format import MessageToDict
from psycopg.types.json import Jsonb

from oce.contracts.drivers import abilities_of
from oce.contracts.sandbox import NamespaceContext, PhysicalNamespace
from oce.domain import names
from oce.domain.clock import SystemClock
from oce.domain.secret import SecretText
from oce.drivers.local.compute import LocalCompute
from oce.drivers.local.secrets import LocalSecretDriver
from oce.drivers.openshell.credentials import GatewaySettings, OpenShellCredentialGateway
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.drivers.openshell.wire import Gateway
from oce.testing.openshell_bench import CANARY, DOCUMENT, a_backend, a_source
from oce.testing.openshell_faults import Died, DyingGateway, StormyGateway
from oce.testing.scripted_gateway import Answer, ScriptedGateway, lost

pytestmark = pytest.mark.postgres

FAULTS = ("dies before", "dies after", "answer lost", "never arrived")
BOX, KEYS = "sandbox-memory", "credentials-memory"
"""The Driver ids that the seeded rows name."""
MOST_PASSES = 8
"""More passes than this after one fault is not convergence."""
HELD = {"component": "agent", "check": "login", "checkedAt": "2026-01-02T03:04:05Z"}
ROWS = {
    "namespace": "SELECT status, deleted_at IS NOT NULL AS buried FROM occ.namespaces WHERE id = %(id)s",
    "agent": "SELECT status, desired_runtime_state, active_revision_id FROM occ.agents WHERE namespace_id = %(id)s",
    "revisions": "SELECT id, retired_at IS NOT NULL AS retired FROM occ.agent_revisions WHERE namespace_id = %(id)s"
    " ORDER BY revision_number",
    "changes": "SELECT action, outcome, resource_id FROM occ.audit_events WHERE namespace_id = %(id)s"
    " AND action LIKE '%%.lifecycle.%%' ORDER BY seq",
    "workspace": "SELECT id, files, completed_at IS NOT NULL AS complete FROM occ.workspace_setups WHERE namespace_id = %(id)s",
}
"""What the database says about how it ended."""
STOPPING = (
    "SELECT 1 FROM occ.controller_work WHERE agent_id = %(id)s AND agent_target = 'stopped'"
    " AND state IN ('queued', 'claimed')"
)
NAMES = {
    "id": str,
    "create": lambda owner: names.request_id(owner, 0),
    "workspace": names.physical_namespace,
    "sandbox": names.sandbox_name,
    "runtime": names.runtime_provider,
    "provider": names.credential_provider,
}
"""Everything that is named after an id."""


class Case:
    """One Namespace with one Agent: rows of its own, a gateway of its own, and the worker process of the moment."""

    def __init__(self, seed, world, gateway, where):
        self.seed, self.world, self.gateway, self.where = seed, world, gateway, where
        self.namespace = self.agent = None
        self.revisions, self.work, self.clients, self.tokens = [], [], [], set()
        self.holds = False
        gateway.on_service = self.harness
        self.restart()

    def restart(self, client=None):
        """Become a new worker process: what is left are the database, the files of the machine and the gateway."""
        client = client or Gateway(a_backend(self.gateway.port))
        self.clients.append(client)
        settings, root = self.world.settings, self.world.settings.agents_dir.parent
        box = OpenShellSandbox(BOX, parse_settings({"local": {}}), client, SystemClock())
        programs = GatewaySettings((settings.codex_binary,))
        self.keys = OpenShellCredentialGateway(KEYS, programs, client, BOX)
        made = {"sandbox": abilities_of(box), "credential_gateway": self.keys}
        secret = LocalSecretDriver(root / "secrets", root / "keys" / "secret.key")
        compute = LocalCompute("compute-local", settings, secret_driver=secret, **made)
        platform = self.world.platform
        drivers = dataclasses.replace(platform.drivers, compute=compute, secret=secret, **made)
        self.world.platform = dataclasses.replace(platform, drivers=drivers)
        self.world.engine = self.world.new_engine()

    async def close(self):
        for client in self.clients:
            await client.close()
        await self.gateway.stop()

    async def harness(self, head, writer):
        """Answer as the named Sandbox: to who knows the token behind its verifier it serves, or shows the failure that it holds."""
        text = head.decode()
        token, place = _field(text, "Authorization: Bearer"), _field(text, "Host:")
        workspace, sandbox = place.partition(".")[0].split("--")
        self.tokens.add(token)
        environment = self.gateway.state.sandboxes[workspace, sandbox].spec.environment
        known = _digest(token) == environment["APP_TOKEN_SHA"]
        end, body = "content-length: 0\r\nconnection: close", ""
        if known and not self.holds:
            proof = _field(text, "Sec-WebSocket-Key:") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            proof = base64.b64encode(hashlib.sha1(proof.encode()).digest()).decode()  # noqa: S324 - RFC 6455
            end = f"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {proof}"
        elif known and "/openclaw/runtime/status" in text:
            body = json.dumps({"runtimeFailure": HELD | {"code": "AUTHENTICATION_FAILED"}})
            end = f"content-type: application/json\r\ncontent-length: {len(body)}"
        status = "200 OK" if body else "101 Switching Protocols" if "Upgrade" in end else "401 No"
        writer.write(f"HTTP/1.1 {status}\r\n{end}\r\n\r\n{body}".encode())

    # -- Work: each puts one row into the queue, as the API does

    async def ensure(self):
        self.namespace = await self.seed.namespace("provisioning")
        return await self.seed.work(self.namespace, target="ready")

    async def deploy(self, *, holds=False, **spec):
        self.holds = holds
        if self.agent is None:
            await self.an_agent()
        revision, key = await self.seed.deployment(self.agent, **spec)
        self.revisions.append(revision)
        return key

    async def an_agent(self):
        """Make an Agent whose credential source the gateway knows."""
        self.agent = await self.seed.agent(self.namespace)
        workspace = names.physical_namespace(self.namespace)
        place = NamespaceContext(namespace=PhysicalNamespace(id=self.namespace, name=workspace))
        source = a_source(id=self.agent.source_id, namespace_id=self.namespace, driver_id=KEYS)
        await self.keys.register_source(place, source, {"api_key": SecretText(CANARY)})

    async def deploy_with_files(self):
        await self.an_agent()
        await self.seed.run(
            "INSERT INTO occ.workspace_setups (id, namespace_id, agent_id, files)"
            " VALUES (%(id)s, %(ns)s, %(agent)s, %(files)s)",
            id=f"wss_{self.agent.id}",
            ns=self.namespace,
            agent=self.agent.id,
            files=Jsonb({"AGENTS.md": DOCUMENT}),
        )
        return await self.deploy(workspace_setup_id=f"wss_{self.agent.id}")

    async def stop(self, target="stopped", status="active"):
        await self.seed.run(
            "UPDATE occ.agents SET desired_runtime_state = 'stopped', status = %(status)s WHERE id = %(id)s",
            id=self.agent.id,
            status=status,
        )
        return await self.seed.work(self.namespace, agent=self.agent.id, target=target)

    async def delete_namespace(self):
        await self.seed.run(
            "UPDATE occ.namespaces SET status = 'deleting' WHERE id = %(id)s", id=self.namespace
        )
        return await self.seed.work(self.namespace, target="deleted")

    # -- Running it

    async def until(self, step):
        """Do everything that comes before a step, and queue the step."""
        before, queue, _ = STEPS[step]
        if before is not None:
            await self.until(before)
            assert await self.settle() == STEPS[before][2]
        self.work.append(await queue(self))

    async def settle(self):
        """Work on until the newest row is final, and return its reason; a row that waits is due at once."""
        for _ in range(MOST_PASSES):
            await self.world.engine.queue.recover_stale()
            await self.seed.available(self.work[-1])
            await self.world.drain()
            row = await self.seed.row(self.work[-1])
            if row["state"] in {"succeeded", "failed_permanent"}:
                return row["reason_code"]
        pytest.fail(f"{self.where}: {MOST_PASSES} passes, {row['state']} {row['reason_code']}")

    async def suffer(self, number, calls, fault):
        """Run the pass in which call `number` fails, and leave the work to a new process."""
        begun, method = len(self.gateway.requests), calls[number - 1]
        if fault.startswith("dies"):
            self.restart(DyingGateway(self.gateway, number, after=fault == "dies after"))
            try:
                await self.world.drain()
            except Died:
                pass
            else:
                pytest.fail(f"{self.where}: the process lives")
            await self.seed.expire(self.work[-1])
        else:
            earlier = calls[: number - 1].count(method)
            self.gateway.script(method, *[Answer() for _ in range(earlier)])
            self.gateway.script(method, lost(after=fault == "answer lost"))
            await self.world.drain()
        self.restart()
        reached = number - (fault == "dies before")
        return self.gateway.methods()[begun : begun + number][:reached] == calls[:reached]

    async def move(self, chance):
        """Queue something that a person may ask for next."""
        self.holds = False
        if chance.random() < 0.3:
            await self.stop()
            return
        if await self.seed.all(STOPPING, id=self.agent.id):
            return  # a deploy is a conflict until the stop is over
        await self.run(holds=chance.random() < 0.3)

    async def run(self, *, holds=False):
        """Queue a deploy of an Agent that may be stopped."""
        await self.seed.run(
            "UPDATE occ.agents SET desired_runtime_state = 'running' WHERE id = %(id)s",
            id=self.agent.id,
        )
        await self.deploy(holds=holds)

    async def storm(self, chance):
        """Work in bad weather until the process dies or nothing is due."""
        self.restart(StormyGateway(self.gateway, chance, 0.15))
        await self.due()
        with contextlib.suppress(Died):
            await self.world.drain()
        await self.reap()

    async def calm(self):
        """Work on as a new process until nothing is left to do."""
        self.restart()
        for _ in range(40):
            await self.reap()
            await self.due()
            await self.world.drain()
            if not await self.world.engine.queue.pending():
                return
        pytest.fail(f"{self.where}: the work never ended")

    async def due(self):
        await self.seed.run(
            "UPDATE occ.controller_work SET available_at = clock_timestamp() WHERE state = 'queued'"
        )

    async def reap(self):
        """Let the claims of dead processes run out."""
        await self.seed.run(
            "UPDATE occ.controller_work SET lease_expires_at = clock_timestamp() - interval '1 second'"
            " WHERE state = 'claimed'"
        )
        await self.world.engine.queue.recover_stale()

    # -- What is left

    async def rest(self):
        """Return what there is at rest as lines, without what differs between any two runs (ids, epochs, ports)."""
        state = self.gateway.state
        left = {
            kind: {" ".join(place): _document(one) for place, one in getattr(state, kind).items()}
            for kind in ("sandboxes", "services", "providers", "profiles")
        }
        left["workspaces"] = {name: _document(one) for name, one in state.workspaces.items()}
        left["creates"] = list(state.ledger)
        left["rows"] = await self.rows()
        if self.agent is not None:
            route = self.world.settings.routes_dir / f"{self.agent.id}.json"
            left["route"] = json.loads(route.read_bytes()) if route.exists() else None
            left["home"] = (self.world.settings.agents_dir / self.agent.id).exists()
        text = json.dumps(left)
        for name, placeholder in self.placeholders():
            text = text.replace(name, placeholder)
        return json.dumps(json.loads(text), indent=1, sort_keys=True).splitlines()

    async def rows(self):
        """Return the rows at rest. A deploy that another pass finishes than selected it says REVISION_ALREADY_ACTIVE by contract."""
        found = {
            name: await self.seed.all(query, id=self.namespace) for name, query in ROWS.items()
        }
        work = [await self.seed.row(key) for key in self.work]
        ended = [f"{row['state']} {row['reason_code']}" for row in work]
        return found | {"work": [one.replace("ALREADY_ACTIVE", "ACTIVATED") for one in ended]}

    def placeholders(self):
        """Return a word for everything that is made from a random id; longest first, because an id contains its UUID."""
        owners = {self.namespace: "namespace"}
        if self.agent is not None:
            owners |= {self.agent.id: "agent", self.agent.source_id: "source"}
        owners |= {one: f"revision {number}" for number, one in enumerate(self.revisions)}
        found = {f":{self.gateway.port}": ":<port>"}
        for owner, word in owners.items():
            found |= {make(owner): f"<{kind} of {word}>" for kind, make in NAMES.items()}
        found |= {_digest(token): "<verifier>" for token in self.tokens}
        found |= dict.fromkeys(self.tokens, "<token>")
        return sorted(found.items(), key=lambda pair: -len(pair[0]))

    async def only_what_lives(self):
        """Tell whether the gateway has the selected revision's Sandbox and nothing of any other, and the rows say so."""
        rows, state = await self.rows(), self.gateway.state
        kept = [one["id"] for one in rows["revisions"] if not one["retired"]]
        live = [one["active_revision_id"] for one in rows["agent"] if one["active_revision_id"]]
        wanted = [*map(names.sandbox_name, live * 2), *map(names.runtime_provider, live)]
        found = [name for _, name in (*state.sandboxes, *state.services, *state.providers)]
        found = [name for name in found if not name.startswith("oce-cs-")]
        return kept == live and sorted(found) == sorted(wanted)

    def leaks(self):
        """Return the requests that carry a secret, but for the source's value on its one way in."""
        found = []
        for method, message in self.gateway.requests:
            carries = method in {"CreateProvider", "UpdateProvider"}
            if carries and dict(message.provider.credentials) == {"OPENAI_API_KEY": CANARY}:
                message.provider.credentials.clear()
            secrets = {CANARY, DOCUMENT, *self.tokens} - {
                DOCUMENT if method == "ExecSandbox" else ""
            }
            if any(secret in str(message) for secret in secrets):
                found.append(method)
        return found


STEPS = {
    "ensure namespace": (None, Case.ensure, "NAMESPACE_RECONCILED"),
    "deploy": ("ensure namespace", Case.deploy, "REVISION_ACTIVATED"),
    "deploy with files": ("ensure namespace", Case.deploy_with_files, "REVISION_ACTIVATED"),
    "replace": ("deploy", Case.deploy, "REVISION_ACTIVATED"),
    "refuse": ("deploy", lambda case: case.deploy(holds=True), "RUNTIME_AUTHENTICATION_FAILED"),
    "stop": ("replace", Case.stop, "AGENT_STOPPED"),
    "delete agent": ("deploy", lambda case: case.stop("deleted", "deleting"), "AGENT_DELETED"),
    "delete namespace": ("delete agent", Case.delete_namespace, "NAMESPACE_RECONCILED"),
}
"""Each kind of work: what comes before it, what puts it into the queue, and how it ends."""


def _field(text, name):
    return re.search(rf"(?i)\r\n{name} (\S+)", text)[1]


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _document(message):
    """Return a gateway's object without the ids that the gateway invents."""
    document = MessageToDict(message, preserving_proto_field_name=True)
    invented = {"metadata": "id", "spec": "provider_attachment_epoch", "endpoint": "sandbox_id"}
    for member, name in invented.items():
        document.get(member, {}).pop(name, None)
    return document


@contextlib.asynccontextmanager
async def a_case(seed, world, step, where="undisturbed"):
    """Make a case in which the step is queued."""
    gateway = ScriptedGateway()
    await gateway.start()
    case = Case(seed, world, gateway, where)
    try:
        await case.until(step)
        yield case
    finally:
        await case.close()


@pytest.fixture
def log(quiet_log, caplog):
    """Everything that the worker and its libraries write, tracebacks included."""
    caplog.set_level("DEBUG", logger="oce")
    lines = []

    def keep(_logger, level, event):
        lines.append(f"{level} {event}")
        raise structlog.DropEvent

    everything = structlog.make_filtering_bound_logger(logging.DEBUG)
    structlog.configure([structlog.processors.format_exc_info, keep], wrapper_class=everything)
    return lambda: "\n".join([*lines, caplog.text])


async def undisturbed(seed, world, step):
    """Return what a step leaves when nothing happens, and the calls it makes."""
    async with a_case(seed, world, step) as case:
        begun = len(case.gateway.requests)
        assert await case.settle() == STEPS[step][2]
        return await case.rest(), case.gateway.methods()[begun:]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", STEPS)
async def test_every_gateway_call_survives_it(seed, world, log, step, fault):
    wanted, calls = await undisturbed(seed, world, step)
    assert calls
    tokens = set()
    for number, method in enumerate(calls, 1):
        where = f"{step}, call {number} of {len(calls)}: {method} {fault}"
        async with a_case(seed, world, step, where) as case:
            assert await case.suffer(number, calls, fault), where
            await case.settle()
            assert await case.rest() == wanted, where
            assert await case.only_what_lives(), where
            assert case.leaks() == [], where
            tokens |= case.tokens
    assert "worker.completed" in log()
    assert bool(tokens) == (step != "ensure namespace")
    assert [secret for secret in (CANARY, DOCUMENT, *tokens) if secret in log()] == []


@pytest.mark.parametrize("number", range(8))
async def test_any_weather_ends_with_exactly_what_is_wanted(seed, world, log, number):
    """Deploys, refused deploys and stops in any order, several faults in every pass; then the weather calms."""
    chance = random.Random(number)  # noqa: S311 - a reproducible history, not a secret
    async with a_case(seed, world, "deploy", f"weather {number}") as case:
        await case.settle()
        for _ in range(10):
            await case.move(chance)
            for _ in range(chance.randint(1, 3)):
                await case.storm(chance)
        await case.calm()
        await case.stop()  # again: an earlier one may have run out of attempts
        await case.calm()
        assert not case.gateway.state.sandboxes
        assert await case.only_what_lives()
        await case.run()
        await case.calm()
        assert len(case.gateway.state.sandboxes) == 1
        assert await case.only_what_lives()
        assert case.leaks() == []
        await case.stop("deleted", "deleting")
        await case.calm()
        assert await case.only_what_lives()
        assert not case.gateway.state.sandboxes
        assert [secret for secret in (CANARY, *case.tokens) if secret in log()] == []
