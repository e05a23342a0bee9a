"""What the offline model answers: a pure function from one Responses API request to its stream of events.

The offline model server exists so that the demo and the tests run a real Codex without a key and without the Internet. Its
answers are deterministic, so that a test can name the sentence it expects; there is no intelligence in it. Three rules decide:

* the newest item is a tool's output: report that output as text;
* the newest user text starts with ``run: `` and the request offers a shell tool: call that tool with the rest of the text;
* otherwise repeat the user's text and say which message of the conversation it was (or answer ``READY`` when asked to).

The event names and shapes are those of OpenAI's Responses API in streaming mode, reduced to what a client needs to finish a turn
(reference: real components, section 1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RUN = "run:"
_OUTPUT_TYPES = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
    }
)
# Codex versions offer their shell under different names; the first one present is used.
_SHELL_TOOLS = ("exec_command", "shell_command", "shell")
_DELTA_CHARACTERS = 16
# Codex sends its own context (environment, instructions) as user messages that open with a tag or a heading.
_CONTEXT_OPENINGS = ("<", "# AGENTS.md")


@dataclass(frozen=True, slots=True)
class Said:
    """One item of the conversation: ``role`` is ``user``, ``assistant`` or ``tool``."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event; ``data`` already carries ``type`` and ``sequence_number``."""

    name: str
    data: Mapping[str, Any]

    def encode(self) -> bytes:
        """Render the event as it stands on the wire."""
        body = json.dumps(self.data, separators=(",", ":"))
        return f"event: {self.name}\ndata: {body}\n\n".encode()


def conversation(body: Mapping[str, Any]) -> list[Said]:
    """Read the conversation out of ``input`` (a string or a list of items), oldest first; client context is left out."""
    given = body.get("input")
    if isinstance(given, str):
        return [Said("user", given)]
    return [said for item in given or [] if (said := _said(item)) is not None]


def _said(item: object) -> Said | None:
    if isinstance(item, str):
        return Said("user", item)
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    if kind in _OUTPUT_TYPES:
        return Said("tool", _tool_output(item.get("output")))
    if kind != "message":
        return None
    role, text = str(item.get("role", "user")), _content(item.get("content"))
    if role not in {"user", "assistant"} or text.lstrip().startswith(_CONTEXT_OPENINGS):
        return None
    return Said(role, text)


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _tool_output(output: object) -> str:
    """Return what the command wrote: Codex frames it with lines about time and exit code, the last of which is ``Output:``."""
    text = output if isinstance(output, str) else _content(output) or json.dumps(output)
    try:
        inner = json.loads(text)
    except ValueError:
        inner = None
    if isinstance(inner, dict) and "output" in inner:
        text = str(inner["output"])
    _, framed, written = text.partition("\nOutput:\n")
    return written if framed else text


def reply_text(said: list[Said]) -> str:
    """Choose the sentence for a conversation that gets text."""
    newest = said[-1] if said else Said("user", "")
    if newest.role == "tool":
        return f"The command said: {newest.text.strip()}"
    text = newest.text.strip()
    if "READY" in text:
        return "READY"
    return f"You said: {text} (message {sum(each.role == 'user' for each in said)})"


def shell_command(said: list[Said]) -> str | None:
    """Find the command that the newest user text asks for, or None."""
    if not said or said[-1].role != "user":
        return None
    text = said[-1].text.strip()
    return text[len(_RUN) :].strip() if text.startswith(_RUN) else None


def _tool_call(tools: object, command: str, number: int) -> dict[str, Any] | None:
    names = {tool.get("name") for tool in tools or [] if isinstance(tool, dict)}  # type: ignore[attr-defined] # JSON
    name = next((each for each in _SHELL_TOOLS if each in names), None)
    if name is None:
        return None
    shapes: dict[str, dict[str, Any]] = {
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["bash", "-lc", command]},
    }
    arguments = shapes[name]
    return {
        "type": "function_call",
        "id": f"fc_{number:08d}",
        "call_id": f"call_{number:08d}",
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }


def _tool_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.output_item.added", {"output_index": 0, "item": {**item, "arguments": ""}}
    yield (
        "response.function_call_arguments.delta",
        {"item_id": item["id"], "output_index": 0, "delta": item["arguments"]},
    )
    yield "response.output_item.done", {"output_index": 0, "item": item}


def _text_events(text: str, done: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    started = {**done, "status": "in_progress", "content": []}
    place = {"item_id": done["id"], "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": []}
    yield "response.output_item.added", {"output_index": 0, "item": started}
    yield "response.content_part.added", {**place, "part": empty}
    for start in range(0, len(text), _DELTA_CHARACTERS):
        delta = text[start : start + _DELTA_CHARACTERS]
        yield "response.output_text.delta", {**place, "delta": delta}
    yield "response.output_text.done", {**place, "text": text}
    yield "response.content_part.done", {**place, "part": done["content"][0]}
    yield "response.output_item.done", {"output_index": 0, "item": done}


def respond(body: Mapping[str, Any], number: int) -> tuple[dict[str, Any], list[Event]]:
    """Answer request ``number`` (counted from 1): the finished response object, and the events that stream it."""
    said = conversation(body)
    command = shell_command(said)
    item = None if command is None else _tool_call(body.get("tools"), command, number)
    if item is not None:
        middle = list(_tool_events(item))
    else:
        text = reply_text(said)
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "type": "message",
            "id": f"msg_{number:08d}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        middle = list(_text_events(text, item))
    base = {
        "id": f"resp_{number:08d}",
        "object": "response",
        "created_at": 0,
        "model": body.get("model"),
    }
    words_in = sum(len(each.text.split()) for each in said)
    finished = {
        **base,
        "status": "completed",
        "output": [item],
        "usage": {
            "input_tokens": words_in,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": words_in + 1,
        },
    }
    created: dict[str, Any] = {"response": {**base, "status": "in_progress", "output": []}}
    named = [
        ("response.created", created),
        *middle,
        ("response.completed", {"response": finished}),
    ]
    events = [
        Event(name=name, data={"type": name, "sequence_number": index, **data})
        for index, (name, data) in enumerate(named)
    ]
    return finished, events
