"""An application whose routes pass the real pipeline and whose authentication is scripted; the database is not needed for shape."""

from types import SimpleNamespace

import httpx
import pytest

from oce.api import pipeline
from oce.api.app import create_app
from oce.core.errors import Unauthenticated
from oce.core.platform import Actor

KEY = "key_scripted.value"


@pytest.fixture(scope="session")
def application():
    return create_app(SimpleNamespace())


@pytest.fixture
def app(application, monkeypatch):
    async def authenticate(_platform, key, *, request_id):
        if key.reveal() != KEY:
            raise Unauthenticated
        return Actor(principal_id="spn_test", request_id=request_id)

    monkeypatch.setattr(pipeline, "authenticate", authenticate)
    return application


@pytest.fixture
async def api(app):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://occ.test", headers={"x-api-key": KEY}
    ) as client:
        yield client
