"""What else a gateway may answer: races, other ids, stale and endless pages, old versions, hostile texts (§22.5, 17, 21, 22; BR-08)."""

from __future__ import annotations

import dataclasses

import grpc
import pytest
from openshell._proto import openshell_pb2

from oce.contracts.refusals import (
    ConfigurationRefused,
    DeletionUnconfirmed,
    DriverRefusal,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    TransientDependency,
    UnsupportedByDriver,
)
from oce.contracts.sandbox import LogRequest, PolicyApplication
from oce.domain import names
from oce.domain.secret import SecretText
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.drivers.openshell.settings import parse_settings
from oce.testing.openshell_bench import (
    CANARY,
    DOCUMENT,
    REVISION_ID,
    SETUP_TOKEN,
    TOKEN,
    a_revision,
    a_source,
)
from oce.testing.scripted_gateway import (
    HOSTILE,
    accepted,
    admission_limit,
    altered,
    broken_stream,
    lost,
    repeated_page,
    replay_refused,
    stale,
    status,
    watch_warning,
)

CODE = grpc.StatusCode
OURS = (DriverRefusal, ConfigurationRefused, NotVisible, UnsupportedByDriver)


def box(bench):
    return bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]


# -- Namespace


async def test_g05_a_workspace_that_somebody_made_meanwhile_is_adopted_only_with_our_marks(bench):
    await bench.driver.ensure_namespace(bench.namespace())
    bench.gateway.script("GetWorkspace", status(CODE.NOT_FOUND))
    await bench.driver.ensure_namespace(bench.namespace())
    workspace = bench.gateway.state.workspaces[bench.workspace]
    workspace.metadata.labels["extra"] = "x"
    bench.gateway.script("GetWorkspace", status(CODE.NOT_FOUND))
    with pytest.raises(OwnershipConflict, match=r"labels\.extra"):
        await bench.driver.ensure_namespace(bench.namespace())
    bench.gateway.script("GetWorkspace", status(CODE.NOT_FOUND), status(CODE.NOT_FOUND))
    with pytest.raises(DriverRefusal, match="vanished"):
        await bench.driver.ensure_namespace(bench.namespace())


# -- Removal


async def test_g17_a_workspace_that_was_read_and_is_not_found_by_its_deletion_is_unconfirmed(bench):
    await bench.driver.ensure_namespace(bench.namespace())
    absent = openshell_pb2.DELETION_OUTCOME_ALREADY_ABSENT
    answer = openshell_pb2.DeleteWorkspaceResponse(outcome=absent)
    bench.gateway.script("DeleteWorkspace", stale(answer))
    with pytest.raises(DeletionUnconfirmed):
        await bench.driver.cleanup(bench.removal(whole=True))


@pytest.mark.parametrize("outcome", ["ACCEPTED", "ALREADY_ABSENT"])
async def test_g17_a_profile_is_gone_only_when_a_read_misses_it(bench, outcome):
    await bench.deploy()
    await bench.driver.cleanup(bench.removal())
    await bench.keys.remove_source(bench.namespace(), a_source())
    answer = openshell_pb2.DeleteProviderProfileResponse(
        outcome=getattr(openshell_pb2, f"DELETION_OUTCOME_{outcome}")
    )
    bench.gateway.script("DeleteProviderProfile", stale(answer))
    with pytest.raises(StillPending if outcome == "ACCEPTED" else DeletionUnconfirmed):
        await bench.driver.cleanup(bench.removal(whole=True))
    await bench.driver.cleanup(bench.removal(whole=True))
    assert bench.gateway.state.profiles == {}


@pytest.mark.parametrize("phase", range(10))
async def test_br08_a_revision_can_be_removed_from_every_phase(bench, phase):
    await bench.deploy()
    box(bench).status.phase = phase
    bench.gateway.deletion_reads = 1
    await bench.driver.cleanup(bench.removal())
    assert not bench.gateway.state.sandboxes
    assert len(bench.gateway.state.providers) == 1


async def test_g17_a_recreated_sandbox_of_another_id_ends_the_wait(bench):
    await bench.deploy()
    other = openshell_pb2.SandboxResponse(sandbox=box(bench))
    other.sandbox.metadata.id = "another"
    bench.gateway.script("DeleteSandbox", accepted())
    bench.gateway.script("GetSandbox", altered(lambda r: r), stale(other))
    await bench.driver.cleanup(bench.removal())
    assert bench.clock.time == 0


@pytest.mark.parametrize("method", ["DeleteSandbox", "DeleteProvider", "DeleteWorkspace"])
async def test_g17_a_lost_answer_of_a_deletion_is_settled_by_the_next_pass(bench, method):
    await bench.deploy()
    whole = method == "DeleteWorkspace"
    bench.gateway.script(method, lost(after=True))
    with pytest.raises(TransientDependency):
        await bench.driver.cleanup(bench.removal(whole=whole))
    await bench.driver.cleanup(bench.removal(whole=whole))
    assert not bench.gateway.state.sandboxes


async def test_a_sandbox_made_under_an_earlier_name_prefix_is_still_the_revisions(bench):
    await bench.prepare()
    earlier = OpenShellSandbox(
        "box", parse_settings({"local": {}, "sandboxNamePrefix": "ab"}), bench.client, bench.clock
    )
    await earlier.provision_harness(bench.harness())
    bench.gateway.page_size = 1
    await bench.driver.provision_harness(bench.harness(a_revision(id=f"rev_1{REVISION_ID[5:]}")))
    await bench.driver.cleanup(bench.removal())
    (left,) = bench.gateway.state.sandboxes.values()
    assert left.metadata.annotations["openclaw.dev/revision-id"] == f"rev_1{REVISION_ID[5:]}"


async def test_a_page_that_repeats_or_never_ends_removes_nothing_and_records_nothing(bench):
    await bench.deploy()
    bench.gateway.script("ListSandboxes", repeated_page(), repeated_page())
    with pytest.raises(DriverRefusal, match="pages"):
        await bench.driver.cleanup(bench.removal())
    assert names.runtime_provider(REVISION_ID) in [n for _, n in bench.gateway.state.providers]
    await bench.driver.cleanup(bench.removal())


async def test_a_stale_page_does_not_make_a_deletion_final(bench):
    await bench.deploy()
    await bench.driver.cleanup(bench.removal())
    held = openshell_pb2.ListSandboxesResponse()
    await bench.driver.provision_harness(bench.harness(a_revision(id=f"rev_1{REVISION_ID[5:]}")))
    bench.gateway.script("ListSandboxes", stale(held))
    with pytest.raises(StillPending):
        await bench.driver.cleanup(bench.removal(whole=True))
    await bench.driver.cleanup(bench.removal(whole=True))
    assert not bench.gateway.state.workspaces


# -- Versions


@pytest.mark.parametrize("version", ["0.1.0", "0.1.1", "0.1.2"])
async def test_an_older_gateway_is_named_with_what_it_lacks_and_what_to_run(bench, version):
    await bench.prepare()
    bench.gateway.version = version
    with pytest.raises(RevisionUnsupported) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == "SANDBOX_GATEWAY_TOO_OLD"
    for words in ("restart policy", "bearer passthrough", "profile files", "0.1.3"):
        assert words in str(refused.value)
    assert not bench.gateway.made("ImportProviderProfiles")[1:]
    assert not bench.gateway.made("CreateSandbox")


@pytest.mark.parametrize("version", ["0.1.3", "0.1.4", "0.1.5"])
async def test_the_gateways_that_have_the_features_work(bench, version):
    bench.gateway.version = version
    await bench.deploy()
    await bench.driver.provision_harness(bench.harness())
    await bench.driver.cleanup(bench.removal())


# -- Refusals of the create


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (admission_limit(), "SANDBOX_ADMISSION_LIMIT_REACHED"),
        (lost(after=True), "SANDBOX_GATEWAY_UNAVAILABLE"),
    ],
)
async def test_g10_a_busy_gateway_is_transient_and_the_same_id_goes_on(bench, answer, code):
    await bench.prepare()
    bench.gateway.script("CreateSandbox", answer)
    with pytest.raises(TransientDependency) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == code
    await bench.driver.provision_harness(bench.harness())
    sent = {message.request_id for message in bench.gateway.made("CreateSandbox")}
    assert sent == {REVISION_ID.removeprefix("rev_")}


async def test_g10_a_refused_replay_whose_sandbox_is_there_is_adopted(bench):
    await bench.deploy()
    bench.gateway.script("GetSandbox", status(CODE.NOT_FOUND))
    bench.gateway.script("CreateSandbox", replay_refused("REQUEST_REPLAY_UNAVAILABLE"))
    await bench.driver.provision_harness(bench.harness())
    assert len(bench.gateway.state.sandboxes) == 1


# -- Secrets and hostile texts


async def _everything(bench):
    """Walk through the Driver's members; nothing here may show a secret whatever fails."""
    driver, revision = bench.driver, bench.revision()
    await driver.ensure_namespace(bench.namespace())
    await bench.register()
    bench.stage_files()
    await driver.provision_harness(bench.with_files())
    await driver.harness_endpoint(bench.with_files())
    await driver.observe_harness(revision)
    await driver.read_sandbox_logs(revision, LogRequest(lines=5))
    snapshot = driver.admit_network_policy([], 1)
    seen = await driver.observe_network_policy(revision, snapshot)
    await driver.apply_network_policy(
        revision,
        PolicyApplication(
            snapshot=snapshot, expected_provider_version=seen.provider_version, operation_id="o"
        ),
    )
    await driver.read_policy_recommendations(revision, 5)
    attachment = bench.harness().requirements.credential_attachments[0]
    await bench.keys.attachment_status(revision, attachment)
    await bench.keys.withdraw(revision, attachment)
    await driver.cleanup(bench.removal())
    await bench.keys.remove_source(bench.namespace(), a_source())
    await driver.cleanup(bench.removal(whole=True))


async def test_g21_secrets_planted_in_every_failing_call_never_come_out(bench, caplog):
    caplog.set_level("INFO")
    await _everything(bench)
    secrets = (CANARY, TOKEN, SETUP_TOKEN, DOCUMENT)
    planted = f"{CANARY} {TOKEN} {SETUP_TOKEN} {DOCUMENT}"
    for method in dict.fromkeys(bench.gateway.methods()):
        bench.gateway.unscript()
        caplog.clear()
        bench.gateway.script(method, *[status(CODE.INTERNAL, details=planted)] * 50)
        if method in {"GetSandbox", "GetWorkspace"}:
            bench.gateway.script(method, *[status(CODE.UNAVAILABLE, details=planted)] * 50)
        try:
            await _everything(bench)
        except OURS as refused:
            shown = f"{refused} {refused!r} {refused.__cause__}"
            assert not any(secret in shown for secret in secrets), method
        if (
            method != "CreateSandbox"
        ):  # the one method whose supplier text the log keeps, normalised
            assert not any(secret in caplog.text for secret in secrets), method
        bench.gateway.unscript()
        await bench.driver.cleanup(bench.removal(whole=True))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_text_anywhere_is_refused_or_harmless(bench, text, caplog):
    caplog.set_level("INFO")
    await bench.deploy()
    state = bench.gateway.state
    clean = openshell_pb2.Sandbox()
    clean.CopyFrom(box(bench))

    def change(field):
        box(bench).CopyFrom(clean)
        field(box(bench))

    for field in (
        lambda s: setattr(s.metadata, "name", text),
        lambda s: s.metadata.labels.update({text: text}),
        lambda s: s.metadata.annotations.update({"x": text}),
        lambda s: s.spec.environment.update({"HOME": text}),
        lambda s: s.spec.command.append(text),
    ):
        change(field)
        with pytest.raises(OwnershipConflict):
            await bench.driver.provision_harness(bench.harness())
    box(bench).CopyFrom(clean)
    place = (bench.workspace, bench.sandbox)
    state.services[place].url = f"http://{text}/"
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.harness_endpoint(bench.harness())
    assert text not in str(refused.value)
    chunk = openshell_pb2.PolicyChunk(id="c1", status=text, rationale=text, binary="/usr/bin/curl")
    endpoint = chunk.proposed_rule.endpoints.add(host="docs.example.com")
    endpoint.ports.append(443)
    state.drafts.append(chunk)
    (found,) = await bench.driver.read_policy_recommendations(bench.revision(), 5)
    assert found.state == "unknown"
    assert found.reason.isprintable()
    assert len(found.reason) <= 512
    assert "\x1b" not in caplog.text


# -- Sources


async def test_g22_a_type_that_is_no_longer_offered_stays_removable(bench):
    await bench.prepare()
    gone = dataclasses.replace(a_source(), type="bearer-token")
    with pytest.raises(ConfigurationRefused):
        await bench.keys.register_source(bench.namespace(), gone, {"token": SecretText(CANARY)})
    await bench.keys.remove_source(bench.namespace(), gone)
    assert not bench.gateway.state.providers


# -- The scripted gateway's own streams


async def test_a_watch_can_carry_errors_in_band_and_break(bench):
    await bench.deploy()
    bench.gateway.watch_events = [watch_warning("log stream lagged"), watch_warning(HOSTILE[0])]
    stub = bench.client._unary("WatchSandbox")
    request = openshell_pb2.WatchSandboxRequest(sandbox=bench.sandbox)
    request.workspace_scope.workspace = bench.workspace
    seen = [event.WhichOneof("payload") async for event in stub(request)]
    assert seen == ["sandbox", "warning", "warning"]
    bench.gateway.script("WatchSandbox", broken_stream(CODE.UNAVAILABLE, after_events=1))
    call = stub(request)
    assert (await call.read()).WhichOneof("payload") == "sandbox"
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
