"""What the offline model answers."""

import json

from oce.dev.model_replies import respond

TOOLS = [{"type": "function", "name": "exec_command"}]


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def test_text_is_repeated_with_its_number_and_client_context_is_not_counted():
    history = [
        user("<environment_context>…"),
        user("one"),
        {"type": "message", "role": "assistant", "content": [{"text": "…"}]},
        user("two"),
    ]
    finished, events = respond({"input": history, "model": "m"}, 1)
    assert finished["output"][0]["content"][0]["text"] == "You said: two (message 2)"
    deltas = [each.data["delta"] for each in events if each.name == "response.output_text.delta"]
    assert "".join(deltas) == "You said: two (message 2)"
    assert (events[0].name, events[-1].name) == ("response.created", "response.completed")
    assert [each.data["sequence_number"] for each in events] == list(range(len(events)))


def test_a_command_becomes_a_call_of_the_offered_shell_and_its_output_a_text():
    finished, _ = respond({"input": [user("run: echo 42")], "tools": TOOLS}, 1)
    call = finished["output"][0]
    assert (call["name"], json.loads(call["arguments"])) == ("exec_command", {"cmd": "echo 42"})
    output = "Chunk ID: 1\nWall time: 0\nProcess exited with code 0\nOutput:\n42\n"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    finished, _ = respond({"input": [user("run: echo 42"), call, result], "tools": TOOLS}, 2)
    assert finished["output"][0]["content"][0]["text"] == "The command said: 42"


def test_without_a_shell_the_request_is_answered_as_text():
    finished, _ = respond({"input": "run: echo 42"}, 1)
    assert finished["output"][0]["content"][0]["text"] == "You said: run: echo 42 (message 1)"


def test_the_probe_gets_its_word():
    finished, _ = respond({"input": "Reply with the one word READY and nothing else."}, 1)
    assert finished["output"][0]["content"][0]["text"] == "READY"
