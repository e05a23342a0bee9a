"""The house keeps its own rules: module sizes, module sentences, unique diagram nodes, no paths of one machine."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "src" / "oce").rglob("*.py"))
LIMIT = 600


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_and_says_what_it_is(module):
    text = module.read_text()
    assert len(text.splitlines()) <= LIMIT
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module opens with what its concept is"


def test_diagram_node_ids_are_unique():
    for page in (ROOT / "docs" / "flows").glob("*.md"):
        for diagram in re.findall(r"```mermaid\n(.*?)```", page.read_text(), re.DOTALL):
            defined = re.findall(r"^\s*([A-Za-z]\w*)[\[{(]", diagram, re.MULTILINE)
            assert len(defined) == len(set(defined)), page.name


def test_no_home_directory_of_one_machine_is_written_down():
    pattern = re.compile(r"/(?:home|root)/(?!node|\.pyenv)[a-z]\w+/")
    for path in (ROOT / "docs").rglob("*.md"):
        assert not pattern.search(path.read_text()), path
