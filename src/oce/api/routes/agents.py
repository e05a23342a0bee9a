"""Routes of Agents, their revisions and deployments (reference/control-plane.md §6.4)."""

from typing import Annotated, Literal

from fastapi import Header, Query
from starlette.responses import Response, StreamingResponse

from oce.api import deployment_events
from oce.api.errors import JSON_HEADERS, ApiError
from oce.api.parameters import (
    ChangeablePlatform,
    CurrentActor,
    CurrentPlatform,
    Decimal,
    ExpectedGeneration,
    IdempotencyKey,
    Moment,
    Paging,
    PathReference,
    answer,
    answer_page,
    router,
)
from oce.api.pipeline import AGENT_BODY_MAX
from oce.api.render import (
    agent_view,
    deployment_view,
    harness_status_view,
    log_page_view,
    revision_view,
)
from oce.api.requests import (
    AgentCreate,
    AgentUpdate,
    CredentialSourceAuth,
    HarnessAuthBody,
    SecretAuth,
)
from oce.api.routes.material import same_namespace
from oce.api.views import (
    AgentView,
    DeploymentView,
    Envelope,
    HarnessStatusView,
    LogPageView,
    RevisionView,
)
from oce.core.agents import commands, queries
from oce.core.platform import Actor, Platform
from oce.core.revisions import queries as revision_queries
from oce.core.runtime import queries as runtime_queries
from oce.domain.resources import Agent, HarnessAuth

routes = router("Agents")
_BASE = "/namespaces/{namespace}/agents"
_ONE = _BASE + "/{agent}"


async def _auth(
    platform: Platform, actor: Actor, namespace: str, body: HarnessAuthBody | None
) -> HarnessAuth | None:
    if body is None:
        return None
    if isinstance(body, CredentialSourceAuth):
        return HarnessAuth(method=body.method, source_id=body.source_id)
    if isinstance(body, SecretAuth):
        found = await same_namespace(
            platform, actor, namespace, {"/harnessAuth/source": body.source}
        )
        return HarnessAuth(method=body.method, source_id=found["/harnessAuth/source"])
    return HarnessAuth(method=body.method)


def _agent(actor: Actor, item: Agent, status: int = 200) -> Response:
    return answer(actor, agent_view(item), status, generation=item.generation)


@routes.get(_BASE, response_model=Envelope[list[AgentView]])
async def list_agents(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List the Agents that the caller may read."""
    return answer_page(actor, await queries.list_page(platform, actor, namespace, page), agent_view)


@routes.post(
    _BASE,
    status_code=201,
    response_model=Envelope[AgentView],
    openapi_extra={"x-body-limit": AGENT_BODY_MAX},
)
async def create_agent(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    body: AgentCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create an Agent and its principal; starts nothing."""
    draft = commands.AgentDraft(
        name=body.name,
        configuration=body.configuration_id,
        execution_mode=body.execution_mode or "embedded",
        harness_auth=await _auth(platform, actor, namespace, body.harness_auth),
        credential_sources=tuple(item.source_id for item in body.credential_sources),
        initial_files=(
            {} if body.initial_workspace_files is None else body.initial_workspace_files.named()
        ),
    )
    made = await commands.create(platform, actor, namespace, draft, idempotency_key=idempotency_key)
    return _agent(actor, made, 201)


@routes.get(_ONE, response_model=Envelope[AgentView])
async def get_agent(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, agent: PathReference
) -> Response:
    """Read an Agent's draft and pointer; what its Harness does now is in `harness-status`."""
    return _agent(actor, await queries.get(platform, actor, namespace, agent))


@routes.patch(_ONE, response_model=Envelope[AgentView])
async def update_agent(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    body: AgentUpdate,
    generation: ExpectedGeneration,
) -> Response:
    """Change the draft; running revisions are untouched."""
    named = body.model_fields_set
    change = commands.AgentChange(
        configuration=body.configuration_id,
        execution_mode=body.execution_mode or commands.UNSET,
        harness_auth=(
            await _auth(platform, actor, namespace, body.harness_auth)
            if "harness_auth" in named
            else commands.UNSET
        ),
        credential_sources=(
            commands.UNSET
            if body.credential_sources is None
            else tuple(item.source_id for item in body.credential_sources)
        ),
    )
    changed = await commands.update(
        platform, actor, namespace, agent, change, expected_generation=generation
    )
    return _agent(actor, changed)


@routes.delete(_ONE, status_code=202, response_model=Envelope[AgentView])
async def delete_agent(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    generation: ExpectedGeneration,
) -> Response:
    """Tear an Agent down; its Secrets and Configurations stay."""
    gone = await commands.delete(platform, actor, namespace, agent, expected_generation=generation)
    return _agent(actor, gone, 202)


@routes.post(f"{_ONE}/deploy", status_code=202, response_model=Envelope[RevisionView])
async def deploy_agent(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    generation: ExpectedGeneration,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Admit a revision of the draft; the worker does the rest. Follow `…/deployments/{id}/events`."""
    revision = await commands.deploy(
        platform,
        actor,
        namespace,
        agent,
        idempotency_key=idempotency_key,
        expected_generation=generation,
    )
    return answer(actor, revision_view(revision), 202)


@routes.post(f"{_ONE}/stop", status_code=202, response_model=Envelope[AgentView])
async def stop_agent(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
) -> Response:
    """Ask for the Agent to be stopped; repeating is safe."""
    return _agent(actor, await commands.stop(platform, actor, namespace, agent), 202)


@routes.get(f"{_ONE}/harness-status", response_model=Envelope[HarnessStatusView])
async def get_harness_status(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, agent: PathReference
) -> Response:
    """Ask the Sandbox provider once what the Harness does; never a remembered state."""
    report = await runtime_queries.harness_status(platform, actor, namespace, agent)
    return answer(actor, harness_status_view(report))


@routes.get(f"{_ONE}/logs", response_model=Envelope[LogPageView])
async def get_logs(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    since: Annotated[Moment | None, Query(description="RFC 3339, with a time zone.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000), Decimal] = 200,
    min_level: Annotated[
        Literal["error", "warn", "info", "debug"] | None, Query(alias="minLevel")
    ] = None,
) -> Response:
    """Read the active revision's Sandbox log, classified and redacted line by line (ours)."""
    page = await runtime_queries.logs(
        platform,
        actor,
        namespace,
        agent,
        runtime_queries.LogQuery(lines=limit, since=since, min_level=min_level),
    )
    return answer(actor, log_page_view(page))


@routes.get(f"{_ONE}/revisions", response_model=Envelope[list[RevisionView]])
async def list_revisions(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    page: Paging,
) -> Response:
    """List revisions without their documents, newest first."""
    found = await revision_queries.list_page(platform, actor, namespace, agent, page)
    return answer_page(actor, found, lambda item: revision_view(item, configuration=False))


@routes.get(f"{_ONE}/revisions/{{revision}}", response_model=Envelope[RevisionView])
async def get_revision(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    revision: PathReference,
) -> Response:
    """Read an immutable revision."""
    found = await revision_queries.get(platform, actor, namespace, agent, revision)
    return answer(actor, revision_view(found))


@routes.get(f"{_ONE}/deployments/{{revision}}", response_model=Envelope[DeploymentView])
async def get_deployment(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    revision: PathReference,
) -> Response:
    """Read how far a deployment is; a database read, never the machine."""
    found = await revision_queries.deployment(platform, actor, namespace, agent, revision)
    return answer(actor, deployment_view(found))


@routes.get(
    f"{_ONE}/deployments/{{revision}}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
)
async def watch_deployment(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    agent: PathReference,
    revision: PathReference,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,15}$")] = None,
) -> Response:
    """Follow a deployment (ours): `step` and `deployment` events, heartbeat comments, the end after the terminal state."""
    watch = deployment_events.Watch(platform, actor, namespace, agent, revision)
    await watch.begin()
    headers = {**JSON_HEADERS, "content-type": "text/event-stream", "x-accel-buffering": "no"}
    return StreamingResponse(watch.frames(int(last_event_id or 0)), headers=headers)


@routes.post(f"{_ONE}/credential-sources/{{source}}/withdraw", status_code=202)
async def withdraw_credential(
    _actor: CurrentActor,
    namespace: PathReference,  # noqa: ARG001 # named for the OpenAPI document
    agent: PathReference,  # noqa: ARG001 # as above
    source: PathReference,  # noqa: ARG001 # as above
) -> Response:
    """Refused by code: withdrawal is not offered by this build."""
    raise ApiError("NOT_IMPLEMENTED", "Credential withdrawal is not offered yet.")


@routes.get(f"{_ONE}/credential-sources/{{source}}/withdrawal")
async def get_withdrawal(
    _actor: CurrentActor,
    namespace: PathReference,  # noqa: ARG001 # named for the OpenAPI document
    agent: PathReference,  # noqa: ARG001 # as above
    source: PathReference,  # noqa: ARG001 # as above
) -> Response:
    """Refused by code: withdrawal is not offered by this build."""
    raise ApiError("NOT_IMPLEMENTED", "Credential withdrawal is not offered yet.")
