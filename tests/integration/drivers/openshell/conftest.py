from __future__ import annotations

import pytest

from oce.testing.openshell_bench import Bench
from oce.testing.scripted_gateway import ScriptedGateway


@pytest.fixture
async def bench():
    gateway = ScriptedGateway()
    await gateway.start()
    made = Bench(gateway)
    yield made
    for client in made.clients:
        await client.close()
    await gateway.stop()
