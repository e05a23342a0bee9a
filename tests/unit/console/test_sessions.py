from oce.console.sessions import LIFETIME_SECONDS, SESSIONS_MAX, Sessions
from oce.domain.secret import SecretText
from oce.testing.fakes import ManualClock


def test_a_session_lives_for_eight_hours_and_no_longer():
    clock = ManualClock()
    sessions = Sessions(clock)
    cookie = sessions.open(SecretText("key"))
    clock.advance(LIFETIME_SECONDS - 1)
    assert sessions.find(cookie) is not None
    clock.advance(2)
    assert sessions.find(cookie) is None


def test_each_session_has_its_own_form_token_and_closes_alone():
    sessions = Sessions(ManualClock())
    first, second = sessions.open(SecretText("a")), sessions.open(SecretText("b"))
    assert sessions.find(first).form_token != sessions.find(second).form_token
    sessions.close(first)
    assert sessions.find(first) is None
    assert sessions.find(second) is not None


def test_the_oldest_session_gives_way_and_nothing_else_opens_one():
    sessions = Sessions(ManualClock())
    oldest = sessions.open(SecretText("k"))
    for _ in range(SESSIONS_MAX):
        sessions.open(SecretText("k"))
    assert sessions.find(oldest) is None
    for cookie in (None, "", "guess"):
        assert sessions.find(cookie) is None
