"""Is this Sandbox exactly the one this revision would make? Pure.

Ownership and spec are compared exactly; the answer names the field that differs, so that a person can see what is in the way.
What the gateway sets itself (the attachment epoch, its own annotations) is not compared (reference/sandbox-openshell.md §8.7).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oce.contracts.refusals import OwnershipConflict
from oce.drivers.openshell import marks
from oce.drivers.openshell.failures import protocol
from oce.drivers.openshell.wire import canonical_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.contracts.sandbox import SandboxResourceRef
    from oce.domain.resources import AgentRevision
    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.records import ProviderRecord, SandboxRecord, ServiceRecord
    from oce.drivers.openshell.rendering import Rendering

_GATEWAY_FIELDS: Final = ("provider_attachment_epoch",)
SUPERVISOR_LABEL: Final = "openshell.ai/sandbox-id"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
PASSTHROUGH: Final = ("SERVICE_AUTHORIZATION_MODE_BEARER_PASSTHROUGH", 2)
ALWAYS: Final = ("SANDBOX_RESTART_POLICY_ALWAYS", 3)


def ownership_difference(
    workspace: str, name: str, annotations: Mapping[str, str], found: SandboxRecord
) -> str | None:
    """Return where a Sandbox's identity differs from ours, or None."""
    if found.meta.name != name:
        return "name"
    if found.meta.workspace not in {"", workspace}:
        return "workspace"
    key = marks.difference(annotations, found.meta.annotations)
    return None if key is None else f"annotations.{key}"


def sandbox_difference(wanted: Rendering, found: SandboxRecord) -> str | None:
    """Return the first field where a Sandbox differs from its rendering, or None when it is exactly ours."""
    owner = ownership_difference(wanted.workspace, wanted.sandbox, wanted.annotations, found)
    if owner is not None:
        return owner
    key = marks.difference(wanted.labels, found.meta.labels)
    if key is not None:
        return f"labels.{key}"
    echoed = {name: value for name, value in found.spec.items() if name not in _GATEWAY_FIELDS}
    expected = canonical_spec(wanted.spec)
    if marks.POLICY_OPERATION in found.meta.annotations:
        expected, echoed = _without_network(expected), _without_network(echoed)
    return first_difference(expected, echoed, "spec")


def _without_network(spec: Document) -> Document:
    """Leave out what a live change of ours may have replaced; `observe_network_policy` judges that part."""
    policy = dict(spec.get("policy", {}))
    policy.pop("network_policies", None)
    return {**spec, "policy": policy}


def service_difference(wanted: Rendering, found: ServiceRecord) -> str | None:
    """Return where the exposure differs from the one we asked for, or None."""
    if found.sandbox != wanted.sandbox:
        return "sandbox"
    if found.name:
        return "name"
    if found.target_port != wanted.port:
        return "target_port"
    return None if found.authorization_mode in PASSTHROUGH else "authorization_mode"


def provider_difference(
    name: str, profile: str, labels: Mapping[str, str], found: ProviderRecord
) -> str | None:
    """Return where a provider's identity differs, or None. Its config is a separate question."""
    if found.meta.name != name:
        return "name"
    if found.type != profile:
        return "type"
    key = marks.difference(labels, found.meta.labels)
    return None if key is None else f"labels.{key}"


def first_difference(wanted: object, found: object, path: str) -> str | None:
    """Return the path of the first difference of two documents in key order, or None. Never a value."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        left: Document = wanted
        right: Document = found
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                return f"{path}.{key}"
            inner = first_difference(left[key], right[key], f"{path}.{key}")
            if inner is not None:
                return inner
        return None
    if isinstance(wanted, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip(wanted, found, strict=False)):
            inner = first_difference(one, other, f"{path}[{index}]")
            if inner is not None:
                return inner
        return None if len(wanted) == len(found) else f"{path}[{min(len(wanted), len(found))}]"
    return None if wanted == found else path


def supervisor_labels(
    ref: SandboxResourceRef, revision: AgentRevision, found: SandboxRecord
) -> dict[str, str]:
    """Return the exact label of a Sandbox's supervisor Pod. Raises OwnershipConflict, GatewayFailure."""
    wanted = marks.sandbox_annotations(revision)
    field = ownership_difference(ref.namespace_name, ref.resource_name, wanted, found)
    if field is not None:
        raise OwnershipConflict("Sandbox", field)
    if not _LABEL_VALUE.fullmatch(found.meta.id):
        raise protocol("GetSandbox", "an id that is no label value")
    return {SUPERVISOR_LABEL: found.meta.id}
