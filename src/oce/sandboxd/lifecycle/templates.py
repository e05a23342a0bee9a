"""Files of a provider profile: `{{config.KEY}}` in a file's content stands for a value of the provider's config.

Only that form is a template; anything else in double braces is left as it is, because a file may be in a language that uses
them. A key that the provider does not have is an error, not an empty text (reference/openshell-gateway.md b.5).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEMPLATE = re.compile(r"\{\{\s*config\.([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")


class MissingConfigError(Exception):
    """A template names a config key that the provider lacks."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the provider has no config value '{key}'")
        self.key = key


def fill(content: str, config: Mapping[str, str]) -> str:
    """Replace each template once; a value is never read as a template again. Raises MissingConfigError."""

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key not in config:
            raise MissingConfigError(key)
        return config[key]

    return _TEMPLATE.sub(value, content)
