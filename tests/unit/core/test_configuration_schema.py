"""The document: closed, without credentials, and the Harness it chooses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oce.core.configurations.schema import (
    KEYS,
    binding_problems,
    harness_of,
    read,
    stamp_logging,
    value_problems,
)

EXAMPLES = {
    "agents.defaults.model.primary": "openai/gpt-5.1-codex",
    "agents.defaults.agentRuntime.id": "codex",
    "models.providers.openai.baseUrl": "https://api.openai.com/v1",
    "plugins.entries.codex.enabled": True,
    "sandbox-network-policy.additions": {
        "web": {"endpoints": [{"host": "example.org", "port": 443}]}
    },
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)


def _put(path, value):
    document = value
    for part in reversed(path.split(".")):
        document = {part: document}
    return document


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_listed_key_is_accepted_and_a_wrong_type_refused(key):
    good = EXAMPLES.get(key.path, key.choices[0] if key.choices else None)
    assert value_problems(_put(key.path, good)) == ()
    assert key.meaning
    assert key.honoured_by
    if key.kind != "document":
        (problem,) = value_problems(_put(key.path, [1]))
        assert (problem.path, problem.code) == ("/" + key.path.replace(".", "/"), "INVALID_TYPE")


@pytest.mark.parametrize(
    ("document", "path", "code"),
    [
        ([], "", "INVALID_TYPE"),
        ({"agents": 1}, "/agents", "INVALID_TYPE"),
        ({"agent": {}}, "/agent", "UNKNOWN_FIELD"),
        ({"a/b~c": {}}, "/a~1b~0c", "UNKNOWN_FIELD"),
        ({"a\x1b[31m": {}}, "/a?[31m", "UNKNOWN_FIELD"),
        ({"agents": {"defaults": {"model": {"primary": "claude"}}}}, "/agents/defaults/model/primary", "INVALID_FORMAT"),
        ({"models": {"providers": {"openai": {"apiKey": "k"}}}}, "/models/providers/openai/apiKey", "INVALID_VALUE"),
        ({"models": {"providers": {"openai": {"api": "ollama"}}}}, "/models/providers/openai/api", "INVALID_VALUE"),
        ({"models": {"providers": {"openai": {"baseUrl": "ftp://x"}}}}, "/models/providers/openai/baseUrl", "INVALID_FORMAT"),
        ({"models": {"providers": {"openai": {"baseUrl": "https://u:p@x/v1"}}}}, "/models/providers/openai/baseUrl", "INVALID_FORMAT"),
        ({"sandbox-network-policy": {"additions": {"x": ["sk-abcdefghijklmnopqrst"]}}},
         "/sandbox-network-policy/additions/x/0", "INVALID_VALUE"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_path_and_never_by_value(document, path, code):
    (problem,) = value_problems(document)
    assert (problem.path, problem.code) == (path, code)
    assert "sk-" not in problem.note


@given(JSON)
def test_any_document_is_judged_without_an_accident(document):
    for problem in value_problems(document):
        assert len(problem.path) <= 512
        assert problem.path.isprintable()


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("TOOL_KEY", True), ("tool_key", True), ("1X", False), ("A-B", False), ("", False), ("A" * 254, False),
        ("OPENAI_API_KEY", False), ("openai_x", False), ("Ld_Preload", False), ("path", False), ("KUBECONFIG", False),
        ("PYTHONPATH", False), ("PATHS", True), ("NO_PROXY", False),
    ],
)  # fmt: skip
def test_reserved_environment_names(name, fine):
    assert (binding_problems({name: "sec"}) == ()) is fine


def test_at_most_64_bindings():
    assert binding_problems({f"N{n}": "s" for n in range(64)}) == ()
    assert binding_problems({f"N{n}": "s" for n in range(65)})[0].code == "TOO_LONG"


def test_the_harness_is_chosen_in_the_document():
    model = _put("agents.defaults.model.primary", "openai/gpt-5.1-codex")
    assert harness_of(model) == "codex"
    assert harness_of({}) is None
    assert harness_of(_put("agents.defaults.agentRuntime.id", "openclaw")) == "openclaw"


def test_the_logging_stamp_keeps_the_level_and_copies():
    values = {"logging": {"level": "debug"}}
    stamped = stamp_logging(values)
    assert read(stamped, "logging.consoleLevel") == "debug"
    assert read(stamped, "logging.consoleStyle") == "json"
    assert values == {"logging": {"level": "debug"}}
    json.dumps(stamped)
