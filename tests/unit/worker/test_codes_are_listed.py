"""Every code that the worker and local Compute can emit is in the one catalogue."""

import ast
from pathlib import Path

import pytest

import oce
from oce.domain.failures import CATALOGUE, SUCCESS_REASONS

ROOT = Path(oce.__file__).parent
MODULES = [*(ROOT / "worker").rglob("*.py"), *(ROOT / "drivers" / "local").rglob("*.py")]


def constants(module):
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if len(text) > 8 and "_" in text and text.isupper() and text.isascii():
                yield text


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_codes(module):
    environment = ("OCC_", "OPENCLAW_", "APP_", "CODEX_", "OCE_", "LOG_", "RUST_")
    other = {"WORKER_UNAVAILABLE", "HEALTH_UNAVAILABLE", "HARNESS_RESTARTING"}
    causes = {
        "PROCESS_EXIT",
        "PROBE_STATUS",
        "INVALID_OUTPUT",
        "WRAPPER_ERROR",
        "MODEL_PROBE_FAILED",
    }
    known = CATALOGUE.keys() | SUCCESS_REASONS | other | causes
    unknown = {
        text for text in constants(module) if text not in known and not text.startswith(environment)
    }
    assert not unknown
