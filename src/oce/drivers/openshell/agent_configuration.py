"""What the Driver contributes to an Agent's configuration before the revision is frozen. Pure; the input is never changed.

For Codex the inner sandbox is switched off and its reviewer pinned: the Sandbox is the outer boundary, and two nested ones fail
(mission document 002). All other keys stay as they are; the selected Harness never changes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import ConfigurationRefused, Detail, RevisionUnsupported

if TYPE_CHECKING:
    from oce.domain.resources import Harness, Json

_APP_SERVER: Final = ("plugins", "entries", "codex", "config", "appServer")


def configure_agent(configuration: Json, harness: Harness) -> Json:
    """Return the effective configuration. Raises ConfigurationRefused, RevisionUnsupported."""
    if harness.mode != "dedicated" or harness.id != "codex":
        raise RevisionUnsupported(
            "SANDBOX_HARNESS_UNSUPPORTED", "not supported: only dedicated Codex"
        )
    effective = copy.deepcopy(configuration)
    if not isinstance(effective, dict):
        raise ConfigurationRefused(Detail("", "INVALID_TYPE", "an object"))
    node, path = effective, ""
    for key in _APP_SERVER:
        path = f"{path}/{key}"
        inner = node.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigurationRefused(Detail(path, "INVALID_TYPE", "an object"))
        if key == "codex":
            inner["enabled"] = True
        node = inner
    node["sandbox"] = "danger-full-access"
    node["approvalsReviewer"] = "user"
    return effective
