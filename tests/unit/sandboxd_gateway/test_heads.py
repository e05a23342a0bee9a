"""Rules for requests to services."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.sandboxd.api import heads
from oce.sandboxd.api.heads import HeadError, ServiceName

DOMAIN = "openshell.localhost"


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("ws--sb.openshell.localhost", ServiceName("ws", "sb", "")),
        ("ws--sb--web.openshell.localhost", ServiceName("ws", "sb", "web")),
        ("ws--sb--web.openshell.localhost.", ServiceName("ws", "sb", "web")),
        ("a-b--c-d.openshell.localhost", ServiceName("a-b", "c-d", "")),
        ("ws.openshell.localhost", None),
        ("ws--sb--a--b.openshell.localhost", None),
        ("ws----sb.openshell.localhost", None),
        ("ws--sb.evil.localhost", None),
        ("x.ws--sb.openshell.localhost", None),
        ("localhost", None),
    ],
)
def test_host_names(host, found):
    assert heads.service_name(host, DOMAIN) == found


_NAME = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,17}[a-z0-9])?", fullmatch=True).filter(
    lambda name: "--" not in name
)


@given(_NAME, _NAME, _NAME | st.just(""))
def test_a_url_s_name_is_read_back(workspace, sandbox, service):
    label = f"{workspace}--{sandbox}" + (f"--{service}" if service else "")
    assert len(label) <= 63
    assert heads.service_name(f"{label}.{DOMAIN}", DOMAIN) == ServiceName(
        workspace, sandbox, service
    )


@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        ([], True),
        ([b"Bearer abc.DEF-_~+/=="], True),
        ([b"bearer abc"], True),
        ([b"Bearer a b"], False),
        ([b"Bearer "], False),
        ([b"Basic abc"], False),
        ([b"Bearer a", b"Bearer b"], False),
        ([b"Bearer a, Bearer b"], False),
    ],
)
def test_bearers(values, accepted):
    headers = [(b"Authorization", value) for value in values]
    if accepted:
        heads.check_bearer(headers)
    else:
        with pytest.raises(HeadError) as caught:
            heads.check_bearer(headers)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ([], True),
        ([(b"Origin", b"https://ws--sb.openshell.localhost:17670")], True),
        ([(b"Origin", b"https://evil.example")], False),
        ([(b"Origin", b"null")], False),
        ([(b"Sec-Fetch-Site", b"same-origin")], True),
        ([(b"Sec-Fetch-Site", b"same-site")], False),
    ],
)
def test_same_site(headers, accepted):
    host = "ws--sb.openshell.localhost"
    if accepted:
        heads.check_same_site(headers, host)
    else:
        with pytest.raises(HeadError):
            heads.check_same_site(headers, host)


def test_what_goes_on_and_what_does_not():
    headers = [
        (b"Host", b"ws--sb.openshell.localhost"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Authorization", b"Bearer a"),
        (b"CF-Access-Jwt-Assertion", b"x"),
        (b"Cookie", b"CF_Authorization=secret; theme=dark"),
        (b"Content-Length", b"3"),
        (b"Accept", b"*/*"),
    ]
    kept = [
        (b"host", b"127.0.0.1:80"),
        (b"Cookie", b"theme=dark"),
        (b"Content-Length", b"3"),
        (b"Accept", b"*/*"),
    ]
    assert heads.forwarded(headers, port=80, bearer_passthrough=False) == kept
    passed = heads.forwarded(headers, port=80, bearer_passthrough=True)
    assert (b"Authorization", b"Bearer a") in passed


def test_connection_cannot_nominate_the_bearer_or_the_framing_away():
    headers = [
        (b"Connection", b"authorization, content-length, host"),
        (b"Authorization", b"Bearer a"),
        (b"Content-Length", b"3"),
    ]
    passed = dict(heads.forwarded(headers, port=80, bearer_passthrough=True))
    assert passed[b"Authorization"] == b"Bearer a"
    assert passed[b"Content-Length"] == b"3"
