"""The restart rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.sandboxd.lifecycle.restarts import (
    LONGEST,
    RESET_AFTER,
    Ended,
    Restart,
    RestartPolicy,
    after_exit,
    delay_of,
    policy_of,
)


def test_delays_are_nothing_then_one_second_doubling_to_three_minutes():
    assert [delay_of(n) for n in range(1, 12)] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 180, 180]
    assert delay_of(10_000) == LONGEST


@pytest.mark.parametrize(
    ("policy", "code", "outcome"),
    [
        (RestartPolicy.NEVER, 0, Ended(succeeded=True)),
        (RestartPolicy.NEVER, 1, Ended(succeeded=False)),
        (RestartPolicy.NEVER, None, Ended(succeeded=False)),
        (RestartPolicy.ON_FAILURE, 0, Ended(succeeded=True)),
        (RestartPolicy.ON_FAILURE, 137, Restart(0.0, 1)),
        (RestartPolicy.ON_FAILURE, None, Restart(0.0, 1)),
        (RestartPolicy.ALWAYS, 0, Restart(0.0, 1)),
    ],
)
def test_what_follows_an_exit(policy, code, outcome):
    assert after_exit(policy, code=code, ran_for=1.0, streak=0) == outcome


def test_a_long_run_resets_the_back_off():
    short = after_exit(RestartPolicy.ALWAYS, code=1, ran_for=RESET_AFTER - 0.1, streak=5)
    long = after_exit(RestartPolicy.ALWAYS, code=1, ran_for=RESET_AFTER, streak=5)
    assert (short, long) == (Restart(16.0, 6), Restart(0.0, 1))


@given(st.integers(-5, 10))
def test_unknown_policies_never_restart(number):
    assert (policy_of(number) is RestartPolicy.NEVER) == (number not in {2, 3})
