"""mitmproxy in a virtual environment of its own below `.cache/bench`, installed by pip when the benchmark first asks for it.

Not a dependency of the project: only a peer. It runs as a reverse proxy that terminates TLS with its own CA, sets the authorization header
with its built-in `modify_headers`, streams answers (two lines of script: no option of it streams chunked ones), logs nothing and does not
verify the upstream: its cheapest configuration that does the same job.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gateway import free_port, listens
from benchmarks.measure import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOME = Path(__file__).resolve().parents[1] / ".cache" / "bench" / "mitmproxy"
_REQUIREMENT = "mitmproxy>=11,<12"
"""The last release line for Python 3.11."""
_INSTALL_SECONDS = 240
_STREAM = "def responseheaders(flow):\n    flow.response.stream = True\n"


def program() -> Path | None:
    """Return `mitmdump`, installing it on first use; None when it cannot be installed."""
    found = _HOME / "bin" / "mitmdump"
    if found.exists():
        return found
    print("installing mitmproxy beside the project, once", file=sys.stderr, flush=True)
    venv.create(_HOME, with_pip=True)
    pip = [
        str(_HOME / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*pip, _REQUIREMENT], capture_output=True, timeout=_INSTALL_SECONDS, check=False
        )
    return found if found.exists() else None


@contextlib.contextmanager
def serving(mitmdump: Path, root: Path, upstream: int, key: str) -> Iterator[tuple[int, int]]:
    """Yield (port, pid)."""
    port = free_port()
    script = root / "stream.py"
    script.write_text(_STREAM)
    options = [
        "http2=false",
        "ssl_insecure=true",
        "flow_detail=0",
        "keep_host_header=true",
        f"confdir={root / 'mitm'}",
        "termlog_verbosity=error",
    ]
    command = [
        *(str(mitmdump), "-q", "--mode", f"reverse:https://127.0.0.1:{upstream}"),
        *("--listen-host", "127.0.0.1", "--listen-port", str(port)),
        *("--scripts", str(script)),
        *("--modify-headers", f"|~q|authorization|{key}"),
        *(part for option in options for part in ("--set", option)),
    ]
    with (root / "mitm.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: listens(port) or process.poll() is not None, 30, 0.02)
        if process.poll() is not None:
            raise RuntimeError(f"mitmdump ended: {(root / 'mitm.log').read_text()[-500:]}")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)
