"""What the Driver contributes to an Agent's configuration before the revision is frozen. Pure; the input is never changed.

For Codex the inner sandbox is switched off and its reviewer pinned: the Sandbox is the outer boundary, and two nested ones fail
(mission document 002). For native OpenClaw the workspace is pinned to the data mount. All other keys stay as they are; the selected
Harness never changes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.refusals import ConfigurationRefused, Detail, RevisionUnsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oce.domain.resources import Harness, Json

_CODEX: Final = ("plugins", "entries", "codex")
_MAIN: Final = "main"


def configure_agent(configuration: Json, harness: Harness, workspace: str) -> Json:
    """Return the effective configuration; `workspace` is the data mount. Raises ConfigurationRefused, RevisionUnsupported."""
    if harness.mode != "dedicated" or harness.id not in {"codex", "openclaw"}:
        raise RevisionUnsupported(
            "SANDBOX_HARNESS_UNSUPPORTED", "not supported: only dedicated Codex and OpenClaw"
        )
    effective = copy.deepcopy(configuration)
    if not isinstance(effective, dict):
        raise ConfigurationRefused(Detail("", "INVALID_TYPE", "an object"))
    if harness.id == "codex":
        _codex(effective)
    else:
        _native(effective, workspace)
    return effective


def _codex(effective: dict[str, Any]) -> None:
    plugin = _inside(effective, _CODEX)
    plugin["enabled"] = True
    server = _inside(plugin, ("config", "appServer"), "/" + "/".join(_CODEX))
    server["sandbox"] = "danger-full-access"
    server["approvalsReviewer"] = "user"


def _native(effective: dict[str, Any], workspace: str) -> None:
    """Pin the workspace of the defaults, and of an entry called `main` in whatever case; other entries stay as they are."""
    agents = _inside(effective, ("agents",))
    _inside(agents, ("defaults",), "/agents")["workspace"] = workspace
    entries = _inside(agents, ("entries",), "/agents") if "entries" in agents else {}
    for name in [name for name in entries if name.lower() == _MAIN]:
        _inside(entries, (name,), "/agents/entries")["workspace"] = workspace


def _inside(node: dict[str, Any], keys: Sequence[str], path: str = "") -> dict[str, Any]:
    for key in keys:
        path = f"{path}/{key}"
        inner = node.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigurationRefused(Detail(path, "INVALID_TYPE", "an object"))
        node = inner
    return node
