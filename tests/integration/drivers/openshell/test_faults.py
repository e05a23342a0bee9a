"""What the gateway can do to us, and what we make of it (reference/sandbox-openshell.md §22, failure cases BR-01, 05, 06, 08, 12)."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from openshell._proto import openshell_pb2

from oce.contracts.credential_gateway import AttachmentStatus
from oce.contracts.refusals import (
    ConfigurationRefused,
    CredentialSourceRefused,
    DeletionUnconfirmed,
    DriverRefusal,
    GatewayUnauthorized,
    NamespaceRefused,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    TransientDependency,
)
from oce.contracts.sandbox import CredentialAttachment, EnvironmentLiteral, LogRequest
from oce.domain import names
from oce.domain.failures import Tempo
from oce.domain.secret import SecretText
from oce.drivers.openshell.failures import GatewayFailure
from oce.drivers.openshell.wire import Gateway
from oce.testing.openshell_bench import (
    CANARY,
    REVISION_ID,
    SOURCE_ID,
    a_backend,
    a_revision,
    a_source,
)
from oce.testing.scripted_gateway import altered, lost, silence, status

CODE = grpc.StatusCode
PHASE = openshell_pb2


def _box(bench):
    return bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]


# -- Identity of the create


async def test_br01_the_retry_of_a_lost_create_is_byte_identical_and_makes_one_sandbox(bench):
    await bench.prepare()
    bench.gateway.script("CreateSandbox", lost(after=False), lost(after=False))
    for _ in range(2):
        with pytest.raises(TransientDependency) as refused:
            await bench.driver.provision_harness(bench.harness())
        assert refused.value.code == "SANDBOX_GATEWAY_UNAVAILABLE"
    await bench.driver.provision_harness(bench.harness())
    first, *others = bench.gateway.made("CreateSandbox")
    assert first.request_id == REVISION_ID.removeprefix("rev_")
    assert all(
        o.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
        for o in others
    )
    assert len(bench.gateway.state.sandboxes) == 1


@pytest.mark.parametrize(
    "reason",
    ["REQUEST_OUTCOME_UNCERTAIN", "REQUEST_ID_PAYLOAD_MISMATCH", "REQUEST_REPLAY_UNAVAILABLE"],
)
async def test_g10_a_refused_replay_takes_the_next_id_and_nothing_else_does(bench, reason):
    await bench.prepare()
    bench.gateway.script("CreateSandbox", *[status(CODE.FAILED_PRECONDITION, reason)] * 3)
    await bench.driver.provision_harness(bench.harness())
    sent = [m.request_id for m in bench.gateway.made("CreateSandbox")]
    assert sent == [names.request_id(REVISION_ID, n) for n in range(4)]


async def test_g10_sixteen_spent_ids_end_with_a_remedy(bench):
    await bench.prepare()
    refusal = status(CODE.FAILED_PRECONDITION, "REQUEST_OUTCOME_UNCERTAIN")
    bench.gateway.script("CreateSandbox", *[refusal] * 20)
    with pytest.raises(DriverRefusal, match="key material"):
        await bench.driver.provision_harness(bench.harness())
    assert len({m.request_id for m in bench.gateway.made("CreateSandbox")}) == 16


@pytest.mark.parametrize(
    ("answer", "code", "tempo"),
    [
        (status(CODE.FAILED_PRECONDITION), "DEPENDENCY_UNAVAILABLE", Tempo.RETRY),
        (status(CODE.FAILED_PRECONDITION, "SOMETHING_ELSE"), "DEPENDENCY_UNAVAILABLE", Tempo.RETRY),
        (
            status(CODE.FAILED_PRECONDITION, "CONFINEMENT_UNAVAILABLE"),
            "SANDBOX_CONFINEMENT_UNAVAILABLE",
            Tempo.PERMANENT,
        ),
        (
            status(CODE.RESOURCE_EXHAUSTED, details="Durable mutation admission limit reached"),
            "SANDBOX_ADMISSION_LIMIT_REACHED",
            Tempo.TRANSIENT,
        ),
        (status(CODE.RESOURCE_EXHAUSTED, details="x"), "DEPENDENCY_UNAVAILABLE", Tempo.RETRY),
        (status(CODE.DEADLINE_EXCEEDED), "SANDBOX_GATEWAY_UNAVAILABLE", Tempo.TRANSIENT),
        (status(CODE.PERMISSION_DENIED), "SANDBOX_GATEWAY_UNAUTHORIZED", Tempo.PERMANENT),
        (status(CODE.UNAUTHENTICATED), "SANDBOX_GATEWAY_UNAUTHORIZED", Tempo.RETRY),
    ],
)
async def test_g10_an_ordinary_refusal_of_the_create_consumes_no_second_id(
    bench, answer, code, tempo
):
    await bench.prepare()
    bench.gateway.script("CreateSandbox", answer)
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert (refused.value.code, refused.value.tempo) == (code, tempo)
    assert len(bench.gateway.made("CreateSandbox")) == 1


async def test_g12_supplier_text_stays_in_the_log_normalised(bench, caplog):
    await bench.prepare()
    hostile = "line\x1b[31m one\nline two " + "x" * 2000
    bench.gateway.script("CreateSandbox", status(CODE.INTERNAL, details=hostile))
    bench.gateway.script("GetProvider", status(CODE.INTERNAL, details="other " + hostile))
    for _ in range(2):
        with pytest.raises(DriverRefusal) as refused:
            await bench.driver.provision_harness(bench.harness())
        assert "line" not in str(refused.value)
    assert "line [31m one line two xxx" in caplog.text
    assert "\x1b" not in caplog.text
    assert "other" not in caplog.text
    assert max(len(r.message) for r in caplog.records) <= 512


# -- Adoption


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            lambda s: s.metadata.annotations.update({"openclaw.dev/agent-id": "agt_x"}),
            "annotations.",
        ),
        (lambda s: s.metadata.annotations.update({"extra": "x"}), "annotations.extra"),
        (lambda s: s.metadata.labels.update({"extra": "x"}), "labels.extra"),
        (lambda s: s.spec.environment.update({"APP_SERVER_PORT": "1"}), "spec.environment."),
        (lambda s: s.spec.command.append("-x"), "spec.command"),
        (lambda s: s.spec.providers.append("p"), "spec.providers"),
        (lambda s: setattr(s.spec.policy.landlock, "compatibility", "best_effort"), "spec.policy."),
    ],
)
async def test_g11_another_sandbox_is_a_conflict_that_names_the_field(bench, change, field):
    await bench.deploy()
    change(_box(bench))
    with pytest.raises(OwnershipConflict) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.field.startswith(field)
    assert len(bench.gateway.made("CreateSandbox")) == 1


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (PHASE.SANDBOX_PHASE_ERROR, "SANDBOX_FAILED"),
        (PHASE.SANDBOX_PHASE_STOPPED, "SANDBOX_FAILED"),
        (PHASE.SANDBOX_PHASE_STOPPING, "SANDBOX_FAILED"),
        (PHASE.SANDBOX_PHASE_COMPLETED, "HARNESS_EXITED"),
        (PHASE.SANDBOX_PHASE_DELETING, "SANDBOX_DELETION_PENDING"),
    ],
)
async def test_g11_br12_br08_a_dead_sandbox_fails_at_once_by_its_code_and_can_be_removed(
    bench, phase, code
):
    await bench.deploy()
    _box(bench).status.phase = phase
    bench.gateway.deletion_reads = 3
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == code
    await bench.driver.cleanup(bench.removal())
    assert not bench.gateway.state.sandboxes


async def test_a_machine_without_a_right_is_named(bench):
    await bench.deploy()
    _box(bench).status.phase = PHASE.SANDBOX_PHASE_ERROR
    _box(bench).status.conditions.add(type="Ready", reason="ConfinementUnavailable")
    with pytest.raises(RevisionUnsupported) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == "SANDBOX_CONFINEMENT_UNAVAILABLE"


@pytest.mark.parametrize("field", ["target_port", "authorization_mode", "presence"])
async def test_g11_g15_another_exposure_is_a_conflict_and_never_repaired(bench, field):
    await bench.deploy()
    place = (bench.workspace, bench.sandbox)
    if field == "presence":
        del bench.gateway.state.services[place]
    else:
        setattr(bench.gateway.state.services[place].endpoint, field, 1)
    with pytest.raises(OwnershipConflict) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.field == field
    assert "ExposeService" not in bench.gateway.methods()


@pytest.mark.parametrize("version", ["0.1.0", "0.1.2", "", "nonsense"])
async def test_an_old_gateway_is_refused_before_anything_is_made(bench, version):
    await bench.prepare()
    bench.gateway.version = version
    with pytest.raises(RevisionUnsupported) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == "SANDBOX_GATEWAY_TOO_OLD"
    assert not bench.gateway.made("CreateSandbox")


async def test_a_gateway_that_does_not_echo_a_feature_is_too_old_whatever_it_says(bench):
    await bench.prepare()

    def forget(response):
        response.sandbox.spec.ClearField("restart_policy")
        return response

    bench.gateway.script("CreateSandbox", altered(forget))
    with pytest.raises(RevisionUnsupported) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == "SANDBOX_GATEWAY_TOO_OLD"


async def test_another_render_version_is_refused_not_guessed(bench):
    await bench.deploy()
    with pytest.raises(RevisionUnsupported):
        await bench.driver.provision_harness(bench.harness(a_revision(render_version=2)))


# -- Runtime provider and profile


async def test_g09_a_foreign_provider_or_a_drifted_config_is_a_conflict(bench):
    await bench.prepare()
    await bench.driver.provision_harness(bench.harness())
    provider = bench.gateway.state.providers[bench.workspace, names.runtime_provider(REVISION_ID)]
    provider.config["config_toml"] = "changed"
    with pytest.raises(OwnershipConflict, match=r"config\.config_toml"):
        await bench.driver.provision_harness(bench.harness())
    provider.metadata.labels["openclaw.dev/agent-id"] = "agt_other"
    with pytest.raises(OwnershipConflict, match="labels"):
        await bench.driver.provision_harness(bench.harness())
    bench.gateway.state.sandboxes.clear()
    with pytest.raises(OwnershipConflict):
        await bench.driver.cleanup(bench.removal())
    assert len(bench.gateway.state.providers) == 2


async def test_g17_an_unmanaged_profile_is_refused_and_an_outdated_one_updated(bench):
    await bench.deploy()
    profile = bench.gateway.state.profiles[bench.workspace, "oce-codex-runtime"]
    profile.annotations["openclaw.dev/managed-by"] = "openclaw-enterprise:old"
    await bench.driver.provision_harness(bench.harness())
    assert len(bench.gateway.made("UpdateProviderProfiles")) == 1
    profile = bench.gateway.state.profiles[bench.workspace, "oce-codex-runtime"]
    profile.annotations.clear()
    with pytest.raises(OwnershipConflict):
        await bench.driver.provision_harness(bench.harness())


# -- Namespace


async def test_g05_a_foreign_or_ending_workspace_is_refused(bench):
    await bench.driver.ensure_namespace(bench.namespace())
    workspace = bench.gateway.state.workspaces[bench.workspace]
    workspace.status.phase = 2
    with pytest.raises(OwnershipConflict, match="phase"):
        await bench.driver.ensure_namespace(bench.namespace())
    workspace.metadata.labels["openclaw.dev/namespace-id"] = "ns_other"
    for call in (
        bench.driver.ensure_namespace(bench.namespace()),
        bench.driver.cleanup(bench.removal(whole=True)),
    ):
        with pytest.raises(OwnershipConflict, match="labels"):
            await call


@pytest.mark.parametrize("code", [CODE.PERMISSION_DENIED, CODE.UNAUTHENTICATED])
async def test_g05_a_refused_identity_is_permanent_for_a_namespace(bench, code):
    bench.gateway.refuses = code
    for call in (
        bench.driver.ensure_namespace(bench.namespace()),
        bench.driver.cleanup(bench.removal(whole=True)),
    ):
        with pytest.raises(NamespaceRefused) as refused:
            await call
        assert str(refused.value) == code.name


async def test_g17_leftovers_of_unknown_revisions_go_with_the_namespace_over_all_pages(bench):
    await bench.deploy()
    state = bench.gateway.state
    for number in range(3):
        other = f"rev_{number}c1e0a52-8f1b-4c63-a1d7-9d9f4f0e6b42"
        await bench.driver.provision_harness(bench.harness(a_revision(id=other)))
    bench.gateway.page_size = 1
    await bench.driver.cleanup(bench.removal(whole=True))
    assert not (state.sandboxes)
    assert not (state.providers)
    assert not (state.profiles)
    assert not (state.workspaces)


async def test_pages_that_repeat_are_not_believed(bench):
    await bench.deploy()

    def again(response):
        response.next_page_token = "0"
        return response

    bench.gateway.script("ListSandboxes", altered(again), altered(again))
    with pytest.raises(DriverRefusal, match="pages"):
        await bench.driver.cleanup(bench.removal(whole=True))
    assert bench.workspace in bench.gateway.state.workspaces


# -- Gone only on proof


async def test_a_concealed_sandbox_is_never_recorded_gone(bench):
    await bench.deploy()
    bench.gateway.concealed = True
    attachment = CredentialAttachment(source_id=SOURCE_ID, ref=names.credential_provider(SOURCE_ID))
    for call in (
        bench.driver.cleanup(bench.removal()),
        bench.keys.attachment_status(bench.revision(), attachment),
        bench.keys.withdraw(bench.revision(), attachment),
        bench.keys.remove_source(bench.namespace(), a_source()),
        bench.driver.harness_endpoint(bench.harness()),
    ):
        with pytest.raises(GatewayUnauthorized) as refused:
            await call
        assert refused.value.tempo is Tempo.PERMANENT
        assert refused.value.hint_code == "sandbox-gateway-identity"


@pytest.mark.parametrize(
    ("code", "tempo"),
    [(CODE.PERMISSION_DENIED, Tempo.PERMANENT), (CODE.UNAUTHENTICATED, Tempo.RETRY)],
)
async def test_the_control_question_has_two_tempos(bench, code, tempo):
    await bench.prepare()
    bench.gateway.script("GetWorkspace", status(code))
    with pytest.raises(GatewayUnauthorized) as refused:
        await bench.driver.cleanup(bench.removal())
    assert refused.value.tempo is tempo


async def test_a_second_read_that_finds_it_goes_on_to_delete(bench):
    await bench.deploy()
    bench.gateway.script("GetSandbox", status(CODE.NOT_FOUND))
    await bench.driver.cleanup(bench.removal())
    assert not bench.gateway.state.sandboxes


async def test_a_deletion_that_finds_nothing_after_a_read_is_unconfirmed(bench):
    await bench.deploy()

    def absent(response):
        response.outcome = openshell_pb2.DELETION_OUTCOME_ALREADY_ABSENT
        return response

    for method in ("DeleteSandbox", "DeleteProvider"):
        bench.gateway.script(method, altered(absent))
        with pytest.raises(DeletionUnconfirmed):
            await bench.driver.cleanup(bench.removal())
    await bench.driver.cleanup(bench.removal())


async def test_a_deletion_of_another_object_is_unconfirmed(bench):
    await bench.deploy()

    def other(response):
        response.sandbox_id = "another"
        return response

    bench.gateway.script("DeleteSandbox", altered(other))
    with pytest.raises(DeletionUnconfirmed):
        await bench.driver.cleanup(bench.removal())


async def test_g17_br06_accepted_is_pending_then_done_and_providers_wait(bench):
    await bench.deploy()
    bench.gateway.accepts_deletions = True
    bench.gateway.deletion_reads = 100
    with pytest.raises(StillPending) as refused:
        await bench.driver.cleanup(bench.removal())
    assert refused.value.code == "SANDBOX_DELETION_PENDING"
    assert bench.clock.time <= 2.0
    assert "DeleteProvider" not in bench.gateway.methods()
    bench.gateway.deletion_reads = 2
    await bench.driver.cleanup(bench.removal())
    methods = bench.gateway.methods()
    assert methods.index("DeleteSandbox") < methods.index("DeleteProvider")


async def test_a_lost_version_race_is_repeated_a_few_times(bench):
    await bench.deploy()
    race = status(CODE.ABORTED, "RESOURCE_VERSION_CONFLICT")
    bench.gateway.script("DeleteSandbox", race, race)
    await bench.driver.cleanup(bench.removal())
    bench.gateway.state.sandboxes.clear()


async def test_br08_a_create_that_arrives_late_is_still_removed(bench):
    await bench.deploy()
    late = _box(bench)
    bench.gateway.state.sandboxes.clear()
    place = (bench.workspace, bench.sandbox)

    def arrive(response):
        bench.gateway.state.sandboxes[place] = late
        return response

    bench.gateway.script("GetWorkspace", altered(lambda r: r), altered(arrive))
    bench.gateway.script("GetProvider", status(CODE.NOT_FOUND))
    with pytest.raises(StillPending):
        await bench.driver.cleanup(bench.removal())
    await bench.driver.cleanup(bench.removal())
    assert not bench.gateway.state.sandboxes
    request = bench.gateway.made("CreateSandbox")[0]
    request.request_id = names.request_id(REVISION_ID, 1)
    with pytest.raises(GatewayFailure):
        await bench.client.call("CreateSandbox", request)


async def test_br05_a_stranger_with_our_name_is_not_deleted(bench):
    await bench.deploy()
    _box(bench).metadata.annotations["openclaw.dev/revision-id"] = "rev_other"
    with pytest.raises(OwnershipConflict):
        await bench.driver.cleanup(bench.removal())
    assert "DeleteSandbox" not in bench.gateway.methods()


# -- Preconditions come before any call


@pytest.mark.parametrize(
    ("revision", "changes", "code"),
    [
        ({"sandbox_driver_id": "other"}, {}, "SANDBOX_DRIVER_MISMATCH"),
        ({"namespace_id": "ns_other"}, {}, "INVALID_REVISION_OWNER"),
        ({}, {"login_mode": "chatgptAuthTokens"}, "SANDBOX_HARNESS_UNSUPPORTED"),
        ({}, {"labels": {}}, "SANDBOX_HARNESS_UNSUPPORTED"),
        ({}, {"files": ()}, "SANDBOX_HARNESS_UNSUPPORTED"),
        ({}, {"workspace_mounts": ()}, "SANDBOX_HARNESS_UNSUPPORTED"),
        (
            {},
            {"environment": (EnvironmentLiteral(name="APP_SERVER_TOKEN", value="t"),)},
            "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED",
        ),
        (
            {},
            {"environment": (EnvironmentLiteral(name="APP_TOKEN_SHA", value="AB" * 32),)},
            "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED",
        ),
        (
            {},
            {"credential_attachments": (CredentialAttachment(source_id="cs_x", ref="other"),)},
            "SANDBOX_HARNESS_UNSUPPORTED",
        ),
    ],
)
async def test_g07_what_never_runs_is_refused_without_a_call(bench, revision, changes, code):
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.provision_harness(bench.harness(a_revision(**revision), **changes))
    assert refused.value.code == code
    assert bench.gateway.requests == []


# -- Observation and logs


async def test_g20_observation_is_one_read_and_a_failed_one_is_unknown(bench):
    await bench.deploy()
    before = len(bench.gateway.requests)
    assert (await bench.driver.observe_harness(bench.revision())).state == "running"
    assert bench.gateway.methods()[before:] == ["GetSandbox"]
    bench.gateway.refuses = CODE.PERMISSION_DENIED
    assert (await bench.driver.observe_harness(bench.revision())).state == "unknown"


async def test_g19_logs_are_bounded_and_of_one_sandbox(bench):
    await bench.prepare()
    with pytest.raises(NotVisible):
        await bench.driver.read_sandbox_logs(bench.revision(), LogRequest(lines=5))
    await bench.driver.provision_harness(bench.harness())
    line = openshell_pb2.SandboxLogLine(
        sandbox_id="s1",
        level="OCSF",
        message="NET:OPEN [MED] DENIED /usr/bin/curl(64) -> example.com:443 [policy:- engine:opa] "
        "[reason:endpoint example.com:443 is not allowed by any policy]",
    )
    line.event_time.FromSeconds(1_800_000_000)
    bench.gateway.state.logs.extend([line] * 9)
    chunk = await bench.driver.read_sandbox_logs(bench.revision(), LogRequest(lines=5))
    assert (len(chunk.lines), chunk.examined, chunk.sandbox) == (5, 9, bench.sandbox)
    decision = chunk.lines[0].decision
    assert (decision.allowed, decision.host, decision.port) == (False, "example.com", 443)
    bench.gateway.state.logs.append(openshell_pb2.SandboxLogLine(sandbox_id="s2"))
    with pytest.raises(DriverRefusal, match="two Sandboxes"):
        await bench.driver.read_sandbox_logs(bench.revision(), LogRequest(lines=5))


# -- Credential sources


async def test_g22_a_source_is_checked_before_anything_is_sent(bench):
    await bench.driver.ensure_namespace(bench.namespace())
    before = len(bench.gateway.requests)
    cases = [
        (a_source(type="bearer-token"), {"api_key": SecretText(CANARY)}),
        (a_source(config={"base_url": "http://x.example/v1"}), {"api_key": SecretText(CANARY)}),
        (a_source(config={"other": "x"}), {"api_key": SecretText(CANARY)}),
        (a_source(), {"api_key": SecretText(" ")}),
        (a_source(), {"api_key": SecretText("a\r\nb")}),
        (a_source(), {}),
    ]
    for source, secrets in cases:
        with pytest.raises(ConfigurationRefused) as refused:
            await bench.keys.register_source(bench.namespace(), source, secrets)
        assert CANARY not in str(refused.value)
    assert len(bench.gateway.requests) == before


async def test_a_source_lives_attaches_and_is_withdrawn(bench):
    await bench.deploy()
    source = a_source()
    (attachment,) = await bench.keys.attach_for_revision(bench.revision(), [source])
    assert attachment.ref == names.credential_provider(SOURCE_ID)
    ask = bench.keys.attachment_status
    assert await ask(bench.revision(), attachment) is AttachmentStatus.READY
    for number, state in ((2, "pending"), (4, "withheld"), (6, "failed"), (7, "pending")):
        bench.gateway.state.readiness[attachment.ref] = number
        assert await ask(bench.revision(), attachment) == state
    assert await bench.keys.withdraw(bench.revision(), attachment) == "revoked"
    assert await bench.keys.withdraw(bench.revision(), attachment) == "revoked"
    assert len(bench.gateway.made("DetachSandboxProvider")) == 1
    assert await ask(bench.revision(), attachment) is AttachmentStatus.ABSENT
    await bench.driver.cleanup(bench.removal())
    assert await bench.keys.withdraw(bench.revision(), attachment) == "absent"
    await bench.keys.remove_source(bench.namespace(), source)
    await bench.keys.remove_source(bench.namespace(), source)
    assert not [k for k in bench.gateway.state.profiles if "openai" in k[1]]
    assert (await bench.keys.source_status(bench.namespace(), source)).state == "absent"


async def test_g22_a_foreign_provider_is_not_adopted_as_a_source(bench):
    await bench.prepare()
    provider = bench.gateway.state.providers[bench.workspace, names.credential_provider(SOURCE_ID)]
    provider.metadata.labels["openclaw.dev/credential-source-id"] = "cs_other"
    with pytest.raises(OwnershipConflict):
        await bench.register()
    with pytest.raises(OwnershipConflict):
        await bench.keys.attach_for_revision(bench.revision(), [a_source()])


async def test_g22_two_sources_with_one_environment_name_are_a_conflict(bench):
    await bench.prepare()
    with pytest.raises(CredentialSourceRefused) as refused:
        await bench.keys.attach_for_revision(bench.revision(), [a_source(), a_source(id="cs_2")])
    assert refused.value.code == "CREDENTIAL_SOURCE_ENVIRONMENT_CONFLICT"


async def test_an_attached_provider_cannot_be_removed_yet(bench):
    await bench.deploy()
    with pytest.raises(StillPending):
        await bench.keys.remove_source(bench.namespace(), a_source())


# -- The wire


async def test_g18_a_rotated_token_file_is_honoured_by_the_next_call(bench, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    bench.restart(Gateway(a_backend(bench.gateway.port, token_path=str(token))))
    await bench.driver.ensure_namespace(bench.namespace())
    token.write_text("second\n")
    await bench.driver.ensure_namespace(bench.namespace())
    sent = [m["authorization"] for m in bench.gateway.metadata]
    assert sent[0] == "Bearer first"
    assert sent[-1] == "Bearer second"
    token.unlink()
    with pytest.raises(NamespaceRefused):
        await bench.driver.ensure_namespace(bench.namespace())
    token.write_text("third")
    await bench.driver.ensure_namespace(bench.namespace())


@pytest.mark.parametrize("after", [False, True])
async def test_g18_cancelling_the_caller_cancels_the_call(bench, after):
    bench.gateway.script("CreateWorkspace", silence(after=after))
    task = asyncio.create_task(bench.driver.ensure_namespace(bench.namespace()))
    await bench.gateway.hung.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await bench.gateway.given_up.wait()
    await bench.driver.ensure_namespace(bench.namespace())
    assert len(bench.gateway.state.workspaces) == 1


async def test_br14_a_silent_gateway_ends_by_our_own_deadline(bench):
    await bench.prepare()
    bench.restart(Gateway(a_backend(bench.gateway.port, request_timeout_ms=150)))
    bench.gateway.script("CreateSandbox", silence(after=True))
    with pytest.raises(TransientDependency) as refused:
        await bench.driver.provision_harness(bench.harness())
    assert refused.value.code == "SANDBOX_GATEWAY_UNAVAILABLE"
    await bench.driver.provision_harness(bench.harness())
    assert len(bench.gateway.state.sandboxes) == 1


async def test_nobody_there_is_transient(bench):
    await bench.gateway.stop()
    with pytest.raises(TransientDependency):
        await bench.driver.ensure_namespace(bench.namespace())
