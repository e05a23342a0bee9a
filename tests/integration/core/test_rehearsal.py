"""A dry run judges with the code that would do it, and leaves every table and every Driver as they were."""

from __future__ import annotations

import pytest

from oce.core.access import commands as access
from oce.core.agents import commands as agents
from oce.core.configurations import commands as configurations
from oce.core.credentials import commands as credentials
from oce.core.errors import Conflict, Forbidden, InvalidRequest
from oce.core.namespaces import commands as namespaces
from oce.core.rehearsal import Rehearsed, rehearse
from oce.core.secrets import commands as secrets
from oce.domain.secret import SecretText

pytestmark = pytest.mark.postgres

VALUES = {"agents": {"defaults": {"model": {"primary": "openai/gpt-5.1-codex"}}}}
WRITING = ("create", "update", "delete", "write", "register_source", "update_source", "remove_source")  # fmt: skip


async def everything(world):
    names = await world.rows(
        "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'occ' ORDER BY 1"
    )
    found = {}
    for row in names:
        rows = await world.rows(f"SELECT t::text AS row FROM occ.{row['name']} t ORDER BY 1")  # noqa: S608 - table names of the catalogue
        found[row["name"]] = [one["row"] for one in rows]
    return found


def writes(world):
    drivers = (world.drivers.secrets, world.drivers.configurations, world.drivers.gateway)
    return [call for driver in drivers for call in driver.calls if call in WRITING]


async def test_every_kind_of_change_is_judged_and_none_is_made(world):
    agent = await world.agent()
    spare = await world.secret("spare")
    platform, admin = rehearse(world.platform), world.admin
    person = await access.create_service_principal(world.platform, admin, "default")
    before, calls = await everything(world), writes(world)
    for dry in (
        namespaces.create(platform, admin, name="team"),
        secrets.create(platform, admin, "default", name="new", value=SecretText("value")),
        secrets.update(platform, admin, "default", "spare", value=SecretText("value")),
        secrets.delete(platform, admin, "default", spare.id),
        credentials.create(platform, admin, "default", credentials.SourceDraft(
            name="more", type="openai", config={}, secrets={"api_key": "spare"})),
        credentials.update(platform, admin, "default", "coder-source"),
        configurations.create(platform, admin, "default", configurations.ConfigurationDraft(values=VALUES)),
        configurations.update(platform, admin, "default", agent.configuration_id,
                              configurations.ConfigurationChange(values=VALUES)),
        agents.create(platform, admin, "default", agents.AgentDraft(
            name="second", configuration=agent.configuration_id)),
        agents.update(platform, admin, "default", "coder", agents.AgentChange(
            configuration=agent.configuration_id)),
        agents.deploy(platform, admin, "default", "coder", idempotency_key="once"),
        agents.stop(platform, admin, "default", "coder"),
        agents.delete(platform, admin, "default", "coder"),
        access.create_service_principal(platform, admin, "default"),
        access.create_binding(platform, admin, "default", access.BindingDraft(
            subject_id=person.id, role_id="role_viewer")),
    ):  # fmt: skip
        with pytest.raises(Rehearsed):
            await dry
    assert await everything(world) == before
    assert writes(world) == calls
    assert (
        await agents.deploy(world.platform, admin, "default", "coder", idempotency_key="once")
    ).id


async def test_what_would_be_refused_is_refused(world):
    agent = await world.agent()
    platform, admin = rehearse(world.platform), world.admin
    with pytest.raises(InvalidRequest):
        await configurations.create(
            platform, admin, "default", configurations.ConfigurationDraft(values={"nothing": 1})
        )
    with pytest.raises(Conflict, match="has this name"):
        await agents.create(
            platform, admin, "default",
            agents.AgentDraft(name="coder", configuration=agent.configuration_id),
        )  # fmt: skip
    with pytest.raises(Conflict, match="in use"):
        await secrets.delete(platform, admin, "default", "coder-key")
    await configurations.update(
        world.platform, admin, "default", agent.configuration_id,
        configurations.ConfigurationChange(values={**VALUES, "models": {"providers": {"openai": {
            "baseUrl": "https://else.example/v1"}}}}),
    )  # fmt: skip
    with pytest.raises(InvalidRequest, match="not the endpoint"):
        await agents.deploy(platform, admin, "default", "coder")


async def test_a_denied_dry_run_is_recorded(world):
    await world.agent()
    viewer = await world.person("viewer")
    with pytest.raises(Forbidden):
        await agents.deploy(rehearse(world.platform), viewer, "default", "coder")
    denied = await world.rows(
        "SELECT action FROM occ.audit_events WHERE actor_id = %(id)s AND outcome = 'denied'",
        id=viewer.principal_id,
    )
    assert [row["action"] for row in denied] == ["openclaw.agents.deploy"]


async def test_an_interrupted_creation_is_not_finished_by_a_dry_run(world):
    world.drivers.secrets.fail["create"] = OSError("lost")
    with pytest.raises(Exception, match="may not be stored"):
        await world.secret("half")
    world.drivers.secrets.fail.clear()
    before, calls = await everything(world), writes(world)
    with pytest.raises(Rehearsed):
        await secrets.update(
            rehearse(world.platform), world.admin, "default", "half", value=SecretText("value")
        )
    assert await everything(world) == before
    assert writes(world) == calls
