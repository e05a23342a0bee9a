"""Routes of what Agents are made from: Configurations, Secrets and credential sources (reference/control-plane.md §6.3)."""

from collections.abc import Mapping

from starlette.responses import Response

from oce.api.documents import invalid
from oce.api.parameters import (
    ChangeablePlatform,
    CurrentActor,
    CurrentPlatform,
    ExpectedGeneration,
    IdempotencyKey,
    Paging,
    PathReference,
    answer,
    answer_page,
    router,
)
from oce.api.render import (
    configuration_view,
    secret_view,
    source_view,
)
from oce.api.requests import (
    ConfigurationCreate,
    ConfigurationUpdate,
    SecretBinding,
    SecretCreate,
    SecretReference,
    SecretUpdate,
    SourceCreate,
    SourceUpdate,
)
from oce.api.views import (
    ConfigurationView,
    ConsumersView,
    Envelope,
    SecretView,
    SourceStatusView,
    SourceView,
)
from oce.core.configurations import commands as configuration_commands
from oce.core.configurations import queries as configuration_queries
from oce.core.credentials import commands as source_commands
from oce.core.credentials import queries as source_queries
from oce.core.namespaces import queries as namespace_queries
from oce.core.platform import Actor, Platform
from oce.core.secrets import commands as secret_commands
from oce.core.secrets import queries as secret_queries
from oce.domain.resources import Configuration
from oce.domain.secret import SecretText

routes = router("Configurations, Secrets, credential sources")
_BASE = "/namespaces/{namespace}"


async def same_namespace(
    platform: Platform,
    actor: Actor,
    namespace: str,
    references: Mapping[str, SecretReference],
) -> dict[str, str]:
    """Return pointer to Secret for references, refusing one into another Namespace. Raises ApiError INVALID_REQUEST."""
    names = {namespace}
    for pointer, reference in references.items():
        if reference.namespace_id not in names and len(names) == 1:
            found = await namespace_queries.get(platform, actor, namespace)
            names |= {found.id, found.name}
        if reference.namespace_id not in names:
            raise invalid(
                f"{pointer}/namespaceId",
                "INVALID_VALUE",
                "a Secret of the same Namespace is wanted",
            )
    return {pointer: reference.id for pointer, reference in references.items()}


async def _bindings(
    platform: Platform,
    actor: Actor,
    namespace: str,
    given: Mapping[str, SecretBinding] | None,
) -> dict[str, str] | None:
    if given is None:
        return None
    pointers = {f"/secretBindings/{name}/source": name for name in given}
    checked = await same_namespace(
        platform, actor, namespace, {p: given[name].source for p, name in pointers.items()}
    )
    return {pointers[pointer]: secret for pointer, secret in checked.items()}


async def _fields(
    platform: Platform, actor: Actor, namespace: str, given: Mapping[str, SecretReference]
) -> dict[str, str]:
    pointers = {f"/secrets/{name}": name for name in given}
    checked = await same_namespace(
        platform, actor, namespace, {p: given[name] for p, name in pointers.items()}
    )
    return {pointers[pointer]: secret for pointer, secret in checked.items()}


@routes.get(f"{_BASE}/configurations", response_model=Envelope[list[ConfigurationView]])
async def list_configurations(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List Configurations without their documents (ours)."""
    found = await configuration_queries.list_page(platform, actor, namespace, page)
    return answer_page(actor, found, lambda item: configuration_view(item, values=False))


def _configuration(actor: Actor, item: Configuration, status: int = 200) -> Response:
    return answer(actor, configuration_view(item), status, generation=item.generation)


@routes.post(f"{_BASE}/configurations", status_code=201, response_model=Envelope[ConfigurationView])
async def create_configuration(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    body: ConfigurationCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Store a Configuration."""
    draft = configuration_commands.ConfigurationDraft(
        name=body.name,
        values=body.values,
        secret_bindings=await _bindings(platform, actor, namespace, body.secret_bindings) or {},
    )
    made = await configuration_commands.create(
        platform, actor, namespace, draft, idempotency_key=idempotency_key
    )
    return _configuration(actor, made, 201)


@routes.get(f"{_BASE}/configurations/{{configuration}}", response_model=Envelope[ConfigurationView])
async def get_configuration(
    platform: CurrentPlatform,
    actor: CurrentActor,
    namespace: PathReference,
    configuration: PathReference,
) -> Response:
    """Read a Configuration; the ETag is its generation."""
    found = await configuration_queries.get(platform, actor, namespace, configuration)
    return _configuration(actor, found)


@routes.patch(
    f"{_BASE}/configurations/{{configuration}}", response_model=Envelope[ConfigurationView]
)
async def update_configuration(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    configuration: PathReference,
    body: ConfigurationUpdate,
    generation: ExpectedGeneration,
) -> Response:
    """Replace a Configuration's document."""
    change = configuration_commands.ConfigurationChange(
        values=body.values,
        secret_bindings=await _bindings(platform, actor, namespace, body.secret_bindings),
    )
    changed = await configuration_commands.update(
        platform, actor, namespace, configuration, change, expected_generation=generation
    )
    return _configuration(actor, changed)


@routes.delete(f"{_BASE}/configurations/{{configuration}}", status_code=204)
async def delete_configuration(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    configuration: PathReference,
    generation: ExpectedGeneration,
) -> Response:
    """Delete a Configuration that no Agent uses."""
    await configuration_commands.delete(
        platform, actor, namespace, configuration, expected_generation=generation
    )
    return Response(status_code=204)


@routes.get(f"{_BASE}/secrets", response_model=Envelope[list[SecretView]])
async def list_secrets(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List Secrets; values are never part of an answer."""
    found = await secret_queries.list_page(platform, actor, namespace, page)
    return answer_page(actor, found, secret_view)


@routes.post(f"{_BASE}/secrets", status_code=201, response_model=Envelope[SecretView])
async def create_secret(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    body: SecretCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Store a Secret."""
    made = await secret_commands.create(
        platform,
        actor,
        namespace,
        name=body.name,
        value=SecretText(body.value),
        idempotency_key=idempotency_key,
    )
    return answer(actor, secret_view(made), 201)


@routes.get(f"{_BASE}/secrets/{{secret}}", response_model=Envelope[SecretView])
async def get_secret(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, secret: PathReference
) -> Response:
    """Read a Secret's metadata and who uses it."""
    found = await secret_queries.get(platform, actor, namespace, secret)
    view = secret_view(found.secret)
    view["consumers"] = ConsumersView(
        agents=list(found.consumers.agents),
        configurations=list(found.consumers.configurations),
        credentialSources=list(found.consumers.credential_sources),
        provisioningRequests=[],
        unreadable=found.consumers.unreadable,
        truncated=found.consumers.truncated,
    )
    return answer(actor, view)


@routes.patch(f"{_BASE}/secrets/{{secret}}", response_model=Envelope[SecretView])
async def update_secret(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    secret: PathReference,
    body: SecretUpdate,
) -> Response:
    """Replace a Secret's value; running Agents keep what they have."""
    changed = await secret_commands.update(
        platform, actor, namespace, secret, value=SecretText(body.value)
    )
    return answer(actor, secret_view(changed))


@routes.delete(f"{_BASE}/secrets/{{secret}}", status_code=204)
async def delete_secret(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    secret: PathReference,
) -> Response:
    """Forget a Secret that nothing references."""
    await secret_commands.delete(platform, actor, namespace, secret)
    return Response(status_code=204)


def _source(view: source_commands.SourceView) -> SourceView:
    """Render a source; without a live view `status` is left out, never a remembered one."""
    if view.status is None:
        return source_view(view.source)
    status = SourceStatusView(state=view.status.state)
    if view.status.reason:
        status["reason"] = view.status.reason
    return source_view(view.source, status)


@routes.get(f"{_BASE}/credential-sources", response_model=Envelope[list[SourceView]])
async def list_sources(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, page: Paging
) -> Response:
    """List credential sources as recorded; the gateway's live view is on exact reads only."""
    found = await source_queries.list_page(platform, actor, namespace, page)
    return answer_page(actor, found, source_view)


@routes.post(f"{_BASE}/credential-sources", status_code=201, response_model=Envelope[SourceView])
async def create_source(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    body: SourceCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Register a credential with the Credential Gateway."""
    draft = source_commands.SourceDraft(
        name=body.name,
        type=body.type,
        config=body.config,
        secrets=await _fields(platform, actor, namespace, body.secrets),
    )
    made = await source_commands.create(
        platform, actor, namespace, draft, idempotency_key=idempotency_key
    )
    return answer(actor, _source(made), 201)


@routes.get(f"{_BASE}/credential-sources/{{source}}", response_model=Envelope[SourceView])
async def get_source(
    platform: CurrentPlatform, actor: CurrentActor, namespace: PathReference, source: PathReference
) -> Response:
    """Read a credential source with the gateway's live view."""
    return answer(actor, _source(await source_queries.get(platform, actor, namespace, source)))


@routes.patch(f"{_BASE}/credential-sources/{{source}}", response_model=Envelope[SourceView])
async def update_source(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    source: PathReference,
    body: SourceUpdate,
) -> Response:
    """Hand the Secrets to the gateway again; `{}` reads the same ones."""
    secrets = (
        None if body.secrets is None else await _fields(platform, actor, namespace, body.secrets)
    )
    changed = await source_commands.update(platform, actor, namespace, source, secrets=secrets)
    return answer(actor, _source(changed))


@routes.delete(f"{_BASE}/credential-sources/{{source}}", status_code=204)
async def delete_source(
    platform: ChangeablePlatform,
    actor: CurrentActor,
    namespace: PathReference,
    source: PathReference,
) -> Response:
    """Remove a credential source that nothing references."""
    await source_commands.delete(platform, actor, namespace, source)
    return Response(status_code=204)
