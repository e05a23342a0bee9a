import os
import stat

import pytest

from oce.client.context import Context, Contexts, home, read_key, select, timeout_seconds
from oce.client.errors import ContextError


@pytest.fixture
def contexts(tmp_path):
    return Contexts(tmp_path / "occ")


def test_a_context_is_private_whole_and_found_again(contexts, tmp_path):
    made = Context(
        name="local", url="https://127.0.0.1:1", key_file="/k", gateway_url="https://127.0.0.1:2"
    )
    path = contexts.save(made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert contexts.current() == "local"
    assert contexts.load("local") == made
    assert [entry.name for entry in path.parent.iterdir()] == ["local.json"]


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(contexts):
    contexts.save(Context(name="a", url="https://file", namespace="file", ca_file="/file"))
    environment = {"OCC_URL": "https://env", "OCC_NAMESPACE": "env"}
    found = select(contexts, environment, {"namespace": "flag"})
    assert (found.url, found.namespace, found.ca_file) == ("https://env", "flag", "/file")


def test_without_a_context_the_sentence_says_how_to_get_one(contexts):
    with pytest.raises(ContextError) as error:
        select(contexts, {}, {})
    assert "occ up" in error.value.hint


@pytest.mark.parametrize("name", ["../x", "", "A", "a/b", ".hidden"])
def test_a_context_name_cannot_leave_its_folder(contexts, name):
    with pytest.raises(ContextError):
        contexts.load(name)


def test_a_damaged_context_is_named(contexts):
    contexts.save(Context(name="a", url="https://x")).write_text("{")
    with pytest.raises(ContextError, match=r"a\.json"):
        contexts.load("a")


def test_removing_the_current_context_leaves_none(contexts):
    contexts.save(Context(name="a", url="https://x"))
    contexts.remove("a")
    assert (contexts.names(), contexts.current()) == ([], None)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("key_1.abc\n", "key_1.abc"),
        ('{"data": {"id": "key_1", "key": "key_1.abc"}}', "key_1.abc"),
        ('{"key": "key_1.abc"}', "key_1.abc"),
    ],
)
def test_a_key_file_holds_the_key_or_the_answer_that_made_it(tmp_path, text, key):
    path = tmp_path / "key"
    path.write_text(text)
    assert read_key(str(path)) == key


@pytest.mark.parametrize("text", ["", "a\nb", '{"data": {}}', "clé"])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path, text):
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ContextError) as error:
        read_key(str(path))
    assert text.strip() == "" or text not in str(error.value)


def test_homes_and_timeouts():
    assert str(home({"OCC_HOME": "/o", "HOME": "/h"})) == "/o"
    assert str(home({"XDG_CONFIG_HOME": "/x"})) == "/x/occ"
    assert str(home({"HOME": "/h"})) == "/h/.config/occ"
    assert timeout_seconds({}) == 30
    assert timeout_seconds({"OCC_TIMEOUT_SECONDS": "1.5"}) == 1.5
    for text in ("0", "-1", "nan", "inf", "soon"):
        with pytest.raises(ContextError):
            timeout_seconds({"OCC_TIMEOUT_SECONDS": text})


def test_no_temporary_file_survives_a_failed_write(contexts, monkeypatch):
    def broken(*_given):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("pathlib.Path.replace", broken)
    with pytest.raises(OSError, match="No space left"):
        contexts.save(Context(name="a", url="https://x"))
    assert list((contexts.folder / "contexts").iterdir()) == []
