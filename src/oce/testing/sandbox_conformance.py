"""The conformance suite of a SandboxDriver: what any author can run on their own Driver (rules: docs/contracts/sandbox.md).

Subclass `SandboxConformance` in a pytest module and provide the fixture `subject`. Each test is named after the rule it checks. What a
subject cannot do (see a provider's objects from outside, hide them, tamper with them) is a hook left None, and the test says so
when it is skipped. Nothing here knows a vendor.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import Final

import pytest

from oce.contracts.drivers import abilities_of
from oce.contracts.refusals import (
    ConfigurationRefused,
    DriverRefusal,
    GatewayUnauthorized,
    NamespaceRefused,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
    UnsupportedByDriver,
    WorkspaceSetupRefused,
)
from oce.contracts.sandbox import (
    CredentialAttachment,
    EnvironmentSecret,
    HarnessState,
    LogRequest,
    PolicyApplication,
    PolicySnapshot,
    WorkloadIdentity,
    WorkspaceMount,
    WorkspaceSetup,
)
from oce.domain.names import native_hook_directory
from oce.domain.secret import SecretText
from oce.testing.conformance_subject import PATIENCE, Subject, case, needs, removed

__all__ = ("SandboxConformance", "Subject")

_LINES: Final = 5


class SandboxConformance:
    """Subclass it as `Test…` and provide `subject`."""

    @case("facets", "kept")
    def test_sbx_1_facets_are_named_once(self, subject: Subject) -> None:
        """At least one facet, each once."""
        assert subject.abilities.driver is subject.driver
        assert subject.abilities.harness_home.startswith("/")

    @case("cleanup", "kept")
    async def test_sbx_2_cleanup_finds_what_was_never_recorded(self, subject: Subject) -> None:
        """A new process that recorded nothing removes everything of the revision."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        await provisions.provision_harness(subject.harness)
        await removed(subject, subject.restart())
        objects = needs(subject.objects, "view of the provider's objects")
        assert list(await objects()) == []

    @case("cleanup", "repeated")
    async def test_sbx_3_cleanup_resolves_on_proof_and_repeats(self, subject: Subject) -> None:
        """Nothing there is proved absent; twice is as good as once."""
        await removed(subject)
        await removed(subject)

    @case("cleanup", "hidden")
    async def test_sbx_3_a_hidden_object_is_not_gone(self, subject: Subject) -> None:
        """What the identity cannot see is never recorded gone."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        conceal = needs(subject.conceal, "way to hide objects")
        await provisions.provision_harness(subject.harness)
        conceal()
        with pytest.raises(GatewayUnauthorized):
            await subject.driver.cleanup(subject.removal)

    @case("provision_harness", "repeated")
    async def test_sbx_4_provisioning_is_repeatable(self, subject: Subject) -> None:
        """Two passes of two processes give one object and one reference."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        first = await provisions.provision_harness(subject.harness)
        again = needs(abilities_of(subject.restart()).provisions, "provision_harness")
        count = len(await subject.objects()) if subject.objects else 0
        assert await again.provision_harness(subject.harness) == first
        assert await provisions.provision_harness(subject.harness) == first
        assert (len(await subject.objects()) if subject.objects else 0) == count
        await removed(subject)

    @case("provision_harness", "conflict")
    async def test_sbx_5_another_object_is_a_conflict(self, subject: Subject) -> None:
        """An object that differs is neither adopted nor removed as ours without a word."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        tamper = needs(subject.tamper, "way to change an object")
        await provisions.provision_harness(subject.harness)
        tamper()
        with pytest.raises(OwnershipConflict) as refused:
            await provisions.provision_harness(subject.harness)
        assert refused.value.field

    @case("provision_harness", "refused")
    async def test_sbx_6_an_attachment_of_somebody_else_is_refused(self, subject: Subject) -> None:
        """Only what the paired gateway issued is applied."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        foreign = CredentialAttachment(source_id="cs_foreign", ref="not-issued-by-this-backend")
        with pytest.raises(RevisionUnsupported):
            await provisions.provision_harness(
                subject.with_requirements(credential_attachments=(foreign,))
            )

    @case("provision_harness", "secret")
    async def test_sbx_7_no_secret_leaves_its_channel(self, subject: Subject) -> None:
        """No request holds a value that is a secret."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        transcript = needs(subject.transcript, "record of requests")
        await provisions.provision_harness(subject.harness)
        for request in transcript():
            assert not any(secret in request for secret in subject.secrets)

    @case("provision_harness", "refused")
    async def test_sbx_8_what_cannot_be_kept_exactly_is_refused(self, subject: Subject) -> None:
        """Secret environment, identity and foreign mounts are refused and nothing is made."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        environment = subject.harness.requirements.environment
        secret = EnvironmentSecret(name="KEY", secret_name="s", secret_key="k")  # noqa: S106 - names, not values
        identity = WorkloadIdentity(
            service_account="agent",
            audience="a",
            expiration_seconds=600,
            mount_path="/var/run/t",
            path="token",
        )
        mount = WorkspaceMount(
            claim="stranger", sub_path="../..", mount_path="/etc", read_only=False
        )
        before = list(await subject.objects()) if subject.objects else []
        for changes in (
            {"environment": (*environment, secret)},
            {"workload_identity": identity},
            {"workspace_mounts": (mount,)},
        ):
            with pytest.raises(RevisionUnsupported):
                await provisions.provision_harness(subject.with_requirements(**changes))
        assert (list(await subject.objects()) if subject.objects else []) == before

    @case("configure_agent", "kept")
    def test_sbx_9_configuring_never_mutates(self, subject: Subject) -> None:
        """The input stays, the output is stable, the Harness is not the Driver's to choose."""
        configures = needs(subject.abilities.configures, "configure_agent")
        given = {"agents": {"defaults": {"model": "m"}}, "other": [1, {"a": 2}]}
        before = copy.deepcopy(given)
        effective = configures.configure_agent(given, subject.harness.revision.harness)
        assert given == before
        again = configures.configure_agent(effective, subject.harness.revision.harness)
        assert again == effective

    @case("harness_resource", "kept")
    async def test_sbx_10_the_reference_is_pure_and_exact(self, subject: Subject) -> None:
        """`harness_resource` names what provisioning returns, before it exists."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        named = provisions.harness_resource(subject.revision)
        assert await provisions.provision_harness(subject.harness) == named
        await removed(subject)

    @case("harness_status", "kept")
    async def test_sbx_11_serving_needs_the_right_token(self, subject: Subject) -> None:
        """A wrong token never sees a serving Harness, the right one does."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        transport = needs(subject.abilities.transport, "provider-owned transport")
        await provisions.provision_harness(subject.harness)
        wrong = dataclasses.replace(subject.status, transport_token=SecretText("wrong"))
        async with asyncio.timeout(PATIENCE):
            while (await transport.harness_status(subject.status)).state != "serving":  # noqa: ASYNC110 - a remote state has no event
                await asyncio.sleep(0.02)
        assert (await transport.harness_status(wrong)).state != "serving"
        await removed(subject)

    @case("harness_status", "hidden")
    async def test_sbx_11_a_hidden_harness_is_no_evidence(self, subject: Subject) -> None:
        """What the identity cannot see is neither starting nor failed."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        transport = needs(subject.abilities.transport, "provider-owned transport")
        conceal = needs(subject.conceal, "way to hide objects")
        await provisions.provision_harness(subject.harness)
        conceal()
        with pytest.raises(DriverRefusal):
            await transport.harness_status(subject.status)

    @case("observe_harness", "kept")
    async def test_sbx_12_observation_trusts_only_this_revision(self, subject: Subject) -> None:
        """Absent is lost; a foreign revision is refused without a read."""
        observes = needs(subject.abilities.observes, "observe_harness")
        found = await observes.observe_harness(subject.revision)
        assert (found.state, found.code) == (HarnessState.LOST, "SANDBOX_MISSING")
        foreign = dataclasses.replace(
            subject.revision,
            revision=dataclasses.replace(subject.revision.revision, sandbox_driver_id="other"),
        )
        with pytest.raises(DriverRefusal):
            await observes.observe_harness(foreign)

    @case("cleanup", "hidden")
    async def test_sbx_13_a_refused_identity_has_its_own_names(self, subject: Subject) -> None:
        """Hidden Namespaces are a refusal of the identity, never an absence."""
        conceal = needs(subject.conceal, "way to hide objects")
        conceal()
        with pytest.raises((GatewayUnauthorized, NamespaceRefused)):
            await subject.driver.cleanup(subject.removal)

    @case("provision_harness", "hidden")
    async def test_sbx_13_a_hidden_object_is_not_made_again(self, subject: Subject) -> None:
        """A pass of an identity that lost its role refuses, and makes nothing beside what is there."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        conceal = needs(subject.conceal, "way to hide objects")
        objects = needs(subject.objects, "view of the provider's objects")
        await provisions.provision_harness(subject.harness)
        before = list(await objects())
        conceal()
        with pytest.raises(DriverRefusal):
            await provisions.provision_harness(subject.harness)
        assert list(await objects()) == before

    @case("provision_harness", "hostile")
    async def test_sbx_14_supplier_text_stays_inside(self, subject: Subject) -> None:
        """A provider's sentence never reaches a refusal."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        hostile = needs(subject.hostile_text, "way to fail with a text")
        hostile("<supplier text>")
        with pytest.raises(DriverRefusal) as refused:
            await provisions.provision_harness(subject.harness)
        assert "supplier" not in str(refused.value)

    @case("read_sandbox_logs", "kept")
    async def test_sbx_15_logs_are_bounded_and_absence_is_not_silence(
        self, subject: Subject
    ) -> None:
        """An unseen Sandbox is `NotVisible`; a seen one answers at most the lines asked for."""
        logs = needs(subject.abilities.logs, "read_sandbox_logs")
        with pytest.raises(NotVisible):
            await logs.read_sandbox_logs(subject.revision, LogRequest(lines=_LINES))
        provisions = needs(subject.abilities.provisions, "provision_harness")
        await provisions.provision_harness(subject.harness)
        chunk = await logs.read_sandbox_logs(subject.revision, LogRequest(lines=_LINES))
        assert len(chunk.lines) <= _LINES
        assert chunk.examined >= len(chunk.lines)
        await removed(subject)

    @case("admit_network_policy", "kept")
    def test_sbx_16_an_admitted_policy_is_detached(self, subject: Subject) -> None:
        """The snapshot is this Driver's, holds its version, and refuses what is no policy."""
        policies = needs(subject.abilities.policies, "network policies")
        additions: list[object] = []
        snapshot = policies.admit_network_policy(additions, 7)
        additions.append("changed afterwards")
        assert isinstance(snapshot, PolicySnapshot)
        assert (snapshot.driver_id, snapshot.version) == (subject.driver.id, 7)
        assert snapshot.additions == []
        with pytest.raises(ConfigurationRefused):
            policies.admit_network_policy([{"no": "rule"}], 1)

    @case("cleanup", "slow")
    async def test_sbx_17_an_accepted_deletion_is_pending(self, subject: Subject) -> None:
        """The caller gets its lane back while the provider works."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        slow = needs(subject.slow_deletions, "way to slow deletions")
        await provisions.provision_harness(subject.harness)
        slow()
        with pytest.raises(StillPending):
            await subject.driver.cleanup(subject.removal)

    @case("withdraw_harness_exposure", "kept")
    async def test_sbx_18_a_withdrawn_exposure_never_comes_back(self, subject: Subject) -> None:
        """Withdrawing twice is as good as once, and adopting the enrolled worker leaves it withdrawn."""
        transport = needs(subject.abilities.transport, "provider-owned transport")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        native = needs(subject.native, "native revision")
        enrolled = needs(subject.enrolled, "enrolled native revision")
        objects = needs(subject.objects, "view of the provider's objects")
        await provisions.provision_harness(native)
        before = len(await objects())
        await transport.withdraw_harness_exposure(native)
        await transport.withdraw_harness_exposure(native)
        assert len(await objects()) == before - 1
        await provisions.provision_harness(enrolled)
        assert len(await objects()) == before - 1

    @case("withdraw_harness_exposure", "hidden")
    async def test_sbx_18_a_hidden_exposure_is_not_withdrawn(self, subject: Subject) -> None:
        """What the identity cannot see is never recorded gone."""
        transport = needs(subject.abilities.transport, "provider-owned transport")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        native = needs(subject.native, "native revision")
        conceal = needs(subject.conceal, "way to hide objects")
        await provisions.provision_harness(native)
        conceal()
        with pytest.raises(GatewayUnauthorized):
            await transport.withdraw_harness_exposure(native)

    @case("validate_workspace_setup", "kept")
    async def test_sbx_19_initial_files_are_private_and_repeatable(self, subject: Subject) -> None:
        """Two passes of two processes; the document is in no other request."""
        needs(subject.abilities.workspace_setup, "private initialisation")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        files = needs(subject.files, "revision with initial files")
        transcript = needs(subject.transcript, "record of requests")
        first = await provisions.provision_harness(files)
        again = needs(abilities_of(subject.restart()).provisions, "provision_harness")
        assert await again.provision_harness(files) == first
        for request in transcript():
            assert not any(secret in request for secret in subject.secrets)
        if subject.inside is not None:
            workspace = files.requirements.workspace_mounts[0].mount_path
            assert await subject.inside(f"test -s {workspace}/AGENTS.md") == 0

    @case("validate_workspace_setup", "refused")
    async def test_sbx_19_a_handoff_without_its_document_is_refused(self, subject: Subject) -> None:
        """Nobody stages it: nothing is made."""
        needs(subject.abilities.workspace_setup, "private initialisation")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        setup = WorkspaceSetup(
            id="wss_none",
            defaults_id=None,
            secret_name="absent",  # noqa: S106 - an object's name
            secret_key="setup.json",  # noqa: S106 - a key's name
        )
        with pytest.raises(WorkspaceSetupRefused):
            await provisions.provision_harness(subject.with_requirements(workspace_setup=setup))

    @case("workspace_node_peer_labels", "kept")
    async def test_sbx_20_node_labels_come_with_the_sandbox(self, subject: Subject) -> None:
        """None before it exists, then a nonempty selector; a Driver without Pods refuses."""
        peers = needs(subject.abilities.node_peers, "workspace_node_peer_labels")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        try:
            assert await peers.workspace_node_peer_labels(subject.revision) is None
        except UnsupportedByDriver:
            pytest.skip("this subject has no Pods")
        await provisions.provision_harness(subject.harness)
        found = await peers.workspace_node_peer_labels(subject.revision)
        assert found
        assert all(key and value for key, value in found.items())
        await removed(subject)

    @case("apply_network_policy", "repeated")
    async def test_sbx_21_a_live_policy_is_swapped_once(self, subject: Subject) -> None:
        """A stale version is refused, a repeated operation sends nothing new, only what is in force is confirmed."""
        policies = needs(subject.abilities.policies, "network policies")
        live = needs(subject.abilities.live_policies, "live policies")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        await provisions.provision_harness(subject.harness)
        snapshot = policies.admit_network_policy([_ADDITION], 1)
        seen = await live.observe_network_policy(subject.revision, snapshot)
        assert not seen.matches
        with pytest.raises(DriverRefusal):
            await live.apply_network_policy(
                subject.revision, _application(snapshot, "no such version", "op-stale")
            )
        wanted = _application(snapshot, seen.provider_version, "op-1")
        await live.apply_network_policy(subject.revision, wanted)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await live.observe_network_policy(subject.revision, snapshot)
                if found.load_state == "loaded" and found.matches:
                    break
                await asyncio.sleep(0.02)
        again = await live.apply_network_policy(subject.revision, wanted)
        assert again.policy_version == found.policy_version
        await removed(subject)

    @case("read_policy_recommendations", "kept")
    async def test_sbx_22_recommendations_are_bounded(self, subject: Subject) -> None:
        """At most the limit, each with an identity."""
        recommends = needs(subject.abilities.recommendations, "recommendations")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        await provisions.provision_harness(subject.harness)
        try:
            found = await recommends.read_policy_recommendations(subject.revision, 1)
        except UnsupportedByDriver:
            pytest.skip("this subject's provider makes no suggestions")
        assert len(found) <= 1
        assert all(item.id and item.reason.isprintable() for item in found)
        await removed(subject)

    @case("enroll_harness", "refused")
    async def test_sbx_23_a_plan_that_cannot_be_kept_is_refused(self, subject: Subject) -> None:
        """An installation that no Driver ever issued starts nothing."""
        enrolls = needs(subject.abilities.enrolls, "enroll_harness")
        with pytest.raises(DriverRefusal):
            await enrolls.enroll_harness(subject.harness, {"invented": True})

    @case("ensure_namespace", "repeated")
    async def test_sbx_24_a_namespace_is_ensured_again_and_again(self, subject: Subject) -> None:
        """Another process finds its own and changes nothing."""
        namespaces = needs(subject.abilities.namespaces, "ensure_namespace")
        await namespaces.ensure_namespace(subject.namespace)
        before = len(await subject.objects()) if subject.objects else 0
        again = needs(abilities_of(subject.restart()).namespaces, "ensure_namespace")
        await again.ensure_namespace(subject.namespace)
        assert (len(await subject.objects()) if subject.objects else 0) == before

    @case("harness_endpoint", "kept")
    async def test_sbx_25_an_endpoint_is_a_plain_origin(self, subject: Subject) -> None:
        """Missing is an error; there it is a WebSocket origin without path, and its bundle holds certificates only."""
        transport = needs(subject.abilities.transport, "provider-owned transport")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        with pytest.raises(DriverRefusal):
            await transport.harness_endpoint(subject.harness)
        await provisions.provision_harness(subject.harness)
        found = needs(await transport.harness_endpoint(subject.harness), "endpoint")
        for url in (found.url, found.control_url):
            assert url.startswith(("ws://", "wss://"))
            assert "/" not in url.partition("://")[2]
        assert "PRIVATE" not in (found.ca_bundle or "")
        await removed(subject)

    @case("harness_endpoint", "hidden")
    async def test_sbx_25_a_hidden_transport_is_an_error(self, subject: Subject) -> None:
        """An endpoint that the identity cannot see is not one that does not exist."""
        transport = needs(subject.abilities.transport, "provider-owned transport")
        provisions = needs(subject.abilities.provisions, "provision_harness")
        conceal = needs(subject.conceal, "way to hide objects")
        await provisions.provision_harness(subject.harness)
        conceal()
        with pytest.raises(DriverRefusal):
            await transport.harness_endpoint(subject.harness)

    @case("harness_home", "kept")
    async def test_sbx_26_native_hooks_have_a_place_in_the_home(self, subject: Subject) -> None:
        """The directory that Compute derives from `harness_home` is made, on every pass the same."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        hooks = native_hook_directory(subject.abilities.harness_home)
        wanted = subject.with_requirements(native_hook_directory=hooks)
        first = await provisions.provision_harness(wanted)
        assert await provisions.provision_harness(wanted) == first
        if subject.inside is not None:
            private = f'test -O {hooks} && test "$(stat -c %F:%a {hooks})" = directory:700'
            async with asyncio.timeout(PATIENCE):
                while await subject.inside(private) != 0:  # noqa: ASYNC110 - a remote state has no event
                    await asyncio.sleep(0.02)
        await removed(subject)

    @case("harness_home", "refused")
    async def test_sbx_26_native_hooks_never_lie_in_a_workspace(self, subject: Subject) -> None:
        """What a workspace or a file transfer reaches is no place for credentials: nothing is made."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        mounts = subject.harness.requirements.workspace_mounts
        mount = needs(next(iter(mounts), None), "workspace mount")
        for path in (f"{mount.mount_path}/hooks", "relative/hooks", "/hooks/../etc"):
            with pytest.raises(RevisionUnsupported):
                await provisions.provision_harness(
                    subject.with_requirements(native_hook_directory=path)
                )


_ADDITION: Final = {
    "name": "conformance",
    "binaries": [{"path": "/usr/bin/curl"}],
    "endpoints": [{"host": "docs.example.com", "ports": [443]}],
}


def _application(snapshot: PolicySnapshot, version: str, operation: str) -> PolicyApplication:
    return PolicyApplication(
        snapshot=snapshot, expected_provider_version=version, operation_id=operation
    )
