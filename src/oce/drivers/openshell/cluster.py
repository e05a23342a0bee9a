"""The operator objects of a Kubernetes place: labels on the namespace, and the configured objects, with ownership put in.

Compute hands in the cluster (`NamespaceObjects`); this module only renders and orders. An object that names another namespace or
another owner is refused before anything is applied (reference/sandbox-openshell.md §8.3).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from oce.contracts.refusals import NamespaceRefused, OwnershipConflict, RevisionUnsupported
from oce.drivers.openshell import marks

if TYPE_CHECKING:
    from oce.contracts.sandbox import NamespaceContext, NamespaceObjects, PhysicalNamespace
    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.settings import KubernetesPlace

_NAMESPACE_LABEL = "openclaw.dev/namespace"


async def apply_operator_objects(place: KubernetesPlace, context: NamespaceContext) -> None:
    """Label the namespace, then apply workspace objects, then network objects, in list order."""
    objects = _objects(place, context)
    namespace = context.namespace
    manifests = [
        owned(item, namespace) for item in (*place.workspace_resources, *place.network_resources)
    ]
    found = await objects.read(namespace, "Namespace", namespace.name)
    labels = {} if found is None else found.get("metadata", {}).get("labels", {})
    for key, value in place.namespace_labels.items():
        if labels.get(key, value) != value:
            raise OwnershipConflict("Namespace", f"labels.{key}")
    await objects.apply(
        namespace,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace.name, "labels": dict(place.namespace_labels)},
        },
    )
    for manifest in manifests:
        await objects.apply(namespace, manifest)


async def remove_operator_objects(place: KubernetesPlace, context: NamespaceContext) -> None:
    """Delete what `apply_operator_objects` applied, in reverse order; absent is fine."""
    objects = _objects(place, context)
    for item in reversed((*place.workspace_resources, *place.network_resources)):
        await objects.delete(context.namespace, owned(item, context.namespace))


def _objects(place: KubernetesPlace, context: NamespaceContext) -> NamespaceObjects:
    if place.managed:
        raise RevisionUnsupported("SANDBOX_MODE_UNSUPPORTED")
    if context.objects is None:
        raise NamespaceRefused("no cluster")
    return context.objects


def owned(resource: Document, namespace: PhysicalNamespace) -> Document:
    """Return a manifest with namespace and ownership put in. Raises OwnershipConflict. Pure."""
    manifest = copy.deepcopy(resource)
    metadata = manifest["metadata"]
    labels, annotations = metadata.setdefault("labels", {}), metadata.setdefault("annotations", {})
    for field, found, own in (
        ("namespace", metadata.get("namespace"), namespace.name),
        (_NAMESPACE_LABEL, labels.get(_NAMESPACE_LABEL), namespace.id),
        (marks.NAMESPACE_ID, annotations.get(marks.NAMESPACE_ID), namespace.id),
    ):
        if found not in {None, own}:
            raise OwnershipConflict(str(manifest["kind"]), field)
    metadata["namespace"] = namespace.name
    labels[marks.MANAGED_BY] = marks.MANAGER
    labels[_NAMESPACE_LABEL] = namespace.id
    annotations[marks.NAMESPACE_ID] = namespace.id
    return manifest
