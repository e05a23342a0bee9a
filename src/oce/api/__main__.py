"""`python -m oce.api`."""

import sys

from oce.api.main import main

sys.exit(main())
