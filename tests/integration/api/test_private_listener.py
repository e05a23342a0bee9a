"""Health, metrics and the Agent Gateway's question, over the real core."""

import sys

import httpx
import pytest

from oce.api.app import create_app
from oce.api.private import create_private_app
from oce.core.platform import Platform
from oce.domain.clock import SystemClock
from oce.domain.secret import SecretText
from oce.observability.metrics import HttpMetrics, new_registry
from oce.store.database import Database

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres
TOKEN = "t" * 32
AUTH = {"authorization": f"Bearer {TOKEN}"}


def private(platform, registry=None):
    app = create_private_app(platform, SecretText(TOKEN), registry or new_registry())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://private")


async def test_who_may_use_an_agent(world, api, agent):
    async with private(world.platform) as client:

        async def ask(key=world.key, namespace="default", name="demo", headers=AUTH):
            body = {"apiKey": key, "namespace": namespace, "agent": name}
            return await client.post("/internal/agent-access", json=body, headers=headers)

        yes = (await ask()).json()["data"]
        assert yes == {
            "allowed": True,
            "principalId": world.administrator,
            "namespaceId": agent["namespaceId"],
            "agentId": agent["id"],
        }
        assert (await ask(namespace=agent["namespaceId"], name=agent["id"])).json()["data"] == yes
        assert (await ask(key="key_x.y")).json()["data"]["status"] == 401
        assert (await ask(name="absent")).json()["data"]["status"] == 404
        principal = (await api.post("/iam/service-principals")).json()["data"]["id"]
        issued = await api.post(
            "/api/auth/service-keys", json={"servicePrincipalId": principal, "name": "x"}
        )
        no = (await ask(key=issued.json()["data"]["key"])).json()["data"]
        assert (no["allowed"], no["status"], no["code"]) == (False, 403, "FORBIDDEN")
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            refused = await ask(headers=headers)
            assert refused.status_code == 401
            assert "data" not in refused.json()


async def test_health_and_metrics(world):
    registry = new_registry()
    app = create_app(world.platform, metrics=HttpMetrics(registry))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://occ.test") as public:
        await public.get("/namespaces/secret-tenant", headers={"x-api-key": world.key})
        await public.get("/nowhere")
    async with private(world.platform, registry) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        text = (await client.get("/metrics")).text
        assert (await client.post("/metrics")).status_code == 405
    assert 'route="/namespaces/{namespace}",service="api",status_class="4xx"} 1.0' in text
    assert 'route="unmatched"' in text
    assert "secret-tenant" not in text
    assert "process_resident_memory_bytes" in text


async def test_an_absent_database_is_named_and_the_process_stays_alive(world):
    dead = Database("postgresql://nobody@127.0.0.1:9/none", connect_timeout=1)
    platform = Platform(
        db=dead,
        drivers=served.drivers(world.root, world.provider, dead),
        clock=SystemClock(),
        installation_id=world.platform.installation_id,
    )
    transport = httpx.ASGITransport(create_app(platform), raise_app_exceptions=False)
    async with (
        private(platform) as client,
        httpx.AsyncClient(transport=transport, base_url="http://occ.test") as public,
    ):
        answer = await public.get("/namespaces", headers={"x-api-key": world.key})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "DEPENDENCY_UNAVAILABLE"
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
    await dead.close()


def test_a_short_token_is_refused():
    with pytest.raises(ValueError, match="32"):
        create_private_app(None, SecretText("short"), new_registry())
