"""The Console's pages as a Starlette application, mounted at `/console` beside the API.

Every page asks `core` with the session's own authority; a refusal becomes a page that says what the API would have said. Content comes
only from this origin, scripts are small modules without inline code, and every answer that changes something needs the form's token.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from oce.console.sessions import COOKIE, LIFETIME_SECONDS, Sessions
from oce.core.access.queries import authenticate
from oce.core.agents import commands as agent_commands
from oce.core.agents import queries as agents
from oce.core.errors import CoreError, Unauthenticated
from oce.core.namespaces import queries as namespaces
from oce.core.paging import PageRequest
from oce.core.revisions import queries as revisions
from oce.core.runtime import queries as runtime
from oce.domain.clock import timestamp
from oce.domain.failures import CATALOGUE
from oce.domain.ids import IdKind, new_id
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from oce.core.platform import Actor, Platform

_HERE: Final = Path(__file__).parent
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"cross-origin-opener-policy": b"same-origin",
}
_PAGE: Final = 200
_FORM_MAX: Final = 8192


class SecurityHeaders:
    """Adds the same headers to every answer, also to errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS.items()]
            await send(message)

        await self._app(scope, receive, answer)


class Console:
    """Handlers over one platform."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._sessions = Sessions(platform.clock)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["time"] = lambda moment: timestamp(moment) if moment else "-"

    def routes(self) -> list[Route | Mount]:
        """Return the routes below `/console`."""
        return [
            Route("/", self._page(self.overview)),
            Route("/sign-in", self.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/namespaces/{namespace}/agents/{agent}", self._page(self.agent)),
            Route(
                "/namespaces/{namespace}/agents/{agent}/deploy",
                self._page(self.deploy),
                methods=["POST"],
            ),
            Route(
                "/namespaces/{namespace}/agents/{agent}/deployments/{revision}",
                self._page(self.progress),
            ),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ]

    async def sign_in(self, request: Request) -> Response:
        """Show the form; on POST check the key and open a session."""
        if request.method == "GET":
            return self._html("sign_in.html", problem="")
        if not _same_origin(request):
            return self._html("sign_in.html", http=403, problem="The form came from elsewhere.")
        form = await _form(request)
        key = SecretText(form.get("key", "").strip())
        try:
            await authenticate(self._platform, key, request_id=new_id(IdKind.REQUEST))
        except CoreError as refused:
            return self._html("sign_in.html", http=401, problem=refused.message)
        answer = RedirectResponse("/console/", status_code=303)
        answer.set_cookie(
            COOKIE,
            self._sessions.open(key),
            max_age=int(LIFETIME_SECONDS),
            path="/",
            secure=True,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        if not _same_origin(request):
            return self._html("sign_in.html", http=403, problem="The form came from elsewhere.")
        self._sessions.close(request.cookies.get(COOKIE))
        answer = RedirectResponse("/console/sign-in", status_code=303)
        answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
        return answer

    async def overview(self, request: Request, actor: Actor, token: str) -> Response:
        """Show every Namespace and Agent that the key may read."""
        del request
        found = []
        page = await namespaces.list_page(self._platform, actor, PageRequest(limit=_PAGE))
        for namespace in page.items:
            listed = await agents.list_page(
                self._platform, actor, namespace.id, PageRequest(limit=_PAGE)
            )
            found.append((namespace, listed.items, listed.next_cursor is not None))
        return self._html("overview.html", namespaces=found, token=token)

    async def agent(self, request: Request, actor: Actor, token: str) -> Response:
        """Show one Agent: facts, what its Harness does now, its revisions, its Sandbox log."""
        namespace, name = request.path_params["namespace"], request.path_params["agent"]
        agent = await agents.get(self._platform, actor, namespace, name)
        status = await runtime.harness_status(self._platform, actor, namespace, agent.id)
        listed = await revisions.list_page(
            self._platform, actor, namespace, agent.id, PageRequest(limit=20)
        )
        newest = listed.items[0] if listed.items else None
        deployment = (
            await revisions.deployment(self._platform, actor, namespace, agent.id, newest.id)
            if newest
            else None
        )
        return self._html(
            "agent.html",
            agent=agent,
            status=status,
            revisions=listed.items,
            newest=newest,
            deployment=deployment,
            log=await self._log(actor, namespace, agent.id),
            token=token,
        )

    async def _log(self, actor: Actor, namespace: str, agent: str) -> runtime.LogPage | str:
        try:
            return await runtime.logs(
                self._platform, actor, namespace, agent, runtime.LogQuery(lines=100)
            )
        except CoreError as refused:
            return refused.message

    async def deploy(self, request: Request, actor: Actor, token: str) -> Response:
        """Admit a deployment and go back to the Agent."""
        form = await _form(request)
        if not _same_origin(request) or not hmac.compare_digest(form.get("token", ""), token):
            return self._html("problem.html", http=403, code="FORBIDDEN", message="", hint="")
        namespace, agent = request.path_params["namespace"], request.path_params["agent"]
        await agent_commands.deploy(self._platform, actor, namespace, agent)
        return RedirectResponse(f"/console/namespaces/{namespace}/agents/{agent}", status_code=303)

    async def progress(self, request: Request, actor: Actor, token: str) -> Response:
        """Return the deployment panel alone, for the page's script to refresh."""
        del token
        path = request.path_params
        deployment = await revisions.deployment(
            self._platform, actor, path["namespace"], path["agent"], path["revision"]
        )
        steps = await revisions.deployment_steps(
            self._platform, actor, path["namespace"], path["agent"], path["revision"]
        )
        return self._html("deployment.html", deployment=deployment, steps=steps)

    def _page(
        self, handler: Callable[[Request, Actor, str], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            session = self._sessions.find(request.cookies.get(COOKIE))
            if session is None:
                return RedirectResponse("/console/sign-in", status_code=303)
            try:
                actor = await authenticate(
                    self._platform, session.key, request_id=new_id(IdKind.REQUEST)
                )
                return await handler(request, actor, session.form_token)
            except Unauthenticated:
                self._sessions.close(request.cookies.get(COOKIE))
                return RedirectResponse("/console/sign-in", status_code=303)
            except CoreError as refused:
                row = CATALOGUE[refused.code]
                return self._html(
                    "problem.html",
                    http=row.http or 503,
                    code=refused.code,
                    message=refused.message,
                    hint=row.hint,
                )

        return serve

    def _html(self, template: str, *, http: int = 200, **values: Any) -> HTMLResponse:  # noqa: ANN401 - template values
        return HTMLResponse(self._templates.get_template(template).render(values), http)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a small url-encoded form; a larger one is empty."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_MAX:
            return {}
    return dict(parse_qsl(body.decode("ascii", "replace")))


def _same_origin(request: Request) -> bool:
    """Tell whether a form comes from a page of ours: the browser says so, and nothing else may."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}"


def create_console(platform: Platform) -> Starlette:
    """Return the application to mount at `/console`."""
    return Starlette(routes=Console(platform).routes(), middleware=[Middleware(SecurityHeaders)])
