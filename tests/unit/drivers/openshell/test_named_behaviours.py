"""Every group of behaviours and every fault of the Driver's side has a test that carries its name.

`gNN` is group NN of reference/sandbox-openshell.md §22; `brNN` a failure case that the Driver can meet. The others of that list are met
by other rooms: their tests carry the same names there.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[3]
FOLDERS = (
    TESTS / "unit" / "drivers" / "openshell",
    TESTS / "integration" / "drivers" / "openshell",
)
GROUPS = [f"g{number:02}" for number in range(1, 23)]
FAULTS = ["br01", "br03", "br05", "br06", "br08", "br12", "br14", "br18", "br31", "br34", "br38"]


def _words():
    found = set()
    for folder in FOLDERS:
        for path in folder.glob("test_*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found |= set(re.findall(r"_(g\d\d|br\d\d)(?=_)", node.name))
    return found


@pytest.mark.parametrize("word", [*GROUPS, *FAULTS])
def test_it_has_a_test_of_its_name(word):
    assert word in _words()


def test_no_function_of_the_driver_is_longer_than_a_screen():
    room = TESTS.parent / "src" / "oce" / "drivers" / "openshell"
    for path in room.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno <= 50, (path.name, node.name)
