import importlib.util
import logging
import sys
from pathlib import Path

import pytest
import structlog

# Test folders are no packages; the helpers beside this file are loaded by path, once.
_SPEC = importlib.util.spec_from_file_location(
    "oce_api_served", Path(__file__).with_name("served.py")
)
served = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = served
_SPEC.loader.exec_module(served)


@pytest.fixture(autouse=True)
def quiet_log():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
async def world(db):
    async with served.control_plane(db) as world:
        yield world


@pytest.fixture
async def api(world):
    async with world.client() as client:
        yield client


@pytest.fixture
async def ready(api):
    """The default Namespace, provisioned."""

    async def look():
        found = (await api.get("/namespaces/default")).json()["data"]
        return found if found["status"] == "ready" else None

    return await served.eventually(look)


VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-test"}}}}


@pytest.fixture
async def agent(api, ready):
    """An Agent with everything it needs, not deployed."""
    base = "/namespaces/default"
    secret = await api.post(f"{base}/secrets", json={"name": "k", "value": "sk-value"})
    assert secret.status_code == 201, secret.text
    source = await api.post(
        f"{base}/credential-sources",
        json={
            "name": "openai",
            "type": "openai",
            "secrets": {"api_key": secret.json()["data"]["ref"]},
        },
    )
    assert source.status_code == 201, source.text
    configuration = await api.post(
        f"{base}/configurations", json={"name": "demo", "kind": "agent", "values": VALUES}
    )
    assert configuration.status_code == 201, configuration.text
    made = await api.post(
        f"{base}/agents",
        json={
            "name": "demo",
            "configurationId": "demo",
            "executionMode": "dedicated",
            "harnessAuth": {"method": "credential_source", "sourceId": "openai"},
            "credentialSources": [{"sourceId": "openai"}],
        },
    )
    assert made.status_code == 201, made.text
    return made.json()["data"]
