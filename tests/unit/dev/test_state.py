"""A state directory's lock, ports and refusals (failure case BR-39: a dead process's lock blocks nobody)."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from oce.dev.state import (
    SYSTEM_ROOT,
    Lock,
    StateDirectory,
    StateError,
    free_ports,
    refuse_taken_ports,
)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    short = StateDirectory(tmp_path / "s")
    short.prepare()
    return short


@pytest.mark.parametrize("planted", ["", "999999", "[999999, 1]", "not json", "[1]", "{}"])
def test_a_dead_holder_blocks_nobody_whatever_it_wrote(state: StateDirectory, planted: str):
    (state.run / "lock").write_text(planted)
    assert Lock(state).holder() is None
    with Lock(state):
        holder = Lock(state).holder()
        assert holder is not None
        assert holder.pid == os.getpid()
    assert Lock(state).holder() is None


def test_a_refusal_names_the_holder_since_when_and_the_remedy(state: StateDirectory):
    with Lock(state), pytest.raises(StateError) as refused, Lock(state):
        pass
    assert f"process {os.getpid()} since 2" in str(refused.value)
    assert "occ down" in str(refused.value)


def test_a_holder_that_has_not_said_its_name_is_not_guessed(state: StateDirectory):
    descriptor = os.open(state.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        holder = Lock(state).holder()
        assert holder is not None
        assert holder.pid == 0
        with pytest.raises(StateError, match="not said its name"), Lock(state):
            pass
    finally:
        os.close(descriptor)


def test_ports_are_kept_and_never_meet_those_of_another_directory(tmp_path: Path):
    bases = set()
    for number in range(20):
        one = StateDirectory(tmp_path / str(number))
        one.prepare()
        ports = one.ports()
        assert one.ports() == ports
        assert ports.sandboxd >= 20_000
        bases.add(ports.sandboxd)
    assert len(bases) > 17, "a path decides; two of few meet rarely"
    assert one.ports(4000).api == 4001
    assert one.ports().api == 4001


def test_the_system_directory_has_fixed_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("oce.dev.state.SYSTEM_ROOT", tmp_path)
    assert StateDirectory(tmp_path).ports().sandboxd == 17_670
    assert SYSTEM_ROOT.name == "oce"


def test_a_torn_ports_file_says_how_to_go_on(state: StateDirectory):
    state.ports_file.write_text('{"ports": {"api"')
    with pytest.raises(StateError, match="--port-base"):
        state.ports()
    assert state.ports(4000) == state.ports()


def test_a_taken_port_is_named_with_its_use(state: StateDirectory):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        ports = state.ports(stranger.getsockname()[1] - 1)
        with pytest.raises(StateError, match=rf"port {ports.api} \(for api\) is in use"):
            refuse_taken_ports(ports, ("api",))


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(tmp_path: Path):
    root = tmp_path / ("x" * 120)
    with pytest.raises(StateError, match="choose a shorter one"):
        StateDirectory(root).prepare()
    assert not root.exists()


def test_modes_keep_other_users_out(state: StateDirectory):
    open_to_others = {
        path.name for path in state.root.iterdir() if path.stat().st_mode & 0o007 and path.is_dir()
    }
    assert open_to_others == {"sandboxd", "agents", "runtime"}
    state.ports()
    assert state.ports_file.stat().st_mode & 0o777 == 0o600
    assert json.loads(state.ports_file.read_text())["version"] == 1


def test_throw_away_ports_are_free_and_outside_the_range_of_outgoing_connections(tmp_path):
    first = free_ports(tmp_path)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", first.gateway))
        stranger.listen()
        second = free_ports(tmp_path)
    taken = {first.gateway}
    assert taken.isdisjoint(asdict(second).values())
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(asdict(second).values()) < lowest
