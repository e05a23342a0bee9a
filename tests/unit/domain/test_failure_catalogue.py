"""One catalogue: a listed code can be emitted, and an HTTP code or a worker code says what follows from it."""

import re
from pathlib import Path

import pytest

import oce
from oce.domain.failures import CATALOGUE, HELD_FAILURES, SUCCESS_REASONS

ROOT = Path(oce.__file__).parent
HOME = ROOT / "domain" / "failures.py"
SOURCES = "\n".join(
    path.read_text()
    for path in ROOT.rglob("*.py")
    if path != HOME and not path.is_relative_to(ROOT / "testing")
)


@pytest.mark.parametrize("code", [*CATALOGUE, *SUCCESS_REASONS])
def test_a_listed_code_can_be_emitted(code):
    assert code in HELD_FAILURES.values() or re.search(rf"[\"']{code}[\"']", SOURCES)


@pytest.mark.parametrize("failure", CATALOGUE.values(), ids=lambda failure: failure.code)
def test_a_row_is_complete(failure):
    assert failure.message.endswith(".")
    assert failure.http is not None or failure.tempos
    assert not failure.hint or failure.hint[0].isupper() or failure.hint[0] == "`"


def test_held_failures_end_a_deployment():
    for code in HELD_FAILURES.values():
        assert [tempo.value for tempo in CATALOGUE[code].tempos] == ["permanent"]
