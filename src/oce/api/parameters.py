"""What routes have in common: who asks, which page, which generation, which idempotency key; and how answers are made."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final, TypeVar, cast

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from oce.api.documents import invalid
from oce.api.errors import envelope, json_response
from oce.api.pipeline import StrictRoute
from oce.core.paging import LIMIT_DEFAULT, LIMIT_MAX, Page, PageRequest
from oce.core.platform import Actor, Platform
from oce.core.rehearsal import rehearse
from oce.domain.names import NAME_MAX

T = TypeVar("T")
_IDEMPOTENCY_KEY: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
_ETAG: Final = re.compile(r'"?([1-9][0-9]{0,15})"?')
_CURSOR_MAX: Final = 1024


def _decimal(value: object) -> object:
    """Query numbers are plain decimals: no sign, blank, underscore or fraction is converted."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,6}", value):
        raise PydanticCustomError("INVALID_TYPE", "number")
    return value


def _moment(value: object) -> object:
    """Timestamps are RFC 3339 with a time zone; bare numbers are not converted."""
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*", value):
        raise PydanticCustomError("INVALID_FORMAT", "timestamp")
    return value


def _aware(value: object) -> object:
    moment = _moment(value)
    if isinstance(moment, str) and not re.search(r"(?:[Zz]|[+-]\d\d:\d\d)$", moment):
        raise PydanticCustomError("INVALID_FORMAT", "time zone")
    return moment


def _boolean(value: object) -> object:
    """Query switches are `true` and `false`, nothing else."""
    if isinstance(value, str) and value not in {"true", "false"}:
        raise PydanticCustomError("INVALID_TYPE", "boolean")
    return value


Boolean = BeforeValidator(_boolean)
Decimal = BeforeValidator(_decimal)
Moment = Annotated[datetime, BeforeValidator(_aware)]
PathReference = Annotated[
    str, Path(min_length=1, max_length=NAME_MAX, description="An id, or a name (ours).")
]


# Dependencies are coroutines although they wait for nothing: FastAPI runs plain functions in a thread, two hops a request.
async def _platform(request: Request) -> Platform:
    return cast("Platform", request.app.state.platform)


async def _changeable(
    request: Request,
    dry_run: Annotated[
        bool,
        Query(
            alias="dryRun",
            description="Judge the whole request and change nothing; the answer has no data.",
        ),
        Boolean,
    ] = False,
) -> Platform:
    platform = await _platform(request)
    return rehearse(platform) if dry_run else platform


async def _actor(request: Request) -> Actor:
    return cast("Actor", request.state.actor)


async def _page(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX), Decimal] = LIMIT_DEFAULT,
    cursor: Annotated[str | None, Query(min_length=1, max_length=_CURSOR_MAX)] = None,
) -> PageRequest:
    return PageRequest(limit=limit, cursor=cursor)


async def _generation(
    if_match: Annotated[
        str | None, Header(description='The generation that was read, as `"7"`; `*` for any.')
    ] = None,
) -> int | None:
    if if_match is None or if_match == "*":
        return None
    match = _ETAG.fullmatch(if_match)
    if match is None:
        raise invalid("/headers/if-match", "INVALID_FORMAT", "is not a generation")
    return int(match[1])


CurrentPlatform = Annotated[Platform, Depends(_platform)]
ChangeablePlatform = Annotated[Platform, Depends(_changeable)]
"""The platform of a route that changes something: under `?dryRun=true` one on which nothing changes."""
CurrentActor = Annotated[Actor, Depends(_actor)]
Paging = Annotated[PageRequest, Depends(_page)]
ExpectedGeneration = Annotated[int | None, Depends(_generation)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        pattern=_IDEMPOTENCY_KEY,
        description="Repeating a request under the same key returns the first answer's resource.",
    ),
]


def router(tag: str) -> APIRouter:
    """Return a router whose routes pass the strict pipeline."""
    return APIRouter(route_class=StrictRoute, tags=[tag])


def answer(
    actor: Actor, data: object, status: int = 200, *, generation: int | None = None
) -> Response:
    """Return one resource in its envelope, with an ETag where it has a generation."""
    headers = {} if generation is None else {"etag": f'"{generation}"'}
    return json_response(envelope(data, actor.request_id), status, headers)


def answer_page(actor: Actor, page: Page[T], view: Callable[[T], object]) -> Response:
    """Return a page in its envelope."""
    return json_response(
        envelope([view(item) for item in page.items], actor.request_id, nextCursor=page.next_cursor)
    )
