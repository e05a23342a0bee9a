"""Read the startup YAML into plain values, and scan it for what must never be in it.

Duplicate keys, unsafe integers, keys that smuggle prototypes or selectors, and strings that look like credentials are refused
anywhere in the document (reference/control-plane.md §10.1). What the keys *mean* is judged elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from oce.installation.errors import StartupRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SAFE_INTEGER: Final = 2**53 - 1
_FORBIDDEN_KEYS: Final = frozenset(
    {"installationId", "secretRef", "__proto__", "constructor", "prototype"}
)
_CREDENTIAL_KEY: Final = re.compile(
    r"(?i)(^|[_-])(password|passwd|secret|api[_-]?key|token|private[_-]?key|credential)s?$|(password|apiKey|Token|Secret|privateKey)$"
)
_CREDENTIAL_VALUE: Final = re.compile(
    r"(?i:\bbearer\s+\S)|\bsk-[A-Za-z0-9_-]{8}|PRIVATE KEY|\bgh[pousr]_[A-Za-z0-9]{8}|\bgithub_pat_|\b(?:AKIA|ASIA)[A-Z0-9]{12}|\bxox[abpr]-"
)
_PATH_KEYS: Final = ("Path", "path", "File", "file", "mode")
RETIRED_ENVIRONMENT: Final = (
    "OCC_INSTALLATION_ID",
    "OCC_COMPUTE_DRIVER",
    "OCC_KUBERNETES_CONFIG_PATH",
    "OCC_NATIVE_IAM_DRIVER_ID",
)


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without duplicate keys, merge keys or non-text keys."""


def _construct_mapping(
    loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False
) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise StartupRefused("", f"line {key_node.start_mark.line + 1}: a key is not text")
        if key in mapping:
            raise StartupRefused(
                key, f"line {key_node.start_mark.line + 1}: the key is given twice"
            )
        mapping[key] = loader.construct_object(value_node, deep=True)
    del deep
    return mapping


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def read_document(path: Path) -> dict[str, Any]:
    """Return the document. Raises StartupRefused for anything that is not one strict YAML mapping."""
    if not path.is_absolute():
        raise StartupRefused("", "the path of the startup YAML must be absolute")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupRefused("", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartupRefused("", "is not UTF-8") from error
    return parse_document(text)


def parse_document(text: str) -> dict[str, Any]:
    """Return the document of a text, scanned. Raises StartupRefused."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise StartupRefused("", f"{where}is not valid YAML") from error
    if not isinstance(document, dict):
        raise StartupRefused("", "must be a mapping")
    for where, key, value in _walk(document, ""):
        _scan(where, key, value)
    return document


def refuse_retired_environment(environment: Mapping[str, str]) -> None:
    """Refuse variables that once selected Drivers: the file is the only way."""
    for name in RETIRED_ENVIRONMENT:
        if name in environment:
            raise StartupRefused(
                "", f"the environment variable {name} is retired; the startup YAML selects Drivers"
            )


def _walk(value: Any, path: str, key: str = "") -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401 - any YAML value
    yield path, key, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(item, f"{path}.{name}" if path else name, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", key)


def _scan(path: str, key: str, value: Any) -> None:  # noqa: ANN401 - any YAML value
    if key in _FORBIDDEN_KEYS:
        raise StartupRefused(path, "this key is not allowed anywhere")
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        return
    if isinstance(value, int):
        if abs(value) > SAFE_INTEGER:
            raise StartupRefused(path, "the integer is outside the safe range")
        return
    if not isinstance(value, (str, float)):
        raise StartupRefused(path, "the value is of a type that this file may not hold")
    if isinstance(value, str):
        if _CREDENTIAL_VALUE.search(value):
            raise StartupRefused(
                path,
                "looks like a credential; credentials are named by files or Secrets, never written here",
            )
        if _CREDENTIAL_KEY.search(key) and not key.endswith(_PATH_KEYS):
            raise StartupRefused(
                path, "a credential may not be written here; name a file that holds it"
            )
