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

sys.path.append(str(Path(__file__).parent))
from person import ModelEndpoint, new_root, served_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from person import Machine, Shell


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
    with served_machine("oce-a-", model) as found:
        yield found


@pytest.fixture
def shell(machine: Machine) -> Shell:
    machine.until_serving()
    return machine.shell
