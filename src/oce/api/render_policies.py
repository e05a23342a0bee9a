"""From an Agent's network policy to its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oce.api.views import (
    NetworkPolicyView,
    PolicyAnswerView,
    PolicyApplicationView,
    PolicyDraftView,
    PolicyInForceView,
    PolicyLiveView,
    PolicyObservationView,
    RecommendationsView,
    RecommendationView,
)
from oce.domain.clock import timestamp

if TYPE_CHECKING:
    from oce.contracts.sandbox import PolicyObservation, PolicyRecommendation
    from oce.core.policies.commands import Applied
    from oce.core.policies.explanations import Answer
    from oce.core.policies.queries import (
        AgentPolicy,
        LivePolicy,
        PolicyDraft,
        PolicyInForce,
        Recommendations,
    )


def draft_view(item: PolicyDraft) -> PolicyDraftView:
    """Render a draft; what a Configuration holds in place of a list is shown as its only element."""
    return PolicyDraftView(
        configurationId=item.configuration_id,
        generation=item.generation,
        additions=item.additions if isinstance(item.additions, list) else [item.additions],
    )


def policy_view(item: AgentPolicy) -> NetworkPolicyView:
    """Render the whole picture."""
    return NetworkPolicyView(
        agentId=item.agent_id,
        draft=draft_view(item.draft),
        inForce=None if item.in_force is None else _in_force(item.in_force),
        draftApplied=item.draft_applied,
        live=_live(item.live),
    )


def application_view(item: Applied) -> PolicyApplicationView:
    """Render a live change."""
    return PolicyApplicationView(
        operationId=item.operation_id,
        revisionId=item.revision_id,
        state=item.state,
        configurationGeneration=item.configuration_generation,
        observation=_observation(item.observation),
    )


def recommendations_view(item: Recommendations) -> RecommendationsView:
    """Render suggestions, marked for what they are."""
    return RecommendationsView(
        revisionId=item.revision_id,
        untrusted=True,
        recommendations=[_recommendation(one) for one in item.items],
    )


def answer_view(item: Answer) -> PolicyAnswerView:
    """Render an explanation."""
    view = PolicyAnswerView(
        allowed=item.allowed, rule=item.rule, sentence=item.sentence, basis=item.basis
    )
    if item.revision_id is not None:
        view["revisionId"] = item.revision_id
    if item.addition is not None:
        view["addition"] = item.addition
    if item.note:
        view["note"] = item.note
    return view


def _in_force(item: PolicyInForce) -> PolicyInForceView:
    view = PolicyInForceView(
        revisionId=item.revision_id,
        origin=item.origin,
        driverId=item.snapshot.driver_id,
        version=item.snapshot.version,
        defaults=item.snapshot.defaults,
        additions=item.snapshot.additions,
    )
    if item.operation_id is not None:
        view["operationId"] = item.operation_id
    if item.unconfirmed_operation_id is not None:
        view["unconfirmedOperationId"] = item.unconfirmed_operation_id
    return view


def _observation(item: PolicyObservation) -> PolicyObservationView:
    return PolicyObservationView(
        providerVersion=item.provider_version,
        policyVersion=item.policy_version,
        loadState=item.load_state,
        matches=item.matches,
    )


def _live(item: LivePolicy) -> PolicyLiveView:
    view = PolicyLiveView(status=item.kind, observedAt=timestamp(item.observed_at))
    if item.observation is not None:
        view["observation"] = _observation(item.observation)
    if item.reason is not None:
        view["reason"] = item.reason
    return view


def _recommendation(item: PolicyRecommendation) -> RecommendationView:
    view = RecommendationView(
        id=item.id,
        state=item.state,
        host=item.host,
        port=item.port,
        binary=item.binary,
        reason=item.reason,
    )
    if item.observations is not None:
        view["observations"] = item.observations
    return view
