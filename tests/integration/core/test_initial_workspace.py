"""Initial workspace files of an Agent: given once, judged at once, private, and gone with the Agent."""

from __future__ import annotations

import dataclasses

import pytest

from oce.contracts.refusals import WorkspaceSetupRefused
from oce.core.agents import commands as agents
from oce.core.agents import queries as agent_queries
from oce.core.errors import Conflict, InvalidRequest
from oce.domain.resources import WORKSPACE_FILE_MAX, WORKSPACE_FILES
from oce.drivers.openshell import workspace_program
from oce.store import workspace_setups

pytestmark = pytest.mark.postgres
PRIVATE = "invented instructions"


async def a_draft(world, **changes):
    first = await world.agent("first")
    return agents.AgentDraft(
        name="second",
        configuration=first.configuration_id,
        harness_auth=first.harness_auth,
        credential_sources=first.credential_sources,
        **{"initial_files": {"AGENTS.md": PRIVATE}, **changes},
    )


async def pending(world, agent):
    async with world.platform.db.read() as reader:
        return await workspace_setups.pending_files(reader, agent.id)


async def test_the_files_wait_with_the_agent_and_nobody_reads_them_back(world):
    made = await agents.create(world.platform, world.admin, "default", await a_draft(world))
    seen = await agent_queries.get(world.platform, world.admin, "default", "second")
    assert seen == made
    assert seen.initial_workspace.id.startswith("wss_")
    assert seen.initial_workspace.completed_at is None
    assert await pending(world, made) == {"AGENTS.md": PRIVATE}
    assert PRIVATE not in repr(seen)
    audited = await world.rows("SELECT details::text AS text FROM occ.audit_events")
    assert any("AGENTS.md" in row["text"] for row in audited)
    assert not any(PRIVATE in row["text"] for row in audited)
    first = await agent_queries.get(world.platform, world.admin, "default", "first")
    assert first.initial_workspace is None


async def test_a_deploy_lets_the_driver_judge_and_freezes_whose_files_they_are(world):
    made = await agents.create(world.platform, world.admin, "default", await a_draft(world))
    revision = await agents.deploy(world.platform, world.admin, "default", "second")
    assert revision.workspace_setup_id == made.initial_workspace.id
    assert world.drivers.sandbox.calls == ["validate_workspace_setup"]
    other = await agents.deploy(world.platform, world.admin, "default", "first")
    assert other.workspace_setup_id is None
    assert world.drivers.sandbox.calls == ["validate_workspace_setup"]
    world.drivers.sandbox.fail["validate_workspace_setup"] = WorkspaceSetupRefused("elsewhere")
    with pytest.raises(Conflict, match="SANDBOX_WORKSPACE_SETUP_REFUSED: elsewhere"):
        await agents.deploy(world.platform, world.admin, "default", "second")


async def test_completion_forgets_the_content_and_keeps_the_identity(world):
    made = await agents.create(world.platform, world.admin, "default", await a_draft(world))
    for _ in range(2):
        async with world.platform.db.transact() as tx:
            await workspace_setups.complete(tx, made.id)
        seen = await agent_queries.get(world.platform, world.admin, "default", "second")
        assert seen.initial_workspace.id == made.initial_workspace.id
        assert seen.initial_workspace.completed_at is not None
        assert await pending(world, made) == {}
    stored = await world.rows("SELECT files FROM occ.workspace_setups")
    assert stored == [{"files": None}]


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"README.md": "x"}, ""),
        ({"../AGENTS.md": "x"}, ""),
        ({"AGENTS.md": "x" * (WORKSPACE_FILE_MAX + 1)}, "/AGENTS.md"),
        ({"AGENTS.md": "é" * (WORKSPACE_FILE_MAX // 2 + 1)}, "/AGENTS.md"),
        ({"SOUL.md": "a\0b"}, "/SOUL.md"),
        ({"SOUL.md": "\ud800"}, "/SOUL.md"),
    ],
    ids=["name", "path", "size", "bytes", "nul", "surrogate"],
)
async def test_what_no_workspace_could_hold_is_refused_by_path_alone(world, files, path):
    with pytest.raises(InvalidRequest) as refused:
        await agents.create(
            world.platform, world.admin, "default", await a_draft(world, initial_files=files)
        )
    (detail,) = refused.value.details
    assert detail.path == f"/initialWorkspaceFiles{path}"
    assert "xxx" not in str(refused.value)


@pytest.mark.parametrize("case", ["embedded", "no ability", "no Sandbox"])
async def test_without_a_driver_for_them_they_are_refused_at_once(world, case):
    draft = await a_draft(world)
    platform, drivers = world.platform, world.platform.drivers
    if case == "embedded":
        draft = dataclasses.replace(draft, execution_mode="embedded")
    sandbox = None
    if case != "no Sandbox":
        sandbox = drivers.sandbox
    if case == "no ability":
        sandbox = dataclasses.replace(drivers.sandbox, workspace_setup=None)
    drivers = dataclasses.replace(drivers, sandbox=sandbox)
    platform = dataclasses.replace(platform, drivers=drivers)
    with pytest.raises(Conflict) as refused:
        await agents.create(platform, world.admin, "default", draft)
    assert refused.value.code == "WORKSPACE_SETUP_UNSUPPORTED"


async def test_a_key_stands_for_the_files_too(world):
    draft = await a_draft(world)
    made = await agents.create(
        world.platform, world.admin, "default", draft, idempotency_key="once"
    )
    again = await agents.create(
        world.platform, world.admin, "default", draft, idempotency_key="once"
    )
    assert again == made
    other = dataclasses.replace(draft, initial_files={"AGENTS.md": "changed"})
    with pytest.raises(Conflict) as refused:
        await agents.create(world.platform, world.admin, "default", other, idempotency_key="once")
    assert refused.value.code == "IDEMPOTENCY_KEY_REUSED"


def test_the_program_inside_takes_the_same_files():
    assert workspace_program.NAMES == WORKSPACE_FILES
    assert workspace_program.FILE_MAX == WORKSPACE_FILE_MAX
