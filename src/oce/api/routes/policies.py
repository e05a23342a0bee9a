"""Routes of an Agent's network policy (ours; mission document 003 says what a Driver does with one)."""

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from oce.api.parameters import (
    ChangeablePlatform,
    CurrentActor,
    CurrentPlatform,
    Decimal,
    ExpectedGeneration,
    IdempotencyKey,
    PathReference,
    answer,
    router,
)
from oce.api.render_policies import (
    answer_view,
    application_view,
    draft_view,
    policy_view,
    recommendations_view,
)
from oce.api.requests import NetworkPolicySet
from oce.api.views import (
    Envelope,
    NetworkPolicyView,
    PolicyAnswerView,
    PolicyApplicationView,
    PolicyDraftView,
    RecommendationsView,
)
from oce.core.policies import commands, explanations, queries

routes = router("Network policies")
_ONE = "/namespaces/{namespace}/agents/{agent}/network-policy"
_PORT_MAX = 65_535
_PATH_MAX = 4096


@routes.get(_ONE, response_model=Envelope[NetworkPolicyView])
async def get_network_policy(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, agent: PathReference
) -> Response:
    """Read draft, policy in force and the provider's live answer; the ETag is the Configuration's generation."""
    found = await queries.get(platform, actor, namespace, agent)
    return answer(actor, policy_view(found), generation=found.draft.generation)


@routes.put(_ONE, response_model=Envelope[PolicyDraftView])
async def set_network_policy(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    body: NetworkPolicySet,
    generation: ExpectedGeneration,
) -> Response:
    """Replace the draft's additions in the Agent's Configuration; what runs is untouched until `apply` or a deploy."""
    changed = await commands.set_additions(
        platform, actor, namespace, agent, body.additions, expected_generation=generation
    )
    return answer(actor, draft_view(changed), generation=changed.generation)


@routes.post(f"{_ONE}/apply", response_model=Envelope[PolicyApplicationView])
async def apply_network_policy(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    generation: ExpectedGeneration,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Put the draft's additions in force on the running revision (`agent:deploy` and `agent:operate`)."""
    applied = await commands.apply(
        platform,
        actor,
        namespace,
        agent,
        expected_generation=generation,
        idempotency_key=idempotency_key,
    )
    return answer(actor, application_view(applied))


@routes.get(f"{_ONE}/recommendations", response_model=Envelope[RecommendationsView])
async def list_recommendations(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    limit: Annotated[int, Query(ge=1, le=queries.RECOMMENDATIONS_MAX), Decimal] = 20,
) -> Response:
    """Read what the provider suggests: untrusted text, never admitted and never applied by itself."""
    found = await queries.recommendations(platform, actor, namespace, agent, limit)
    return answer(actor, recommendations_view(found))


@routes.get(f"{_ONE}/explain", response_model=Envelope[PolicyAnswerView])
async def explain_network_policy(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    binary: Annotated[str, Query(min_length=1, max_length=_PATH_MAX)],
    host: Annotated[str, Query(min_length=1, max_length=253)],
    port: Annotated[int, Query(ge=1, le=_PORT_MAX), Decimal] = 443,
    method: Annotated[str, Query(max_length=16)] = "",
    path: Annotated[str, Query(max_length=_PATH_MAX)] = "",
    basis: Literal["active", "draft"] = "active",
) -> Response:
    """Say whether a program may reach a place, by which rule, and which addition would allow it; asks nobody."""
    question = explanations.Question(
        binary=binary, host=host, port=port, method=method, path=path, basis=basis
    )
    return answer(
        actor, answer_view(await explanations.explain(platform, actor, namespace, agent, question))
    )
