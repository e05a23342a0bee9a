"""Run the benchmarks that are named, or all, one after the other; each cleans up what it started."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import time
import traceback

import structlog

NAMES = ("sandbox", "deploy", "egress", "relay", "worker", "memory", "api")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # So that a run that is stopped takes down what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, failed = time.monotonic(), []
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, load {load}, uid {os.geteuid()}, Python {sys.version.split()[0]}"
    )
    for name in arguments.names or NAMES:
        started = time.monotonic()
        try:
            for table in importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick):
                print(f"\n{table.text()}", flush=True)
        except Exception:  # noqa: BLE001 - one broken benchmark must not hide the others
            traceback.print_exc()
            failed.append(name)
        print(f"\n({name} took {time.monotonic() - started:.0f} s)", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s in all" + (f"; FAILED: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
