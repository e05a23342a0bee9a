"""Prepare, activate, stop, delete over an in-memory provider and real files."""

import hashlib
import json
import stat

import pytest

from oce.contracts.credential_gateway import AttachmentStatus
from oce.contracts.refusals import DriverRefusal, StillPending, TransientDependency
from oce.contracts.sandbox import HarnessObservation, HarnessState, HarnessStatus
from oce.domain.failures import Tempo


def route_of(settings, revision):
    return json.loads((settings.routes_dir / f"{revision.agent_id}.json").read_bytes())


HELD = {
    "component": "agent",
    "check": "login",
    "checkedAt": "2026-01-02T03:04:05Z",
    "code": "AUTHENTICATION_FAILED",
}


async def test_prepare_reaches_serving_and_leaves_the_route_closed(
    compute, revision, context, settings, provider, steps
):
    provider.statuses[:] = [HarnessStatus(state="starting"), HarnessStatus(state="serving")]
    found = await compute.prepare_revision(revision, context)
    assert (found.revision_id, found.ready, found.runtime_failure) == (revision.id, True, None)
    assert steps.names == [
        "storage",
        "gateway",
        "credentials",
        "sandbox",
        "endpoint",
        "readiness",
        "attachments",
    ]
    route = route_of(settings, revision)
    assert (route["generation"], route["revisionId"], route["target"]) == (1, None, None)
    path = settings.routes_dir / f"{revision.agent_id}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sandbox = provider.sandboxes[revision.id]
    environment = {entry.name: entry.value for entry in sandbox.requirements.environment}
    token = route["transportToken"]
    assert environment["APP_TOKEN_SHA"] == hashlib.sha256(token.encode()).hexdigest()
    assert token not in repr(sandbox)


async def test_repeating_everything_creates_one_sandbox_and_one_generation(
    compute, revision, context, settings, provider, agent_gateway
):
    for _ in range(2):
        await compute.prepare_revision(revision, context)
        await compute.activate_revision(revision, context)
    assert provider.created == [revision.id]
    route = route_of(settings, revision)
    assert route == {
        "version": 1,
        "namespaceId": revision.namespace_id,
        "namespaceName": "team",
        "agentId": revision.agent_id,
        "agentName": "scout",
        "generation": 2,
        "revisionId": revision.id,
        "target": route["target"],
        "connect": "127.0.0.1:17670",
        "caFile": None,
        "caBundle": "PEM",
        "transportToken": route["transportToken"],
        "drainSeconds": 30,
    }
    assert route["target"].startswith("wss://sb-")


async def test_candidate_leaves_the_serving_route_alone_until_it_is_activated(
    compute, context, settings, agent_gateway, make_revision
):
    first, second = make_revision(1), make_revision(2)
    await compute.prepare_revision(first, context)
    await compute.activate_revision(first, context)
    before = route_of(settings, first)
    await compute.prepare_revision(second, context)
    assert route_of(settings, first) == before
    await compute.activate_revision(second, context)
    assert route_of(settings, first)["revisionId"] == second.id
    await compute.retire_revision(first, context)
    assert route_of(settings, first)["revisionId"] == second.id
    with pytest.raises(DriverRefusal) as refused:
        await compute.activate_revision(first, context)
    assert (refused.value.code, refused.value.tempo) == ("ACTIVE_REVISION_CHANGED", Tempo.RETRY)


async def test_starting_for_long_is_pending_and_a_silent_gateway_is_named(
    compute, revision, context, provider
):
    provider.statuses[:] = [HarnessStatus(state="starting")]
    assert not (await compute.prepare_revision(revision, context)).ready
    provider.statuses[:] = [TransientDependency("SANDBOX_GATEWAY_UNAVAILABLE")]
    with pytest.raises(TransientDependency):
        await compute.prepare_revision(revision, context)


async def test_held_failure_is_reported_and_a_malformed_one_is_not(
    compute, revision, context, provider
):
    provider.statuses[:] = [HarnessStatus(state="failed", failure_document=HELD)]
    found = await compute.prepare_revision(revision, context)
    assert found.runtime_failure.code == "AUTHENTICATION_FAILED"
    provider.statuses[:] = [HarnessStatus(state="failed", failure_document={"surprise": 1})]
    assert (await compute.prepare_revision(revision, context)).runtime_failure is None


@pytest.mark.parametrize("code", ["HARNESS_EXITED", "SANDBOX_FAILED"])
async def test_a_terminal_record_ends_the_wait_at_the_first_look(
    compute, revision, context, provider, code
):
    provider.statuses[:] = [HarnessStatus(state="starting")]
    provider.observation = HarnessObservation(state=HarnessState.LOST, code=code)
    with pytest.raises(DriverRefusal) as refused:
        await compute.prepare_revision(revision, context)
    assert (refused.value.code, refused.value.tempo) == (code, Tempo.PERMANENT)
    assert provider.created == [revision.id]


async def test_attachments_are_waited_for_and_a_withheld_one_fails(
    compute, revision, context, provider
):
    provider.attachments[:] = [AttachmentStatus.PENDING, AttachmentStatus.READY]
    assert (await compute.prepare_revision(revision, context)).ready
    provider.attachments[:] = [AttachmentStatus.PENDING]
    assert not (await compute.prepare_revision(revision, context)).ready
    provider.attachments[:] = [AttachmentStatus.WITHHELD]
    with pytest.raises(DriverRefusal) as refused:
        await compute.prepare_revision(revision, context)
    assert refused.value.code == "CREDENTIAL_ATTACHMENT_FAILED"


async def test_activation_waits_for_the_drain_and_names_an_absent_gateway(
    compute, revision, context, agent_gateway, settings
):
    await compute.prepare_revision(revision, context)
    agent_gateway.drains = 3
    await compute.activate_revision(revision, context)
    agent_gateway.drains = 10_000
    with pytest.raises(StillPending):
        await compute.activate_revision(revision, context)
    settings.gateway_control_socket.unlink()
    with pytest.raises(TransientDependency) as refused:
        await compute.activate_revision(revision, context)
    assert refused.value.code == "AGENT_GATEWAY_UNAVAILABLE"


async def test_retiring_closes_only_its_own_route_and_delete_leaves_nothing(
    compute, context, settings, provider, agent_gateway, make_revision, tmp_path
):
    first, second = make_revision(1), make_revision(2)
    await compute.prepare_revision(first, context)
    await compute.prepare_revision(second, context)
    await compute.activate_revision(second, context)
    await compute.retire_revision(first, context)
    assert route_of(settings, first)["revisionId"] == second.id
    await compute.retire_revision(second, context)
    await compute.retire_revision(second, context)
    route = route_of(settings, first)
    assert (route["revisionId"], route["target"], route["generation"]) == (None, None, 3)
    assert provider.sandboxes == {}
    await compute.delete_agent(context)
    await compute.delete_agent(context)
    assert list(settings.routes_dir.iterdir()) == []
    assert list(settings.agents_dir.iterdir()) == []
    assert not list((tmp_path / "secrets").rglob("*.json"))


async def test_retiring_and_deleting_what_never_existed_is_fine(compute, revision, context):
    await compute.retire_revision(revision, context)
    await compute.retire_revision(revision, context)
    await compute.delete_agent(context)


async def test_a_lost_claim_prevents_the_effect(compute, revision, context, provider, steps):
    steps.fail_at = "sandbox"
    with pytest.raises(RuntimeError):
        await compute.prepare_revision(revision, context)
    assert provider.created == []


async def test_other_computes_revision_and_other_harness_are_refused(
    compute, revision, context, make_revision
):
    with pytest.raises(DriverRefusal):
        compute.admit(context.agent, "embedded", "openclaw")
    compute.admit(context.agent, "dedicated", "codex")
