import pytest

from oce.api import documents
from oce.api.errors import ApiError

CASES = [
    (b'{"a": "x\\u0000y"}', "/a", "INVALID_FORMAT"),
    (b'{"a\\u0000": 1}', "/a?", "INVALID_FORMAT"),
    (b'{"a": ["ok", "\\ud800"]}', "/a/1", "INVALID_VALUE"),
    (b'{"first": "\\ud800", "second": "\\u0000"}', "/first", "INVALID_VALUE"),
    (b'{"a": {"b~/c": "\\u0000"}}', "/a/b~0~1c", "INVALID_FORMAT"),
    (b'{"a": 1e999}', "/a", "INVALID_VALUE"),
    (b'{"a": 99999999999999999999}', "/a", "INVALID_VALUE"),
    (b'{"a": NaN}', "", "INVALID_FORMAT"),
    (b'{"a": 1, "a": 2}', "", "INVALID_FORMAT"),
    (b"\xff", "", "INVALID_FORMAT"),
    (b"{", "", "INVALID_FORMAT"),
    (b'{"a":' * 70 + b"1" + b"}" * 70, "/a" * 64, "TOO_DEEP"),
    (b"[" * 200_000, "", "TOO_DEEP"),
]


@pytest.mark.parametrize(("raw", "path", "code"), CASES)
def test_what_json_allows_and_we_cannot_keep_is_refused_by_pointer(raw, path, code):
    with pytest.raises(ApiError) as refusal:
        documents.parse(raw)
    assert [(item.path, item.code) for item in refusal.value.problems] == [(path, code)]


def test_what_we_can_keep_passes_unchanged():
    text = '{"name": "Zoë 🦀", "list": [1, 2.5, null, true], "deep": {"x": {"y": "z"}}}'
    assert documents.parse(text.encode())["list"] == [1, 2.5, None, True]
