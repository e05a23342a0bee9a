"""Times as people write them: RFC 3339, or an age such as `10m`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str) -> datetime:
    """Return the moment a text means. Raises click.BadParameter."""
    age = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if age:
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("a time is RFC 3339, or an age such as 10m") from None
    return found if found.tzinfo else found.astimezone()
