"""The configuration a Sandbox should have now, computed from records, and the bookkeeping of policy revisions.

Pure over one reading of the store: policy revision + attached providers → network rules, credential bindings, provider files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oce.sandboxd.api.stubs import Proto, pb, policy_pb
from oce.sandboxd.lifecycle.policies import network_policy, policy_hash
from oce.sandboxd.lifecycle.providers import bindings, effective_policy, files, views_of
from oce.sandboxd.lifecycle.templates import MissingConfigError
from oce.sandboxd.state.refusals import Refusal
from oce.sandboxd.state.store import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oce.policy.model import NetworkPolicy
    from oce.sandboxd.egress.model import CredentialBinding
    from oce.sandboxd.lifecycle.providers import ProviderFile, ProviderView
    from oce.sandboxd.state.store import Reader, Record, Transaction


class SetupError(Exception):
    """The wanted configuration cannot be put into force; waiting does not help."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What should be in force. `mark` tells whether two configurations are the same."""

    revision: int
    policy: Proto
    views: Sequence[ProviderView]
    network: NetworkPolicy
    bindings: Sequence[CredentialBinding]
    files: Sequence[ProviderFile]
    policy_hash: str

    @property
    def providers(self) -> Mapping[str, tuple[int, int]]:
        """Provider id to (provider version, profile version)."""
        return {view.id: (view.version, view.profile_version) for view in self.views}

    @property
    def mark(self) -> tuple[object, ...]:
        """Identity of the content."""
        return self.policy_hash, tuple(sorted(self.providers.items()))


def newest_policy(reader: Reader, sandbox: Record) -> tuple[Record, Proto]:
    """Return the newest policy revision and its content."""
    newest = max(
        reader.page(Kind.POLICY, workspace=sandbox.workspace, parent=sandbox.id),
        key=lambda item: int(item.name),
    )
    return newest, policy_pb.SandboxPolicy.FromString(newest.payload)


def configuration_of(reader: Reader, sandbox: Record) -> Configuration:
    """Compute the configuration. Raises SetupError, also when an attached provider or its profile vanished."""
    record, policy = newest_policy(reader, sandbox)
    names = list(pb.Sandbox.FromString(sandbox.payload).spec.providers)
    views = views_of(reader, sandbox.workspace, names)
    gone = set(names) - {view.name for view in views}
    if gone:
        raise SetupError("ConfigurationInvalid", f"provider '{min(gone)}' or its profile is gone")
    effective = effective_policy(policy, views)
    try:
        return Configuration(
            revision=int(record.name),
            policy=policy,
            views=views,
            network=network_policy(effective),
            bindings=bindings(policy, views),
            files=[item for view in views for item in files(view)],
            policy_hash=policy_hash(effective),
        )
    except (MissingConfigError, Refusal) as error:
        raise SetupError("ConfigurationInvalid", str(error)) from error


def needs_marking(reader: Reader, sandbox: Record, revision: int) -> bool:
    """Whether a revision in force is not recorded as such yet."""
    return any(
        item.facts["status"] != ("loaded" if int(item.name) == revision else "superseded")
        for item in reader.page(Kind.POLICY, workspace=sandbox.workspace, parent=sandbox.id)
        if int(item.name) <= revision
    )


def mark_loaded(tx: Transaction, sandbox: Record, revision: int, now: float) -> None:
    """Record a revision as loaded and everything before it as superseded (b.10)."""
    for item in tx.page(Kind.POLICY, workspace=sandbox.workspace, parent=sandbox.id):
        facts = dict(item.facts)
        if int(item.name) == revision and facts["status"] != "loaded":
            facts |= {"status": "loaded", "error": "", "loaded": now}
        elif int(item.name) < revision:
            facts["status"] = "superseded"
        if facts != item.facts:
            tx.update(replace(item, facts=facts), bump=False)


def mark_failed(tx: Transaction, sandbox: Record, error: str) -> None:
    """Record that the newest revision cannot be loaded; what was loaded before stays in force."""
    newest, _ = newest_policy(tx, sandbox)
    if newest.facts["status"] == "pending":
        facts = {**newest.facts, "status": "failed", "error": error}
        tx.update(replace(newest, facts=facts), bump=False)
