"""An Agent, a revision and a local Compute over an in-memory provider."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from oce.contracts.compute import DeployContext
from oce.contracts.drivers import abilities_of
from oce.domain.resources import (
    Agent,
    AgentRevision,
    AgentStatus,
    CredentialSource,
    Harness,
    HarnessAuth,
    Namespace,
    NamespaceStatus,
    RevisionSource,
    RuntimeState,
    SourceState,
)
from oce.drivers.local.compute import LocalCompute
from oce.drivers.local.secrets import LocalSecretDriver
from oce.drivers.local.settings import LocalComputeSettings
from oce.testing.memory_provider import (
    MemoryAgentGateway,
    MemoryCredentialGateway,
    MemoryProvider,
    MemorySandboxDriver,
)

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
NAMESPACE = Namespace(
    id="ns_11111111-1111-4111-8111-111111111111",
    name="team",
    status=NamespaceStatus.READY,
    created_at=WHEN,
)
SOURCE = CredentialSource(
    id="cs_22222222-2222-4222-8222-222222222222",
    namespace_id=NAMESPACE.id,
    name="openai",
    type="openai",
    config={},
    secrets={},
    driver_id="credentials-memory",
    state=SourceState.READY,
    created_at=WHEN,
)
AGENT = Agent(
    id="agt_33333333-3333-4333-8333-333333333333",
    namespace_id=NAMESPACE.id,
    name="scout",
    service_principal_id="spn_1",
    configuration_id="cfg_1",
    execution_mode="dedicated",
    harness_auth=HarnessAuth(method="credential_source", source_id=SOURCE.id),
    credential_sources=(SOURCE.id,),
    desired_runtime_state=RuntimeState.RUNNING,
    active_revision_id=None,
    status=AgentStatus.ACTIVE,
    generation=1,
    created_at=WHEN,
)


def make_revision(number: int = 1) -> AgentRevision:
    return AgentRevision(
        id=f"rev_44444444-4444-4444-8444-{number:012x}",
        namespace_id=NAMESPACE.id,
        agent_id=AGENT.id,
        revision=number,
        configuration_id="cfg_1",
        configuration_generation=1,
        configuration={"agents": {"defaults": {"model": "openai/gpt-test"}}},
        harness=Harness(id="codex", version="0.163.0", mode="dedicated"),
        compute_id="compute-local",
        compute_implementation="local",
        sandbox_driver_id="sandbox-memory",
        harness_auth=AGENT.harness_auth,
        credential_sources=(
            RevisionSource(
                source_id=SOURCE.id,
                credential_gateway_id="credentials-memory",
                source_type="openai",
            ),
        ),
        secret_bindings={},
        service_principal_id="spn_1",
        network_policy=None,
        render_version=1,
        created_at=WHEN,
    )


class Steps:
    """Collects the steps of a pass; `fail_at` plays a lost claim."""

    def __init__(self):
        self.names = []
        self.fail_at = None

    async def __call__(self, name):
        if name == self.fail_at:
            raise RuntimeError("claim lost")
        if not self.names or self.names[-1] != name:
            self.names.append(name)


@pytest.fixture
def revision():
    return make_revision()


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def context(steps):
    return DeployContext(namespace=NAMESPACE, agent=AGENT, sources=(SOURCE,), step=steps)


@pytest.fixture
def provider():
    return MemoryProvider()


@pytest.fixture
def settings(tmp_path):
    return LocalComputeSettings(
        agents_dir=tmp_path / "agents",
        routes_dir=tmp_path / "routes",
        gateway_control_socket=tmp_path / "control.sock",
        harness_command=("/opt/oce/python/bin/python3", "-I", "-m", "oce.harness.codex"),
        ready_wait_seconds=0.3,
        first_poll_seconds=0.001,
        slowest_poll_seconds=0.01,
    )


@pytest.fixture
def secret_driver(tmp_path):
    return LocalSecretDriver(tmp_path / "secrets", tmp_path / "keys" / "secret.key")


@pytest.fixture
def compute(settings, provider, secret_driver):
    return LocalCompute(
        "compute-local",
        settings,
        sandbox=abilities_of(MemorySandboxDriver(provider)),
        credential_gateway=MemoryCredentialGateway(provider),
        secret_driver=secret_driver,
    )


@pytest.fixture
async def agent_gateway(settings):
    settings.routes_dir.mkdir(parents=True)
    async with MemoryAgentGateway(settings.gateway_control_socket, settings.routes_dir) as gateway:
        yield gateway


@pytest.fixture(name="make_revision")
def make_revision_fixture():
    return make_revision
