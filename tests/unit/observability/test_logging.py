import io
import json

import pytest

from oce.observability import logging

DROPPED = [
    "Bearer abcdef",
    "sk-abcdefghijkl",
    "ghp_abcdefghijklmnop",
    "-----BEGIN PRIVATE KEY-----",
    "AKIAABCDEFGHIJKLMNOP",
    "line\nbreak",
    "\x1b[2Jclear",
    " leading blank",
    "x" * 513,
    "",
    "é",
]


@pytest.mark.parametrize("value", DROPPED)
def test_a_value_that_could_be_a_secret_or_a_trick_is_dropped(value):
    assert logging.clean("worker.pass", {"reason": value}) == {}


def test_only_agreed_names_survive_in_the_wires_spelling():
    shown = logging.clean(
        "worker.pass",
        {
            "agent_id": "agt_1",
            "password": "hunter2",
            "prompt": "hello",
            "message": "free text",
            "duration_ms": 1.23456,
            "attempt": 3,
            "pending": True,
            "lanes": ["a", "sk-abcdefghijkl", "b"],
            "deadline_ms": -1,
            "elapsed_ms": float("nan"),
        },
    )
    assert shown == {
        "agentId": "agt_1",
        "durationMs": 1.235,
        "attempt": 3,
        "pending": True,
        "lanes": ["a", "b"],
    }


def _fail():
    try:
        {}["hunter2"]
    except KeyError as error:
        raise RuntimeError("hunter2") from error


def test_an_exception_leaves_its_class_chain_and_place_but_not_its_text():
    stream = io.StringIO()
    logging.configure("worker", stream=stream)
    try:
        _fail()
    except RuntimeError:
        logging.get_logger().exception("worker.pass-failed", work_id="wrk_1")
    line = json.loads(stream.getvalue())
    assert line["severity"] == "ERROR"
    assert (line["errorClass"], line["cause"]) == ("RuntimeError", ["KeyError"])
    assert line["workId"] == "wrk_1"
    assert "hunter2" not in stream.getvalue()


def test_the_level_is_a_threshold():
    stream = io.StringIO()
    logging.configure("api", level="warn", stream=stream)
    logging.get_logger().info("http.completed")
    logging.get_logger().warning("compute.preflight-warning", message="cgroup v1 only")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "cgroup v1 only"
    ]
