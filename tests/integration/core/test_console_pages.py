"""The Console over a real platform: who gets in, what a page shows, and that no foreign page can act for a signed-in browser."""

import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from oce.console.app import create_console
from oce.console.sessions import COOKIE
from oce.core.access import commands as access
from oce.core.paging import PageRequest
from oce.core.revisions import queries as revisions

pytestmark = pytest.mark.postgres
ORIGIN = "https://console.test"
OURS = {"origin": ORIGIN}


@pytest.fixture
async def browser(world):
    app = Starlette(routes=[Mount("/console", create_console(world.platform))])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client


async def sign_in(browser, key):
    answer = await browser.post("/console/sign-in", data={"key": key}, headers=OURS)
    assert answer.status_code == 303
    return answer


def form_token(page):
    return re.search(r'name="token" value="([^"]+)"', page.text)[1]


async def test_a_stranger_is_sent_to_the_door(browser):
    for path in ("/", "/namespaces/default/agents/x", "/namespaces/default/agents/x/deployments/y"):
        answer = await browser.get(f"/console{path}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")


async def test_a_wrong_key_opens_nothing_and_is_not_repeated(browser):
    answer = await browser.post("/console/sign-in", data={"key": "wrong-key-text"}, headers=OURS)
    assert answer.status_code == 401
    assert COOKIE not in answer.cookies
    assert "wrong-key-text" not in answer.text


async def test_a_session_shows_the_agents_and_every_page_keeps_its_walls(browser, world):
    agent = await world.agent("<b>coder")
    answer = await sign_in(browser, world.made.key_text.reveal())
    cookie = answer.headers["set-cookie"]
    for word in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    overview = await browser.get("/console/")
    assert "&lt;b&gt;coder" in overview.text
    assert "<b>coder" not in overview.text
    page = await browser.get(f"/console/namespaces/default/agents/{agent.id}")
    assert "Never deployed." in page.text
    for seen in (overview, page, await browser.get("/console/static/deployment.js")):
        assert "default-src 'none'" in seen.headers["content-security-policy"]
        assert seen.headers["x-content-type-options"] == "nosniff"
        assert seen.headers["cache-control"] == "no-store"


async def test_a_deploy_needs_our_page_and_the_forms_token(browser, world):
    agent = await world.agent()
    await sign_in(browser, world.made.key_text.reveal())
    path = f"/console/namespaces/default/agents/{agent.id}"
    token = form_token(await browser.get(path))
    foreign = {"origin": "https://evil.example"}
    cross = {**OURS, "sec-fetch-site": "cross-site"}
    for headers, sent in (
        (OURS, "guess"),
        (OURS, ""),
        (foreign, token),
        (cross, token),
        ({}, token),
    ):
        refused = await browser.post(f"{path}/deploy", data={"token": sent}, headers=headers)
        assert refused.status_code == 403
    assert await world.work_of(agent) == []
    answer = await browser.post(f"{path}/deploy", data={"token": token}, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert len(await world.work_of(agent)) == 1
    page = await browser.get(path)
    assert "Deployment of revision 1" in page.text
    found = await revisions.list_page(
        world.platform, world.admin, "default", agent.id, PageRequest()
    )
    panel = await browser.get(f"{path}/deployments/{found.items[0].id}")
    assert 'data-status="queued"' in panel.text


async def test_a_refusal_is_a_page_with_the_catalogues_words(browser, world):
    await sign_in(browser, world.made.key_text.reveal())
    answer = await browser.get("/console/namespaces/default/agents/nobody")
    assert answer.status_code == 404
    assert "NOT_FOUND" in answer.text
    assert "Check the name or id" in answer.text


async def test_a_revoked_key_ends_the_session(browser, world):
    await sign_in(browser, world.made.key_text.reveal())
    assert (await browser.get("/console/")).status_code == 200
    await access.revoke_key(world.platform, world.admin, world.made.key_id)
    assert (await browser.get("/console/")).headers["location"] == "/console/sign-in"


async def test_signing_out_ends_the_session_and_only_from_our_page(browser, world):
    await sign_in(browser, world.made.key_text.reveal())
    foreign = await browser.post("/console/sign-out", headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert (await browser.get("/console/")).status_code == 200
    ours = await browser.post("/console/sign-out", headers=OURS)
    assert ours.headers["location"] == "/console/sign-in"
    assert (await browser.get("/console/")).status_code == 303
