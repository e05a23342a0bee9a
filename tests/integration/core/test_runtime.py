"""Live evidence: harness status and logs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from oce.contracts.refusals import NotVisible
from oce.contracts.sandbox import HarnessObservation, HarnessState, LogDecision, LogLine
from oce.core.agents import commands as agents
from oce.core.audit import queries as audit
from oce.core.errors import CoreError, Forbidden, RateLimited
from oce.core.paging import PageRequest
from oce.core.runtime import queries as runtime
from oce.store import agents as agent_rows

pytestmark = pytest.mark.postgres


@pytest.fixture
async def serving(world):
    agent = await world.agent()
    revision = await agents.deploy(world.platform, world.admin, "default", "coder")
    async with world.platform.db.transact() as tx:
        assert await agent_rows.swap_active_revision(tx, agent.id, expected=None, new=revision.id)
    return revision


def _line(message, **options):
    values = {
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "level": "INFO",
        "target": "t",
        "source": "sandbox",
    }
    return LogLine(message=message, **(values | options))


async def test_status_is_what_was_seen_just_now_or_unobserved(world):
    platform, admin = world.platform, world.admin
    agent = await world.agent()
    before = await runtime.harness_status(platform, admin, "default", "coder")
    assert (before.kind, before.reason) == ("unobserved", "UNDEPLOYED")
    revision = await agents.deploy(platform, admin, "default", "coder")
    async with platform.db.transact() as tx:
        await agent_rows.swap_active_revision(tx, agent.id, expected=None, new=revision.id)
    seen = await runtime.harness_status(platform, admin, "default", "coder")
    assert (seen.kind, seen.harness.state, seen.revision_id) == ("observed", "running", revision.id)
    world.drivers.sandbox.observation = HarnessObservation(
        state=HarnessState.LOST, code="SANDBOX_MISSING"
    )
    assert (
        await runtime.harness_status(platform, admin, "default", "coder")
    ).harness.state == "lost"
    world.drivers.sandbox.fail["observe_harness"] = RuntimeError("a foreign listener answered")
    assert (
        await runtime.harness_status(platform, admin, "default", "coder")
    ).harness.state == "unknown"
    assert world.drivers.sandbox.calls.count("observe_harness") == 3
    await agents.stop(platform, admin, "default", "coder")
    stopped = await runtime.harness_status(platform, admin, "default", "coder")
    assert (stopped.kind, stopped.reason) == ("unobserved", "STOPPED")


async def test_logs_are_classified_redacted_and_audited_first(world, serving):
    platform, admin = world.platform, world.admin
    world.drivers.sandbox.lines = (
        _line("connected"),
        _line('{"role": "assistant", "text": "a private reply"}'),
        _line('{"broken'),
        _line("authorization: Bearer abcdef123456"),
        _line("", level="OCSF", decision=LogDecision(
            allowed=False, rule="-", binary="/usr/bin/curl", host="example.org", port=443, reason="no endpoint")),
    )  # fmt: skip
    page = await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
    assert [(one.kind, one.category or one.reason) for one in page.records] == [
        ("line", "text"),
        ("withheld", "unrecognised_structured"),
        ("withheld", "malformed"),
        ("line", "decision"),
    ]
    assert page.records[3].level == "warn"
    assert (
        page.records[3].message == "denied /usr/bin/curl -> example.org:443 by rule -: no endpoint"
    )
    assert "abcdef123456" not in repr(page)
    assert "private reply" not in repr(page)
    assert page.revision_id == serving.id
    viewed = await audit.list_page(
        platform,
        admin,
        audit.AuditFilter(action="openclaw.agents.runtime_logs.view"),
        PageRequest(),
    )
    assert [one.kind for one in viewed.items] == ["access"]


async def test_logs_say_why_they_cannot_be_read(world, serving):
    platform, admin = world.platform, world.admin
    viewer = await world.person("viewer")
    with pytest.raises(Forbidden):
        await runtime.logs(platform, viewer, "default", "coder", runtime.LogQuery())
    for failure, code in (
        (NotVisible("x"), "RUNTIME_LOGS_SANDBOX_NOT_FOUND"),
        (RuntimeError("x"), "RUNTIME_LOGS_UNAVAILABLE"),
    ):
        world.drivers.sandbox.fail["read_sandbox_logs"] = failure
        with pytest.raises(CoreError) as refused:
            await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
        assert refused.value.code == code
    world.drivers.sandbox.fail.clear()
    for _ in range(8):
        await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
    with pytest.raises(RateLimited) as limited:
        await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
    assert limited.value.retry_after == 1
    world.clock.advance(1)
    await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
    async with platform.db.transact() as tx:
        await agent_rows.swap_active_revision(tx, serving.agent_id, expected=serving.id, new=None)
    world.clock.advance(1)
    with pytest.raises(CoreError) as undeployed:
        await runtime.logs(platform, admin, "default", "coder", runtime.LogQuery())
    assert undeployed.value.code == "RUNTIME_LOGS_SOURCE_UNAVAILABLE"
