"""Globs, host names, canonical paths and addresses: tables for what people write, properties for what attackers do."""

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.policy.addresses import parse_ranges, refusal
from oce.policy.canonical import PathError, canonical_path, query_values
from oce.policy.match import (
    binary_matches,
    glob_matches,
    globs_intersect,
    host_matches,
    normal_host,
    path_matches,
)

LABELS = st.text("ab*?", min_size=1, max_size=4)
GLOBS = st.lists(LABELS, min_size=1, max_size=3).map("/".join)
TEXTS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("api.x.com", "api.x.com", True),
        ("API.x.com.", "api.x.com", True),
        ("*.x.com", "api.x.com", True),
        ("*.x.com", "x.com", False),
        ("*.x.com", "a.b.x.com", False),
        ("**.x.com", "a.b.x.com", True),
        ("api-*.x.com", "api-7.x.com", True),
        ("*.x.com", "evilx.com", False),
        ("*.1.1.1", "1.1.1.1", False),
        ("1.1.1.1", "1.1.1.1", True),
        ("[2606:4700::0001]", "2606:4700::1", True),
    ],
)
def test_hosts_match_by_labels(pattern, host, matches):
    assert host_matches(pattern, normal_host(host)) is matches


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/v1/**", "/v1", True),
        ("/v1/**", "/v1/a/b", True),
        ("/v1/**", "/v10", False),
        ("/v1/*", "/v1/a/b", False),
        ("/v1/*/x", "/v1/a/x", True),
        ("", "/anything", True),
        ("**", "/anything", True),
        ("/v1/[ab]", "/v1/a", False),
    ],
)
def test_paths_match_by_segments(pattern, path, matches):
    assert path_matches(pattern, path) is matches


def test_programs_match_by_segments():
    assert binary_matches("/usr/bin/*", "/usr/bin/curl")
    assert not binary_matches("/usr/*", "/usr/bin/curl")
    assert binary_matches("/**", "/anything/at/all")


@given(GLOBS, TEXTS)
def test_a_glob_says_what_its_plain_reading_says(pattern, text):
    # An independent reading: consume the pattern recursively.
    def reads(p, t):
        if not p:
            return not t
        if p.startswith("**"):
            return reads(p[2:], t) or (bool(t) and reads(p, t[1:]))
        if p[0] == "*":
            return reads(p[1:], t) or (bool(t) and t[0] != "/" and reads(p, t[1:]))
        if not t:
            return False
        return (p[0] == t[0] or (p[0] == "?" and t[0] != "/")) and reads(p[1:], t[1:])

    assert glob_matches(pattern, text, "/") is reads(pattern, text)


@given(GLOBS, GLOBS, TEXTS)
def test_two_globs_that_match_one_text_intersect(first, second, text):
    assert globs_intersect(first, second, "/") == globs_intersect(second, first, "/")
    if glob_matches(first, text, "/") and glob_matches(second, text, "/"):
        assert globs_intersect(first, second, "/")
    if "*" not in second + first and "?" not in second + first:
        assert globs_intersect(first, second, "/") is (first == second)


@pytest.mark.parametrize(
    ("raw", "match", "wire"),
    [
        ("/v1/models", "/v1/models", "/v1/models"),
        ("//v1//models/", "/v1/models/", "/v1/models/"),
        ("/v1/./a/../b", "/v1/b", "/v1/b"),
        ("/v1/%61%2e", "/v1/a.", "/v1/a."),
        ("/v1/a%20b%C3%A9", "/v1/a bé", "/v1/a%20b%C3%A9"),
        ("/v1/a;x=1/b", "/v1/a/b", "/v1/a/b"),
        ("/v1/a%3Bx", "/v1/a;x", "/v1/a%3Bx"),
        ("/v1/100%25", "/v1/100%", "/v1/100%25"),
        ("/..", None, None),
        ("/%2e%2e/x", None, None),
        ("/a%2fb", None, None),
        ("/a%5cb", None, None),
        ("/a%252e%252e", None, "/a%252e%252e"),
        ("/%252e%252e/b", None, None),
        ("/%25252e/b", None, None),
        ("/a%00", None, None),
        ("/a%ff", None, None),
        ("/a%2", None, None),
        ("/a b", None, None),
        ("", None, None),
        ("/" + "a" * 5000, None, None),
    ],
)
def test_a_path_has_one_form_or_none(raw, match, wire):
    if wire is None:
        with pytest.raises(PathError):
            canonical_path(raw)
    elif match is None:
        assert canonical_path(raw).wire == wire
    else:
        assert (canonical_path(raw).match, canonical_path(raw).wire) == (match, wire)


PIECES = st.sampled_from(
    ["a", "b", "/", ".", "..", "%2e", "%2E", "%2f", "%252e", "%25", "2e", ";", ";x", "\\", "%5c", "%00", "%c3%a9", "//"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=10).map(lambda p: "/" + "".join(p)), st.booleans())
def test_whatever_survives_hides_nothing_and_is_stable(raw, slash):
    try:
        path = canonical_path(raw, allow_encoded_slash=slash)
    except PathError:
        return
    assert canonical_path(path.wire, allow_encoded_slash=slash) == path
    seen = path.wire
    for _ in range(4):
        for segment in re.split(r"/|%2F", seen):
            assert segment.split(";")[0] not in (".", "..")
        assert "//" not in seen or slash
        assert "\\" not in seen
        seen = unquote(seen)


@given(st.lists(st.text("aé/;%.", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_properly_encoded_path_means_what_it_says(segments):
    raw = "/" + "/".join(quote(segment, safe="") for segment in segments)
    try:
        path = canonical_path(raw, allow_encoded_slash=True)
    except PathError:
        return
    if not any("/" in s or s in (".", "..") for s in segments):
        assert path.match == "/" + "/".join(segments)


def test_a_query_keeps_every_value():
    assert query_values("a=1&a=%32&b=x+y&&c") == {"a": ["1", "2"], "b": ["x y"], "c": [""]}
    with pytest.raises(PathError):
        query_values("a=%f")


@pytest.mark.parametrize(
    ("address", "allowed", "opened", "reachable"),
    [
        ("93.184.216.34", (), (), True),
        ("2606:4700::1", (), (), True),
        ("64:ff9b::5db8:d822", (), (), True),
        ("10.1.2.3", (), (), False),
        ("10.1.2.3", ("10.0.0.0/8",), (), False),
        ("10.1.2.3", (), ("10.0.0.0/8",), False),
        ("10.1.2.3", ("10.0.0.0/8",), ("10.0.0.0/8",), True),
        ("93.184.216.34", ("10.0.0.0/8",), (), False),
        ("127.0.0.1", ("127.0.0.1",), ("127.0.0.0/8",), False),
        ("169.254.169.254", ("169.254.0.0/16",), ("169.254.0.0/16",), False),
        ("fd00:ec2::254", ("fd00::/16",), ("fd00::/16",), False),
        ("fe80::1%eth0", (), (), False),
        ("::127.0.0.1", (), (), False),
        ("not an address", (), (), False),
    ],
)
def test_only_vetted_addresses_are_dialled(address, allowed, opened, reachable):
    assert (refusal(address, allowed=allowed, opened=parse_ranges(opened)) is None) is reachable


@given(st.ip_addresses())
def test_nothing_inwards_passes_without_the_operator(address):
    if refusal(str(address)) is None:
        kinds = ("loopback", "link_local", "multicast", "unspecified")
        assert not any(getattr(address, f"is_{kind}") for kind in kinds)
        assert not address.is_private
