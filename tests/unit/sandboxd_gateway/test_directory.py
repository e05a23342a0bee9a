"""Lock, private files and folders on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oce.sandboxd.lifecycle import folders
from oce.sandboxd.lifecycle.providers import ProviderFile
from oce.sandboxd.state.directory import AlreadyRunningError, Lock, holder_of
from oce.sandboxd.state.keys import ensure_keys


@pytest.mark.parametrize("planted", ["", "{", '{"pid": 1}', '{"pid": 999999999}', "\0\0"])
def test_a_dead_holder_s_file_blocks_nobody(tmp_path, planted):
    path = tmp_path / "lock"
    path.write_text(planted)
    assert holder_of(path) is None
    lock = Lock(path, "127.0.0.1:1")
    assert holder_of(path) == os.getpid()
    with pytest.raises(AlreadyRunningError, match=rf"process {os.getpid()} .*127\.0\.0\.1:1"):
        Lock(path, "127.0.0.1:2")
    lock.release()
    assert holder_of(path) is None


def test_a_killed_holder_s_lock_is_free_at_once(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys,time;from pathlib import Path;from oce.sandboxd.state.directory import Lock;"
        f"lock=Lock(Path({str(path)!r}),'x');print('held',flush=True);time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout.readline() == "held\n"
        assert holder_of(path) == held.pid
        held.kill()
        held.wait()
    Lock(path, "x").release()


def test_keys_are_made_once(tmp_path):
    first = ensure_keys(tmp_path, "openshell.localhost")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ensure_keys(tmp_path, "openshell.localhost")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(first.control_plane_token()) >= 43
    assert not list(tmp_path.glob(".*"))


def test_provider_files_are_exactly_what_is_wanted(tmp_path):
    root = tmp_path / "providers"
    folders.write_files(
        root, [ProviderFile("a/one", b"1", ""), ProviderFile("b/deep/two", b"2", "")]
    )
    inode = (root / "a/one").stat().st_ino
    folders.write_files(root, [ProviderFile("a/one", b"1", ""), ProviderFile("c", b"3", "")])
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*")) == ["a", "a/one", "c"]
    assert (root / "a/one").stat().st_ino == inode
    folders.write_files(root, [ProviderFile("a/one", b"changed", "")])
    assert (root / "a/one").read_bytes() == b"changed"


def test_removal_opens_what_the_workload_closed(tmp_path):
    closed = tmp_path / "sandbox/workspace/closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    (closed.parent / "link").symlink_to("/etc")
    closed.chmod(0)
    folders.remove(tmp_path / "sandbox")
    assert not (tmp_path / "sandbox").exists()
    folders.remove(tmp_path / "sandbox")
