"""Why a startup YAML is refused."""

from __future__ import annotations


class StartupRefused(Exception):  # noqa: N818 - a refusal is the answer of a judgement, not a malfunction
    """The process must not start with this file. `path` is the dotted path of the key; the sentence never holds a value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the file'}: {reason}")
        self.path = path
        self.reason = reason
