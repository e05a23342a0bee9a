"""`occ demo`, as its owner and as an ordinary user: the last line is one JSON object, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from person import OCC, new_root

import oce
from oce.dev.layout import readable_by_everyone

pytestmark = [pytest.mark.sandbox, pytest.mark.codex]

STRANGER = 2001
"""A uid without an account on most machines, like that of a container started with `--user`."""


def _run(occ: Path, folder: Path, user: int | None) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(occ), "demo"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(folder),
        },
        stdin=subprocess.DEVNULL,
        **({} if user is None else {"user": user, "group": user, "extra_groups": []}),
    )
    return done.returncode, done.stdout, done.stderr


def _judge(code: int, out: str, err: str) -> None:
    last = json.loads(out.splitlines()[-1])
    if code != 0:
        pytest.fail(f"{out}\n{err}")
    assert last.keys() == {
        "ok",
        "turns",
        "deploy_ms",
        "first_turn_ms",
        "key_in_sandbox",
        "denied",
        "left_over",
    }
    assert last["ok"] is True
    assert last["turns"] == 2
    assert last["key_in_sandbox"] is False
    assert "example.com" in last["denied"]
    assert last["left_over"] == 0


def _installation(root: Path) -> Path:
    """Return an `occ` that other users can run: a virtual environment over this one's packages and sources."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = (Path(sys.executable), Path(f"/usr/bin/python{version}"))
    base = next((one for one in pythons if one.exists() and readable_by_everyone(one)), None)
    if base is None:
        pytest.skip(f"needs a Python {version} that other users can run; {sys.executable} is not")
    places = (Path(oce.__file__).parents[1], Path(click.__file__).parents[1])
    for place in places:
        if not readable_by_everyone(place):
            pytest.skip(f"needs packages that other users can read; {place} are not")
    venv = root / "venv"
    subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True)
    (venv / "lib" / f"python{version}" / "site-packages" / "those.pth").write_text(
        "".join(f"{place}\n" for place in places)
    )
    occ = venv / "bin" / "occ"
    occ.write_text(f"#!{venv}/bin/python\nfrom oce.cli.main import main\nmain()\n")
    occ.chmod(0o755)
    return occ


def test_the_demonstration():
    root = new_root("oce-d-")
    try:
        _judge(*_run(OCC, root, None))
        assert list(root.glob("oce-demo-*")) == []
    finally:
        shutil.rmtree(root)


def test_the_demonstration_as_an_ordinary_user():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user; the other test was an ordinary user's")
    root = new_root("oce-d-")
    try:
        occ = _installation(root)
        desk = root / "desk"
        desk.mkdir()
        os.chown(desk, STRANGER, STRANGER)
        _judge(*_run(occ, desk, STRANGER))
        assert list(desk.glob("oce-demo-*")) == []
    finally:
        shutil.rmtree(root)
