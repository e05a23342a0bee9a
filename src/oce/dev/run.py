"""Load a program now, run it later: `python -m oce.dev.run MODULE [ARGUMENT …]`.

Loading Python modules is most of what starting our programs costs. A machine starts every program's process at once, so that they load
beside PostgreSQL's own start, and lets each one begin when what it needs is there: one byte on standard input. End of input without that byte
means that whoever started it is gone, and then nothing is run.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Final

# httpx loads rich, click and pygments for a command line of its own, which no program of ours runs; without that module it does without.
_NEVER_USED: Final = "httpx._main"


def main() -> None:
    """Load the module, wait for the byte, call its `main`."""
    sys.modules[_NEVER_USED] = None  # type: ignore[assignment] # Python's documented way to say "not there"
    gc.disable()  # what loads now stays; looking for garbage in it costs a tenth of the time
    module = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    if not os.read(0, 1):
        sys.exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.argv = sys.argv[1:]
    sys.exit(module.main())


if __name__ == "__main__":
    main()
