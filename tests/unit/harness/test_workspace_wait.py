"""The Harness starts only when its workspace carries the marker of its own setup."""

from __future__ import annotations

import json

import pytest

from oce.harness.codex.workspace import MARKER, SETUP_ENV, await_workspace, initialised


class Waiting:
    """A child keeper that lets something happen instead of waiting."""

    def __init__(self, happen):
        self.happen = happen
        self.waits = 0

    def sleep(self, seconds):
        assert 0 < seconds < 1
        self.waits += 1
        return self.happen(self.waits)


def test_it_waits_for_the_marker_of_this_setup_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(SETUP_ENV, "wss_1")

    def happen(waits):
        setup = "wss_other" if waits < 3 else "wss_1"
        (tmp_path / MARKER).write_text(json.dumps({"id": setup}))

    keeper = Waiting(happen)
    await_workspace(str(tmp_path), keeper)
    assert keeper.waits == 3


def test_a_stop_ends_the_wait(tmp_path, monkeypatch):
    monkeypatch.setenv(SETUP_ENV, "wss_1")
    keeper = Waiting(lambda _: True)
    await_workspace(str(tmp_path), keeper)
    assert keeper.waits == 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"id": 1}', '{"other": "wss_1"}'])
def test_a_marker_that_is_none_is_not_believed(tmp_path, content):
    (tmp_path / MARKER).write_text(content)
    assert not initialised({SETUP_ENV: "wss_1"}, str(tmp_path))


def test_without_a_setup_there_is_nothing_to_wait_for(tmp_path):
    assert initialised({}, str(tmp_path))
