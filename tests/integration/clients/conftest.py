"""Environments of foreign clients, and one sandboxd that they find the documented way.

Each client lives in a virtual environment of its own under `.cache/clients/<name>`, installed exactly as its pinned list says and
built once: the stubs register global names, so two versions of the SDK cannot share a process (reference/openshell-gateway.md).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from oce.testing.openshell_machine import machine

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "clients"


@dataclass(frozen=True)
class Client:
    """An installed client."""

    name: str
    python: Path

    def drive(self, script: str, home: Path, *arguments: str, **environment: str) -> dict:
        """Run a script of this folder in the client's environment; return the facts it prints last."""
        done = subprocess.run(
            [self.python, HERE / script, *arguments],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            cwd=home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "XDG_CONFIG_HOME": str(home),
                **environment,
            },
        )
        assert done.returncode == 0, f"{self.name}:\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def installed():
    """Return the function that gives a client by its name."""
    return _installed


def _installed(name: str) -> Client:
    """Return a client, installing it first when its pinned list changed; a list that cannot be installed is a skip by name."""
    pins = HERE / f"{name}.txt"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    folder = CACHE / name
    client = Client(name, folder / "bin" / "python")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / "installed"
        if mark.exists() and mark.read_text() == digest:
            return client
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        # The lists are complete, so nothing is resolved. What a package says about Python versions is not heeded: one of them
        # wants 3.12 and runs on 3.11.
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", client.python, "install", "-q"),
                *(
                    "--disable-pip-version-check",
                    "--no-deps",
                    "--no-compile",
                    "--only-binary",
                    ":all:",
                ),
                *("--ignore-requires-python", "-r", pins),
            ],
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(
                f"the client {name} cannot be installed on Python {sys.version.split()[0]}:"
                f" {errors[-1] if errors else done.stderr[-300:]}"
            )
        mark.write_text(digest)
    return client


@dataclass(frozen=True)
class Served:
    """A running sandboxd and the folder by which clients find it (`XDG_CONFIG_HOME`)."""

    machine: object
    home: Path

    @property
    def certificate(self) -> str:
        return str(self.machine.folder / "s" / "auth" / "ca.crt")


def _serve(home: Path, settings: str = ""):
    with machine(settings) as made:
        subprocess.run(
            [
                *(sys.executable, "-m", "oce.sandboxd.main", "register", "--name", "here"),
                *("--activate", "--config", made.config),
            ],
            check=True,
            capture_output=True,
            env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        )
        yield Served(made, home)
        print(made.log)  # noqa: T201 - shown when the test fails


@pytest.fixture
def served(tmp_path):
    yield from _serve(tmp_path)


@pytest.fixture
def served_as_012(tmp_path):
    """Some clients insist on exactly this version."""
    yield from _serve(tmp_path, 'reported_version = "0.1.2"\n')
