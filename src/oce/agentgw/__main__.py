"""Command line: ``python -m oce.agentgw --config FILE``."""

from oce.agentgw.main import main

if __name__ == "__main__":
    main()
