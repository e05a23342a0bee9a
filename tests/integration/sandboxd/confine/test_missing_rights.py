import os
import tempfile
from pathlib import Path

import pytest

from oce.sandboxd.confine import doctor, rights
from oce.sandboxd.confine.config import ConfineConfig
from oce.sandboxd.place import LaunchFailedError, MissingRightError
from oce.testing.machine_place import temporary_place

pytestmark = pytest.mark.sandbox

MESSAGES = {
    "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted": rights.USER_NAMESPACES,
    "bwrap: setting up uid map: Permission denied": rights.USER_NAMESPACES,
    "bwrap: No permissions to create new namespace, likely because": rights.USER_NAMESPACES,
    "bwrap: Can't mount proc on /newroot/proc: Operation not permitted": rights.PROC,
    "bwrap: pivot_root: Operation not permitted": rights.MOUNTS,
    "bwrap: Unknown option --disable-userns": rights.BUBBLEWRAP,
    "bwrap: error while loading shared libraries: libcap.so.2": rights.BUBBLEWRAP,
}


@pytest.fixture
def shim():
    with tempfile.TemporaryDirectory(prefix="oce-shim-") as name:
        folder = Path(name)
        # The uid of a Sandbox must reach it, which pytest's own directories forbid.
        folder.chmod(0o755)
        yield _maker(folder)


def _maker(folder):
    def make(message, version="0.11.0"):
        program = folder / "bwrap"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo "bubblewrap {version}"; exit; fi\n'
            f'echo "{message}" >&2\nexit 1\n'
        )
        program.chmod(0o755)
        return program

    return make


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_bubblewrap_that_fails_names_the_right_and_leaves_nothing(shim, message):
    async with temporary_place(bwrap=shim(message)) as kit:
        with pytest.raises(MissingRightError) as caught:
            await kit.place.check()
        assert caught.value.right == MESSAGES[message]
        assert message in caught.value.remedy
        with pytest.raises(MissingRightError):
            await kit.start(["true"])


async def test_a_bubblewrap_that_says_nothing_known_is_no_missing_right(shim):
    async with temporary_place(bwrap=shim("bwrap: bind mount: no such file")) as kit:
        with pytest.raises(LaunchFailedError, match="bind mount: no such file"):
            await kit.start(["true"])


async def test_an_old_or_absent_bubblewrap_is_refused(shim, tmp_path):
    for program in (shim("", version="0.7.9"), tmp_path / "none"):
        async with temporary_place(bwrap=program) as kit:
            with pytest.raises(MissingRightError) as caught:
                await kit.place.check()
            assert caught.value.right == rights.BUBBLEWRAP


async def test_without_a_working_nft_other_ports_are_refused(shim):
    async with temporary_place(nft=shim("nft: no")) as kit:
        assert "nft: no" in await kit.place.try_recipe()


async def test_the_doctor_finds_what_the_recipe_needs():
    found = {right.name: right for right in await doctor.probe()}
    required = [name for name, right in found.items() if right.required]
    assert required == list(rights.IN_ORDER)
    assert all(found[name].held for name in required), found
    assert found["cgroup memory"].held == (os.geteuid() == 0 and not found["cgroup memory"].remedy)
    assert all(bool(right.remedy) != right.held for right in found.values())


async def test_the_doctor_stops_at_the_first_missing_right(shim):
    program = shim("bwrap: Can't mount proc on /newroot/proc: Operation not permitted")
    folder = program.parent
    config = ConfineConfig(runtime_dir=folder / "run", state_dir=folder / "state", bwrap=program)
    found = {right.name: right for right in await doctor.probe(config)}
    assert found[rights.USER_NAMESPACES].held
    assert not found[rights.PROC].held
    assert "unmasked" in found[rights.PROC].remedy
    assert found[rights.SECCOMP].how_tried == f"not reached: {rights.PROC}"
    assert not found["cgroup pids"].held
