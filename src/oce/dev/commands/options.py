"""Options that these commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from oce.dev.state import default_root

STATE_DIR: Final = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    callback=lambda _ctx, _param, value: (value or default_root()).absolute(),
    help="Where everything is kept (default: OCC_STATE_DIR, /var/lib/oce for root, else ~/.local/state/oce).",
)
OUTPUT: Final = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
