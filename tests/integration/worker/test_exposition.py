"""What the worker shows of itself: gauges from the database, markers, the private listener."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from oce.contracts.sandbox import HarnessStatus
from oce.observability.metrics import WorkerMetrics
from oce.store.errors import StoreUnavailable
from oce.worker.exposition import Exposition

pytestmark = pytest.mark.postgres


async def test_each_agent_counts_once_in_its_lifecycle_state(seed, world):
    namespace = await seed.namespace()
    await seed.agent(namespace)
    serving, failed, stopped, waiting = [await seed.agent(namespace) for _ in range(4)]
    await seed.deployment(serving)
    await seed.deployment(stopped)
    await world.drain()
    await seed.run(
        "UPDATE occ.agents SET desired_runtime_state = 'stopped' WHERE id = %(id)s", id=stopped.id
    )
    await seed.work(namespace, agent=stopped.id, target="stopped")
    await world.drain()
    await seed.deployment(failed, harness_auth=None)
    await world.drain()
    world.provider.statuses[:] = [HarnessStatus(state="starting")]
    await seed.deployment(waiting, created=100)
    await world.drain()
    found = await world.engine.queue.aggregates()
    assert found.agents == {"draft": 1, "running": 1, "failed": 1, "stopped": 1, "deploying": 1}
    assert found.pending == 1
    assert 100 <= found.oldest_age < 160


async def test_the_listener_answers_scrapes_and_nothing_else():
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    broken = False

    async def refresh():
        if broken:
            raise StoreUnavailable("08006")
        metrics.queue(pending=3, oldest_age_seconds=1, agents={"running": 2})

    server = await Exposition(registry, refresh).listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def ask(head):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async with server:
        found = await ask("GET /metrics HTTP/1.1\r\nhost: x")
        assert found.startswith("HTTP/1.1 200 ")
        assert 'occ_work_pending{service="worker"} 3.0' in found
        assert 'occ_agents{lifecycle_state="running",service="worker"} 2.0' in found
        assert (await ask("GET / HTTP/1.1")).startswith("HTTP/1.1 404 ")
        assert (await ask("POST /metrics HTTP/1.1")).startswith("HTTP/1.1 405 ")
        assert (await ask("nonsense")).startswith("HTTP/1.1 400 ")
        broken = True
        assert (await ask("GET /metrics HTTP/1.1")).startswith("HTTP/1.1 503 ")
