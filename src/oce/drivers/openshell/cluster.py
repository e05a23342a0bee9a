"""The operator objects of a Kubernetes place: labels on the namespace, and the configured objects, with ownership put in.

Compute hands in the cluster (`NamespaceObjects`); this module only renders and orders. An object that names another namespace or
another owner is refused before anything is applied (reference/sandbox-openshell.md §8.3).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from oce.contracts.refusals import NamespaceRefused, OwnershipConflict, RevisionUnsupported
from oce.contracts.sandbox import ObjectIdentity
from oce.drivers.openshell import marks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oce.contracts.sandbox import NamespaceContext, NamespaceObjects, PhysicalNamespace
    from oce.drivers.openshell.documents import Document
    from oce.drivers.openshell.settings import KubernetesPlace

_NAMESPACE_LABEL = "openclaw.dev/namespace"


async def apply_operator_objects(place: KubernetesPlace, context: NamespaceContext) -> None:
    """Label the namespace, then apply workspace objects, then network objects, in list order.

    What has our name is read first: another owner's object is a conflict, and each write names exactly the object that was read.
    """
    objects = _objects(place, context)
    namespace = context.namespace
    manifests = [
        owned(item, namespace) for item in (*place.workspace_resources, *place.network_resources)
    ]
    labels: Document = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace.name, "labels": dict(place.namespace_labels)},
    }
    found = await _read(objects, namespace, labels)
    for key, value in place.namespace_labels.items():
        if _labels(found).get(key, value) != value:
            raise OwnershipConflict("Namespace", f"labels.{key}")
    await objects.apply(namespace, labels, _identity(found))
    for manifest in manifests:
        found = await _read(objects, namespace, manifest)
        if found is not None:
            _require_ours(manifest, found)
        await objects.apply(namespace, manifest, _identity(found))


async def remove_operator_objects(place: KubernetesPlace, context: NamespaceContext) -> None:
    """Delete what `apply_operator_objects` applied, in reverse order; absent is fine, another owner's object is a conflict."""
    objects = _objects(place, context)
    for item in reversed((*place.workspace_resources, *place.network_resources)):
        manifest = owned(item, context.namespace)
        found = await _read(objects, context.namespace, manifest)
        if found is None:
            continue
        _require_ours(manifest, found)
        seen = _identity(found)
        if seen is not None:
            await objects.delete(context.namespace, manifest, seen)


async def _read(
    objects: NamespaceObjects, namespace: PhysicalNamespace, manifest: Document
) -> Mapping[str, Any] | None:
    return await objects.read(
        namespace, manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]
    )


def _identity(found: Mapping[str, Any] | None) -> ObjectIdentity | None:
    if found is None:
        return None
    metadata = found["metadata"]
    return ObjectIdentity(
        uid=str(metadata["uid"]), resource_version=str(metadata["resourceVersion"])
    )


def _labels(found: Mapping[str, Any] | None) -> Mapping[str, str]:
    labels: Mapping[str, str] = {} if found is None else found["metadata"].get("labels", {})
    return labels


def _require_ours(manifest: Document, found: Mapping[str, Any]) -> None:
    wanted = manifest["metadata"]["labels"]
    for key in (marks.MANAGED_BY, _NAMESPACE_LABEL):
        if _labels(found).get(key) != wanted[key]:
            raise OwnershipConflict(str(manifest["kind"]), f"labels.{key}")


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
