"""What Compute hands to a Driver, in memory: namespaced objects and private Secrets, with a cluster's preconditions.

Server-side apply is modelled as far as a Driver can notice it: fields belong to managers, a field of another manager with another value
is a conflict, an apply that changes nothing writes nothing, and every change names the incarnation and version it was decided on.
Tests that pass here are meant to be run again against a real API server.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any, Final

from oce.contracts.refusals import DriverRefusal, OwnershipConflict
from oce.contracts.sandbox import ObjectIdentity, PrivateObject
from oce.domain.failures import Tempo
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oce.contracts.sandbox import PhysicalNamespace

MANAGER: Final = "openclaw-enterprise-sandbox"
_SERVERS_OWN: Final = ("uid", "resourceVersion")
Key = tuple[str, str, str, str]
"""Physical namespace, apiVersion, kind, name."""


class MemoryObjects:
    """`NamespaceObjects` in memory. `interrupt` is called before and after each effect and may raise."""

    def __init__(self, interrupt: Callable[[str], None] = lambda _: None) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.managers: dict[Key, dict[str, str]] = {}
        self.calls: list[tuple[str, str, str]] = []
        """(verb, kind, name) of every change asked for, in order."""
        self.writes = 0
        """Changes that changed something."""
        self.interrupt = interrupt
        self._numbers = itertools.count(1)

    def put(
        self, namespace: str, manifest: Mapping[str, Any], *, manager: str = "somebody"
    ) -> dict[str, Any]:
        """Make an object as another manager would, and return it as stored."""
        key = (
            namespace,
            manifest["apiVersion"],
            manifest["kind"],
            manifest["metadata"]["name"],
        )
        stored = copy.deepcopy(dict(manifest))
        self._stamp(stored, uid=f"uid-{next(self._numbers)}")
        self.objects[key] = stored
        self.managers[key] = {path: manager for path, _ in _fields(manifest)}
        return stored

    async def read(
        self, namespace: PhysicalNamespace, api_version: str, kind: str, name: str
    ) -> Mapping[str, Any] | None:
        """Return a copy of the object or None."""
        found = self.objects.get(_key(namespace, api_version, kind, name))
        return copy.deepcopy(found)

    async def apply(
        self,
        namespace: PhysicalNamespace,
        manifest: Mapping[str, Any],
        seen: ObjectIdentity | None,
    ) -> None:
        """Apply without force. Raises OwnershipConflict, DriverRefusal."""
        key = _of(namespace, manifest)
        self._begin("apply", key, seen)
        stored = copy.deepcopy(self.objects.get(key, {}))
        owners = dict(self.managers.get(key, {}))
        before = copy.deepcopy(stored)
        for path, value in _fields(manifest):
            current = _get(stored, path)
            if owners.get(path, MANAGER) != MANAGER and current != value:
                raise OwnershipConflict(key[2], path.replace("\0", "."))
            owners[path] = MANAGER
            _set(stored, path, value)
        self.managers[key] = owners
        if stored != before:
            uid = str(stored["metadata"].get("uid") or f"uid-{next(self._numbers)}")
            self._stamp(stored, uid=uid)
            self.objects[key] = stored
            self.writes += 1
        self.interrupt(f"after apply {key[2]}")

    async def delete(
        self, namespace: PhysicalNamespace, manifest: Mapping[str, Any], seen: ObjectIdentity
    ) -> None:
        """Delete exactly what was seen. Raises DriverRefusal."""
        key = _of(namespace, manifest)
        if key in self.objects:
            self._begin("delete", key, seen)
            del self.objects[key], self.managers[key]
            self.writes += 1
            self.interrupt(f"after delete {key[2]}")

    def _begin(self, verb: str, key: Key, seen: ObjectIdentity | None) -> None:
        self.calls.append((verb, key[2], key[3]))
        self.interrupt(f"before {verb} {key[2]}")
        found = self.objects.get(key)
        if _identity(found) != seen:
            raise DriverRefusal(
                "RECONCILIATION_PENDING", Tempo.RETRY, f"the {key[2]} changed since it was read"
            )

    def _stamp(self, stored: dict[str, Any], *, uid: str) -> None:
        stored["metadata"]["uid"] = uid
        stored["metadata"]["resourceVersion"] = str(next(self._numbers))


class MemoryPrivateObjects:
    """`PrivateObjects` in memory: (name, key) to labels and text."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], tuple[dict[str, str], str]] = {}
        self.reads: list[str] = []

    def stage(self, name: str, key: str, labels: Mapping[str, str], text: str) -> None:
        """Stage one object, as Compute does."""
        self.held[name, key] = (dict(labels), text)

    async def read(self, namespace: PhysicalNamespace, name: str, key: str) -> PrivateObject | None:  # noqa: ARG002 # one Namespace
        """Return one key of a Secret, or None."""
        self.reads.append(name)
        found = self.held.get((name, key))
        return None if found is None else PrivateObject(labels=found[0], value=SecretText(found[1]))


def _of(namespace: PhysicalNamespace, manifest: Mapping[str, Any]) -> Key:
    name = str(manifest["metadata"]["name"])
    return _key(namespace, manifest["apiVersion"], manifest["kind"], name)


def _key(namespace: PhysicalNamespace, api_version: str, kind: str, name: str) -> Key:
    return (namespace.name, api_version, kind, name)


def _identity(found: Mapping[str, Any] | None) -> ObjectIdentity | None:
    if found is None:
        return None
    metadata = found["metadata"]
    return ObjectIdentity(uid=metadata["uid"], resource_version=metadata["resourceVersion"])


def _fields(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a manifest with its path; lists are one field, the server's own metadata none."""
    for key, value in node.items():
        path = f"{prefix}\0{key}" if prefix else key
        if isinstance(value, dict) and value:
            yield from _fields(value, path)
        elif key not in _SERVERS_OWN:
            yield path, value


def _get(node: Mapping[str, Any], path: str) -> object:
    for key in path.split("\0"):
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node


def _set(node: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split("\0")
    for key in parents:
        node = node.setdefault(key, {})
    node[last] = copy.deepcopy(value)
