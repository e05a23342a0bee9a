"""One machine for the whole session, started and used as a person does: `occ` as a subprocess, in directories of its own.

Sandboxes reach the offline model as `api.openai.com` by the operator's own file, so policy and credential swap are those of production.
When the session ends everything is taken down and nothing may be left: no process, mount, control group or directory.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oce.dev.traces import sandboxes_of, traces_of

sys.path.append(str(Path(__file__).parent))
from person import MATERIAL, Machine, ModelEndpoint, new_root, new_shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from person import Shell


@pytest.fixture(scope="session")
def model() -> Iterator[ModelEndpoint]:
    root = new_root("oce-am-")
    endpoint = ModelEndpoint(root / "model")
    try:
        endpoint.start()
        yield endpoint
    finally:
        endpoint.stop()
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def machine(model: ModelEndpoint) -> Iterator[Machine]:
    root = new_root("oce-a-")
    state = root / "state"
    state.mkdir()
    (state / "operator.toml").write_text(model.operator_settings())
    found = Machine(root, state, new_shell(root, state), model)
    try:
        found.shell.occ("up", "--detach")
        found.shell.occ("apply", "-f", "-", stdin=MATERIAL)
        yield found
    finally:
        found.sandboxes |= sandboxes_of(state / "sandboxd")
        found.shell.occ("down", "--purge", "--yes")
        shutil.rmtree(root, ignore_errors=True)
    assert traces_of(root, sandboxes=frozenset(found.sandboxes)) == ()


@pytest.fixture
def shell(machine: Machine) -> Shell:
    machine.until_serving()
    return machine.shell
