"""The operator's own file is closed, and a context's name never takes another machine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oce.client.context import Context, Contexts
from oce.dev.naming import context_name, context_of
from oce.dev.operator_settings import OperatorSettings, UpstreamOverride, read
from oce.dev.state import StateError

if TYPE_CHECKING:
    from pathlib import Path

_GOOD = '[[upstream]]\nhost = "a.example"\nport = 443\nconnect = "127.0.0.1:9"\nca_file = "/ca"\n'


def test_absent_and_whole(tmp_path: Path):
    assert read(tmp_path / "operator.toml") == OperatorSettings()
    file = tmp_path / "operator.toml"
    file.write_text(f"durable = false\n{_GOOD}")
    found = read(file)
    assert found.durable is False
    assert found.upstreams == (UpstreamOverride("a.example", 443, "127.0.0.1:9", "/ca"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "`colour` is not known; known are `durable`, `upstream`"),
        ("durable = 1", "`durable` must be true or false"),
        ("upstream = 3", r"\[\[upstream\]\]"),
        (_GOOD + "x = 1", r"`upstream\[0\].x` is not known"),
        (_GOOD.replace("port = 443\n", ""), r"`upstream\[0\].port` is missing"),
        (_GOOD.replace("443", "70000"), r"`upstream\[0\].port` must be 1 to 65535"),
        (_GOOD.replace("443", '"443"'), r"`upstream\[0\].port` must be a int"),
        ("= nonsense", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str):
    (tmp_path / "operator.toml").write_text(text)
    with pytest.raises(StateError, match=said):
        read(tmp_path / "operator.toml")


def test_a_second_machine_gets_a_name_of_its_own(tmp_path: Path):
    contexts = Contexts(tmp_path / "contexts")
    first, second, third = (
        tmp_path / "first",
        tmp_path / "Zweite Maschine",
        tmp_path / "x" / "first",
    )
    for root in (first, second, third):
        root.mkdir(parents=True)
    assert context_name(contexts, first) == "local"
    contexts.save(Context(name="local", url="https://h", state_dir=str(first)))
    assert context_name(contexts, first) == "local"
    assert context_name(contexts, second) == "zweite-maschine"
    contexts.save(Context(name="first", url="https://elsewhere"))
    assert context_name(contexts, third) == "first-2"
    assert context_of(contexts, third) is None
    first.rmdir()
    assert context_name(contexts, second) == "local", "its machine is gone"
