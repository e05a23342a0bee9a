"""The single-threaded process that forks keepers.

A threaded process may not make a user namespace, and a keeper that is a fork of a warm process needs no interpreter start. The
spawner dies with the gateway (end of file on its socket); keepers do not.

Request: one packet with the keeper's configuration as a memory file, the gateway's end of the keeper's channel, and the
descriptors of the control groups to join. There is no answer: the keeper itself speaks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys

from oce.sandboxd.confine import keeper, wire


def _keep(descriptors: list[int]) -> None:
    config, channel, *groups = descriptors
    host = socket.socket(fileno=channel)
    try:
        keeper.Keeper(json.loads(wire.read_memory_file(config)), host, groups).run()
    except BaseException as error:  # noqa: BLE001 - a keeper that fails in any way must say so and take all with it
        failure = {"ev": "failed", "stage": "keeper", "error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            host.send(json.dumps(failure).encode())


def main() -> None:
    """Serve the socket whose descriptor number is the last argument."""
    requests = socket.socket(fileno=int(sys.argv[-1]))
    requests.set_inheritable(False)
    # Keepers are nobody's children to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors = wire.receive(requests)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _keep(descriptors)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
