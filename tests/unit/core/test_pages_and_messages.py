"""Pages lose and repeat nothing, whatever is hidden; cursors and messages are bounded."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.contracts.refusals import Detail
from oce.core import checks
from oce.core.errors import InvalidRequest, RateLimited
from oce.core.namespaces.rules import not_empty_message
from oce.core.paging import PageRequest, collect, decode, encode
from oce.core.runtime.limits import LogGate


@given(st.lists(st.booleans(), max_size=25), st.integers(1, 6))
async def test_walking_pages_shows_exactly_what_is_visible(shown, limit):
    elements = [f"{number:04}" for number in range(len(shown))]

    async def fetch(after, count):
        return [one for one in elements if one > after[0]][:count]

    async def visible(batch):
        return [shown[int(one)] for one in batch]

    seen, cursor = [], None
    while True:
        page = await collect("l", PageRequest(limit, cursor), fetch, lambda one: (one, ""), visible)
        seen += page.items
        assert len(page.items) == limit or page.next_cursor is None
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [one for one, yes in zip(elements, shown, strict=True) if yes]


@given(st.text(), st.text(max_size=40), st.text(max_size=40))
def test_cursors_round_trip_only_in_their_list(listing, first, second):
    cursor = encode(listing, (first, second))
    if len(cursor) <= 1024:
        assert decode(listing, cursor) == (first, second)
    with pytest.raises(InvalidRequest):
        decode(listing + "x", cursor)


@given(st.text(max_size=50))
def test_no_text_breaks_the_cursor_reader(text):
    with pytest.raises(InvalidRequest):
        decode("a list", text)


@given(
    st.dictionaries(
        st.sampled_from(["agent", "secret", "configuration", "credential_source"]),
        st.lists(st.integers(0, 10**30).map(str), min_size=1, max_size=16),
        min_size=1,
    )
)
def test_what_blocks_a_namespace_fits_and_names_every_kind(contents):
    message = not_empty_message(contents)
    assert len(message) <= 256
    assert all(f"{kind} {ids[0]}" in message for kind, ids in contents.items())


def test_problems_are_shown_three_and_counted():
    with pytest.raises(InvalidRequest) as refused:
        checks.refuse(Detail(f"/f{n}", "UNKNOWN_FIELD") for n in range(5))
    assert refused.value.message.endswith("/f2: UNKNOWN_FIELD and 2 more")
    assert len(refused.value.details) == 5


@pytest.mark.parametrize(
    "name", ["", " x", "x\n", "x" * 201, "a\u2028b", "agt_0b6cbb3c-2a5e-4a3c-9a55-6f3a3d2f0001"]
)
def test_names_that_cannot_be(name):
    with pytest.raises(InvalidRequest):
        checks.name(name)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_the_log_gate_never_gives_more_than_rate_and_burst(gaps):
    gate, now, taken = LogGate(), 0.0, 0
    for gap in gaps:
        now += gap
        with contextlib.suppress(RateLimited):
            gate.take("p", "a", now)
            taken += 1
    assert taken <= 10 + 2 * sum(gaps[1:]) + 1e-6
