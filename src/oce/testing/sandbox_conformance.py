"""The conformance suite of a SandboxDriver: what any author can run on their own Driver (rules: docs/contracts/sandbox.md).

Subclass `SandboxConformance` in a pytest module and provide the fixture `subject`. Each test is named after the rule it checks. What a
subject cannot do (see a provider's objects from outside, hide them, tamper with them) is a hook left None, and the test says so
when it is skipped. Nothing here knows a vendor.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pytest

from oce.contracts.drivers import SandboxAbilities, abilities_of
from oce.contracts.refusals import (
    ConfigurationRefused,
    DriverRefusal,
    GatewayUnauthorized,
    NamespaceRefused,
    NotVisible,
    OwnershipConflict,
    RevisionUnsupported,
    StillPending,
)
from oce.contracts.sandbox import (
    CleanupContext,
    CredentialAttachment,
    EnvironmentSecret,
    HarnessContext,
    HarnessState,
    LogRequest,
    PolicySnapshot,
    RevisionContext,
    WorkloadIdentity,
    WorkspaceMount,
)
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oce.contracts.sandbox import HarnessStatusContext, NamespaceContext, SandboxDriver

_T = TypeVar("_T")
_PATIENCE = 20.0
_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A Driver under test with the contexts of one revision whose Namespace and credential sources exist already.

    `restart` returns a Driver that remembers nothing. Hooks: `objects` lists what the provider holds of this Namespace below its
    Workspace, credential sources aside; `transcript` returns every request so far that may not hold `secrets`; `tamper` changes the
    provisioned object behind the Driver's back; `conceal` hides everything from the control plane's identity; `slow_deletions` makes
    deletions asynchronous; `hostile_text` makes the next create fail with that text.
    """

    driver: SandboxDriver
    restart: Callable[[], SandboxDriver]
    namespace: NamespaceContext
    harness: HarnessContext
    status: HarnessStatusContext
    secrets: tuple[str, ...] = ()
    objects: Callable[[], Awaitable[Sequence[str]]] | None = None
    transcript: Callable[[], Sequence[str]] | None = None
    tamper: Callable[[], None] | None = None
    conceal: Callable[[], None] | None = None
    slow_deletions: Callable[[], None] | None = None
    hostile_text: Callable[[str], None] | None = None

    @property
    def abilities(self) -> SandboxAbilities:
        """What the Driver can do."""
        return abilities_of(self.driver)

    @property
    def revision(self) -> RevisionContext:
        """The revision without requirements."""
        return RevisionContext(
            namespace=self.harness.namespace,
            objects=self.harness.objects,
            revision=self.harness.revision,
        )

    @property
    def removal(self) -> CleanupContext:
        """The cleanup of the revision."""
        return CleanupContext(
            namespace=self.harness.namespace,
            objects=self.harness.objects,
            revision=self.harness.revision,
        )

    def with_requirements(self, **changes: object) -> HarnessContext:
        """Return the Harness context with changed requirements."""
        changed = dataclasses.replace(self.harness.requirements, **changes)  # type: ignore[arg-type] # fields by name
        return dataclasses.replace(self.harness, requirements=changed)


def needs(ability: _T | None, what: str) -> _T:
    """Return an ability or hook, or skip the test by name."""
    if ability is None:
        pytest.skip(f"this subject has no {what}")
    return ability


async def removed(subject: Subject, driver: SandboxDriver | None = None) -> None:
    """Clean the revision up, as often as the worker would while the provider is not finished."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                await (driver or subject.driver).cleanup(subject.removal)
            except StillPending:
                await asyncio.sleep(0.01)
            else:
                return


class SandboxConformance:
    """Subclass it as `Test…` and provide `subject`."""

    def test_sbx_1_facets_are_named_once(self, subject: Subject) -> None:
        """At least one facet, each once."""
        assert subject.abilities.driver is subject.driver
        assert subject.abilities.harness_home.startswith("/")

    async def test_sbx_2_cleanup_finds_what_was_never_recorded(self, subject: Subject) -> None:
        """A new process that recorded nothing removes everything of the revision."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        await provisions.provision_harness(subject.harness)
        await removed(subject, subject.restart())
        objects = needs(subject.objects, "view of the provider's objects")
        assert list(await objects()) == []

    async def test_sbx_3_cleanup_resolves_on_proof_and_repeats(self, subject: Subject) -> None:
        """Nothing there is proved absent; twice is as good as once."""
        await removed(subject)
        await removed(subject)

    async def test_sbx_3_a_hidden_object_is_not_gone(self, subject: Subject) -> None:
        """What the identity cannot see is never recorded gone."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        conceal = needs(subject.conceal, "way to hide objects")
        await provisions.provision_harness(subject.harness)
        conceal()
        with pytest.raises(GatewayUnauthorized):
            await subject.driver.cleanup(subject.removal)

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

    async def test_sbx_5_another_object_is_a_conflict(self, subject: Subject) -> None:
        """An object that differs is neither adopted nor removed as ours without a word."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        tamper = needs(subject.tamper, "way to change an object")
        await provisions.provision_harness(subject.harness)
        tamper()
        with pytest.raises(OwnershipConflict) as refused:
            await provisions.provision_harness(subject.harness)
        assert refused.value.field

    async def test_sbx_6_an_attachment_of_somebody_else_is_refused(self, subject: Subject) -> None:
        """Only what the paired gateway issued is applied."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        foreign = CredentialAttachment(source_id="cs_foreign", ref="not-issued-by-this-backend")
        with pytest.raises(RevisionUnsupported):
            await provisions.provision_harness(
                subject.with_requirements(credential_attachments=(foreign,))
            )

    async def test_sbx_7_no_secret_leaves_its_channel(self, subject: Subject) -> None:
        """No request holds a value that is a secret."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        transcript = needs(subject.transcript, "record of requests")
        await provisions.provision_harness(subject.harness)
        for request in transcript():
            assert not any(secret in request for secret in subject.secrets)

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

    def test_sbx_9_configuring_never_mutates(self, subject: Subject) -> None:
        """The input stays, the output is stable, the Harness is not the Driver's to choose."""
        configures = needs(subject.abilities.configures, "configure_agent")
        given = {"agents": {"defaults": {"model": "m"}}, "other": [1, {"a": 2}]}
        before = copy.deepcopy(given)
        effective = configures.configure_agent(given, subject.harness.revision.harness)
        assert given == before
        again = configures.configure_agent(effective, subject.harness.revision.harness)
        assert again == effective

    async def test_sbx_10_the_reference_is_pure_and_exact(self, subject: Subject) -> None:
        """`harness_resource` names what provisioning returns, before it exists."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        named = provisions.harness_resource(subject.revision)
        assert await provisions.provision_harness(subject.harness) == named
        await removed(subject)

    async def test_sbx_11_serving_needs_the_right_token(self, subject: Subject) -> None:
        """A wrong token never sees a serving Harness, the right one does."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        transport = needs(subject.abilities.transport, "provider-owned transport")
        await provisions.provision_harness(subject.harness)
        wrong = dataclasses.replace(subject.status, transport_token=SecretText("wrong"))
        async with asyncio.timeout(_PATIENCE):
            while (await transport.harness_status(subject.status)).state != "serving":  # noqa: ASYNC110 - a remote state has no event
                await asyncio.sleep(0.02)
        assert (await transport.harness_status(wrong)).state != "serving"
        await removed(subject)

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

    async def test_sbx_13_a_refused_identity_has_its_own_names(self, subject: Subject) -> None:
        """Hidden Namespaces are a refusal of the identity, never an absence."""
        conceal = needs(subject.conceal, "way to hide objects")
        conceal()
        with pytest.raises((GatewayUnauthorized, NamespaceRefused)):
            await subject.driver.cleanup(subject.removal)

    async def test_sbx_14_supplier_text_stays_inside(self, subject: Subject) -> None:
        """A provider's sentence never reaches a refusal."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        hostile = needs(subject.hostile_text, "way to fail with a text")
        hostile("<supplier text>")
        with pytest.raises(DriverRefusal) as refused:
            await provisions.provision_harness(subject.harness)
        assert "supplier" not in str(refused.value)

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

    async def test_sbx_17_an_accepted_deletion_is_pending(self, subject: Subject) -> None:
        """The caller gets its lane back while the provider works."""
        provisions = needs(subject.abilities.provisions, "provision_harness")
        slow = needs(subject.slow_deletions, "way to slow deletions")
        await provisions.provision_harness(subject.harness)
        slow()
        with pytest.raises(StillPending):
            await subject.driver.cleanup(subject.removal)
