"""Native OpenClaw: runtime profile, node setup and its renewal, exposure until enrolment, node labels (§22.7, 9, 15; BR-34)."""

from __future__ import annotations

import dataclasses
import json

import grpc
import pytest
from openshell._proto import openshell_pb2

from oce.contracts.refusals import (
    DeletionUnconfirmed,
    DriverRefusal,
    GatewayUnauthorized,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    UnsupportedByDriver,
)
from oce.contracts.sandbox import (
    EnvironmentLiteral,
    EnvironmentSecret,
    HarnessFile,
    HarnessStatusContext,
    RevisionContext,
)
from oce.domain import names
from oce.domain.failures import Tempo
from oce.domain.secret import SecretText
from oce.drivers.openshell.driver import OpenShellSandbox
from oce.testing.openshell_bench import (
    NODE_CA,
    REVISION_ID,
    SETUP_TOKEN,
    TOKEN,
    a_namespace,
    kubernetes_settings,
    native_requirements,
)
from oce.testing.scripted_gateway import accepted, altered, lost, stale, status

CODE = grpc.StatusCode
LATER = 1_800_001_200_000
RULE = "workspace-node-enrollment"


def provider(bench):
    return bench.gateway.state.providers[bench.workspace, names.runtime_provider(REVISION_ID)]


def box(bench):
    return bench.gateway.state.sandboxes[bench.workspace, bench.sandbox]


def revision(bench):
    return RevisionContext(namespace=a_namespace(), revision=bench.native_revision)


async def provision(bench, **changes):
    await bench.driver.provision_harness(bench.native(**changes))


async def deploy(bench):
    await bench.prepare()
    bench.stage_node()
    await provision(bench)


async def test_a_native_worker_gets_its_profile_envelope_authority_and_one_rule(bench):
    await deploy(bench)
    (request,) = bench.gateway.made("CreateSandbox")
    assert [e.target_port for e in request.service_exposures] == [18790]
    rule = request.spec.policy.network_policies[RULE]
    (endpoint,) = rule.endpoints
    assert [b.path for b in rule.binaries] == ["/usr/local/bin/node"]
    assert (endpoint.host, list(endpoint.ports)) == ("gateway.example.com", [443])
    assert endpoint.tls == 1  # skip: the node verifies its Gateway itself
    assert endpoint.enforcement == 1
    config = dict(provider(bench).config)
    assert config.keys() == {"node_setup_json", "node_ca_pem"}
    assert config["node_ca_pem"] == NODE_CA
    assert json.loads(config["node_setup_json"])["bootstrapToken"] == SETUP_TOKEN
    assert provider(bench).type == "oce-openclaw-runtime"
    profile = bench.gateway.state.profiles[bench.workspace, "oce-openclaw-runtime"]
    assert [(f.path, f.env_var) for f in profile.files] == [
        ("node-setup.json", "OPENCLAW_NODE_SETUP_ENVELOPE"),
        ("node-ca.pem", "OPENCLAW_NODE_CA_PATH"),
    ]
    assert SETUP_TOKEN not in str(request)
    assert "OPENCLAW_NODE_SETUP_CODE" not in request.spec.environment


async def test_over_plain_ws_the_gateway_judges_the_requests_itself(bench):
    await bench.prepare()
    bench.stage_node(url="ws://gateway-a1.gateways.svc.cluster.local:18789/node")
    await provision(bench)
    (endpoint,) = box(bench).spec.policy.network_policies[RULE].endpoints
    assert (endpoint.protocol, endpoint.path, list(endpoint.ports)) == ("rest", "/node", [18789])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (
            {"files": (HarnessFile(name="runtime.json", content="{}", environment_variable="X"),)},
            "SANDBOX_HARNESS_UNSUPPORTED",
        ),
        ({"login_mode": "codex_pat"}, "SANDBOX_HARNESS_UNSUPPORTED"),
        (
            {
                "environment": (
                    *native_requirements().environment,
                    EnvironmentSecret(name="OTHER", secret_name="s", secret_key="k"),
                )
            },
            "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED",
        ),
        (
            {
                "environment": (
                    EnvironmentLiteral(name="OPENCLAW_NODE_SETUP_CODE", value="literal"),
                )
            },
            "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED",
        ),
    ],
)
async def test_g07_what_native_never_runs_is_refused_without_a_call(bench, changes, code):
    with pytest.raises(RevisionUnsupported) as refused:
        await provision(bench, **changes)
    assert refused.value.code == code
    assert bench.gateway.requests == []
    assert bench.private.reads == []


@pytest.mark.parametrize(
    ("staged", "kind"),
    [
        ({"url": "https://x.example.com"}, RevisionUnsupported),
        ({"url": "wss://u:p@x.example.com"}, RevisionUnsupported),
        ({"url": "wss://x.example.com/?q=1"}, RevisionUnsupported),
        ({"extra": 1}, RevisionUnsupported),
        ({"token": ""}, RevisionUnsupported),
        ({"tlsFingerprint": 7}, RevisionUnsupported),
        ({"labels": {"openclaw.dev/namespace": "ns_other"}}, OwnershipConflict),
        ({"expires": 1_799_999_999_000}, StillPending),
    ],
)
async def test_g21_another_setup_is_refused_before_anything_is_made_and_never_repeated(
    bench, staged, kind
):
    await bench.prepare()
    bench.stage_node(**staged)
    with pytest.raises(kind) as refused:
        await provision(bench)
    assert SETUP_TOKEN not in str(refused.value)
    assert not bench.gateway.made("CreateSandbox")


async def test_a_setup_that_is_not_staged_yet_is_pending(bench):
    await bench.prepare()
    with pytest.raises(StillPending) as refused:
        await provision(bench)
    assert refused.value.code == "WORKSPACE_NODE_PENDING"
    assert len(bench.gateway.state.providers) == 1  # the credential source


async def test_codex_gets_its_node_setup_the_same_way(bench):
    await bench.prepare()
    bench.stage_node()
    setup = native_requirements().environment[-1]
    environment = (*bench.harness().requirements.environment, setup)
    context = dataclasses.replace(bench.harness(environment=environment), private=bench.private)
    await bench.driver.provision_harness(context)
    config = dict(provider(bench).config)
    assert config.keys() == {"runtime_json", "config_toml", "node_setup_json", "node_ca_pem"}
    assert json.loads(config["node_setup_json"])["bootstrapToken"] == SETUP_TOKEN
    assert RULE in box(bench).spec.policy.network_policies
    assert provider(bench).type == "oce-codex-runtime"


# -- Renewal


async def test_g09_br34_an_expired_setup_is_renewed_under_the_fence_and_nothing_else_changes(bench):
    await deploy(bench)
    before = dict(provider(bench).config)
    version = provider(bench).metadata.resource_version
    bench.stage_node(expires=LATER, token="renewed-1")
    bench.clock.time += 700
    await provision(bench)
    (update,) = bench.gateway.made("UpdateProvider")
    assert update.provider.metadata.resource_version == version
    assert dict(update.provider.config).keys() == {"node_setup_json"}
    after = dict(provider(bench).config)
    assert json.loads(after.pop("node_setup_json"))["bootstrapToken"] == "renewed-1"
    before.pop("node_setup_json")
    assert after == before
    await provision(bench)
    assert len(bench.gateway.made("UpdateProvider")) == 1
    assert len(bench.gateway.made("CreateSandbox")) == 1


@pytest.mark.parametrize(
    ("offer", "passed"),
    [
        ({"expires": LATER, "token": "new"}, 0),  # the held one still lives
        ({"expires": LATER, "url": "wss://other.example.com/node"}, 700),
        ({"expires": LATER, "tlsFingerprint": "ab"}, 700),
        ({"expires": 1_800_000_500_000, "token": "older"}, 700),
    ],
)
async def test_g09_anything_but_expired_to_later_is_a_conflict(bench, offer, passed):
    await deploy(bench)
    bench.stage_node(**offer)
    bench.clock.time += passed
    with pytest.raises(OwnershipConflict, match="node_setup_json"):
        await provision(bench)
    assert not bench.gateway.made("UpdateProvider")


async def test_g09_a_changed_authority_is_never_a_renewal(bench):
    await deploy(bench)
    provider(bench).config["node_ca_pem"] = "other"
    bench.stage_node(expires=LATER)
    bench.clock.time += 700
    with pytest.raises(OwnershipConflict, match="node_ca_pem"):
        await provision(bench)


async def test_g09_a_lost_fence_overwrites_nothing_and_the_next_pass_sees_the_winner(bench):
    await deploy(bench)
    bench.stage_node(expires=LATER, token="renewed-1")
    bench.clock.time += 700
    held = openshell_pb2.ProviderResponse(provider=provider(bench))
    provider(bench).metadata.resource_version += 1
    bench.gateway.script("GetProvider", stale(held))
    with pytest.raises(DriverRefusal) as refused:
        await provision(bench)
    assert refused.value.tempo is Tempo.RETRY
    assert json.loads(provider(bench).config["node_setup_json"])["bootstrapToken"] == SETUP_TOKEN
    await provision(bench)
    assert json.loads(provider(bench).config["node_setup_json"])["bootstrapToken"] == "renewed-1"


async def test_a_renewal_that_expired_again_waits(bench):
    await deploy(bench)
    bench.stage_node(expires=LATER)
    bench.clock.time += 2000
    with pytest.raises(StillPending):
        await provision(bench)


async def test_an_enrolled_node_without_a_code_keeps_what_it_has(bench):
    await deploy(bench)
    bench.private.held.clear()
    bench.clock.time += 5000
    await provision(bench, enrolled=True)
    assert len(bench.gateway.made("CreateSandbox")) == 1


# -- Exposure


async def test_g15_the_exposure_is_withdrawn_after_enrolment_and_its_absence_is_proved(bench):
    await deploy(bench)
    await bench.driver.withdraw_harness_exposure(revision(bench))
    assert not bench.gateway.state.services
    methods = bench.gateway.methods()
    tail = methods[methods.index("DeleteService") :]
    assert tail == ["DeleteService", "GetService", "GetWorkspace", "GetService"]
    await bench.driver.withdraw_harness_exposure(revision(bench))
    assert len(bench.gateway.made("DeleteService")) == 1
    await provision(bench, enrolled=True)
    assert not bench.gateway.state.services
    assert "ExposeService" not in bench.gateway.methods()


async def test_g15_a_recreated_worker_that_is_enrolled_has_no_exposure(bench):
    await bench.prepare()
    bench.stage_node()
    await provision(bench, enrolled=True)
    assert not bench.gateway.made("CreateSandbox")[0].service_exposures
    assert not bench.gateway.state.services


@pytest.mark.parametrize(
    ("code", "tempo"),
    [(CODE.PERMISSION_DENIED, Tempo.PERMANENT), (CODE.UNAUTHENTICATED, Tempo.RETRY)],
)
async def test_g15_a_refused_proof_is_unauthorized_with_its_tempo(bench, code, tempo):
    await deploy(bench)
    bench.gateway.script("GetWorkspace", status(code))
    with pytest.raises(GatewayUnauthorized) as refused:
        await bench.driver.withdraw_harness_exposure(revision(bench))
    assert refused.value.tempo is tempo
    bench.gateway.concealed = True
    with pytest.raises(GatewayUnauthorized):
        await bench.driver.withdraw_harness_exposure(revision(bench))


async def test_g15_a_withdrawal_that_is_not_done_says_so(bench):
    await deploy(bench)

    def absent(response):
        response.outcome = openshell_pb2.DELETION_OUTCOME_ALREADY_ABSENT
        return response

    bench.gateway.script("DeleteService", altered(absent))
    with pytest.raises(DeletionUnconfirmed):
        await bench.driver.withdraw_harness_exposure(revision(bench))
    await bench.driver.cleanup(bench.removal())
    await deploy_again(bench)
    bench.gateway.script("DeleteService", lost(after=False))
    with pytest.raises(DriverRefusal) as refused:
        await bench.driver.withdraw_harness_exposure(revision(bench))
    assert refused.value.tempo is Tempo.TRANSIENT
    kept = bench.gateway.state.services[bench.workspace, bench.sandbox]
    bench.gateway.script("DeleteService", accepted())
    bench.gateway.script("GetService", altered(lambda r: r), stale(kept))
    with pytest.raises(StillPending):
        await bench.driver.withdraw_harness_exposure(revision(bench))


async def deploy_again(bench):
    bench.gateway.state.ledger.clear()
    await provision(bench)


async def test_a_stranger_with_our_name_keeps_its_exposure(bench):
    await deploy(bench)
    box(bench).metadata.annotations["openclaw.dev/agent-id"] = "agt_other"
    with pytest.raises(OwnershipConflict):
        await bench.driver.withdraw_harness_exposure(revision(bench))
    assert bench.gateway.state.services


async def test_a_codex_exposure_is_never_withdrawn(bench):
    await bench.deploy()
    with pytest.raises(UnsupportedByDriver):
        await bench.driver.withdraw_harness_exposure(bench.revision())
    assert bench.gateway.state.services


# -- Transport and node


async def _refusing(head, writer):
    body = b'{"runtimeFailure": {"code": "AUTHENTICATION_FAILED"}}'
    line = b"HTTP/1.1 200 OK" if b"/openclaw/runtime/status" in head else b"HTTP/1.1 426 Upgrade"
    writer.write(
        line
        + b"\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


async def test_a_native_worker_has_no_endpoint_and_only_a_held_failure(bench):
    await deploy(bench)
    assert await bench.driver.harness_endpoint(bench.native()) is None
    bench.gateway.on_service = _refusing

    def asked(*, enrolled):
        return HarnessStatusContext(
            namespace=a_namespace(),
            revision=bench.native_revision,
            requirements=native_requirements(),
            private=bench.private,
            transport_token=SecretText(TOKEN),
            workspace_node_enrolled=enrolled,
        )

    found = await bench.driver.harness_status(asked(enrolled=False))
    assert (found.state, found.failure_document) == ("failed", {"code": "AUTHENTICATION_FAILED"})
    before = len(bench.gateway.requests)
    with pytest.raises(UnsupportedByDriver):
        await bench.driver.harness_status(asked(enrolled=True))
    assert len(bench.gateway.requests) == before


async def test_the_node_label_selects_this_sandbox_alone(bench):
    await deploy(bench)
    driver = OpenShellSandbox("box", kubernetes_settings(), bench.client, bench.clock)
    found = await driver.workspace_node_peer_labels(revision(bench))
    assert found == {"openshell.ai/sandbox-id": box(bench).metadata.id}
    box(bench).metadata.id = "not a label\n"
    with pytest.raises(DriverRefusal):
        await driver.workspace_node_peer_labels(revision(bench))
    box(bench).metadata.annotations["openclaw.dev/revision-id"] = "rev_other"
    with pytest.raises(OwnershipConflict):
        await driver.workspace_node_peer_labels(revision(bench))
    bench.gateway.state.sandboxes.clear()
    assert await driver.workspace_node_peer_labels(revision(bench)) is None
    with pytest.raises(UnsupportedByDriver):
        await bench.driver.workspace_node_peer_labels(revision(bench))


async def test_a_protected_egress_plan_is_refused_not_weakened(bench):
    with pytest.raises(RevisionUnsupported, match="protected egress"):
        await bench.driver.enroll_harness(bench.harness(), {"plan": "x"})
    assert bench.gateway.requests == []


async def test_a_live_policy_keeps_the_generated_rule(bench):
    await deploy(bench)
    snapshot = bench.driver.admit_network_policy([], 1)
    found = await bench.driver.observe_network_policy(revision(bench), snapshot)
    assert found.matches
    assert RULE in box(bench).spec.policy.network_policies


async def test_cleanup_of_a_native_revision_leaves_nothing(bench):
    await deploy(bench)
    await bench.driver.cleanup(bench.removal())
    held = [name for _, name in bench.gateway.state.providers if "runtime" in name]
    assert not held
    assert not bench.gateway.state.sandboxes


async def test_g21_the_setup_token_is_never_shown(bench, caplog):
    caplog.set_level("DEBUG")
    await deploy(bench)
    for method in ("GetProvider", "CreateSandbox", "GetSandbox"):
        bench.gateway.script(method, status(CODE.INTERNAL, details=f"echo {SETUP_TOKEN}"))
        with pytest.raises(DriverRefusal) as refused:
            await provision(bench)
        assert SETUP_TOKEN not in str(refused.value)
        bench.gateway.unscript()
        if method == "GetProvider":
            bench.gateway.state.sandboxes.clear()
            bench.gateway.state.ledger.clear()
    record = await bench.client.get_provider(bench.workspace, names.runtime_provider(REVISION_ID))
    assert SETUP_TOKEN not in repr(record)
    shown = [r.getMessage() for r in caplog.records if "CreateSandbox" not in r.getMessage()]
    assert not any(SETUP_TOKEN in line for line in shown)
    for name, message in bench.gateway.requests:
        assert (SETUP_TOKEN in str(message)) == (
            name == "CreateProvider" and "oce-runtime" in str(message)
        )
