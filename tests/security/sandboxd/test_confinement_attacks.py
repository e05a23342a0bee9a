import importlib.util
import os
from pathlib import Path

import pytest

from oce.testing.machine_place import run_as_ordinary_user, temporary_place

SCRIPT = Path(__file__).with_name("attack_scenarios.py")
_spec = importlib.util.spec_from_file_location("attack_scenarios", SCRIPT)
scenarios = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scenarios)

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_as_the_user_who_runs_the_tests(name):
    async with temporary_place() as kit:
        await scenarios.SCENARIOS[name](kit)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests already run as an ordinary user")
@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_as_an_ordinary_user(name):
    done = run_as_ordinary_user(SCRIPT, name)
    assert done.returncode == 0, done.stderr
