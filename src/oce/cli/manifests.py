"""What `occ apply` reads: documents with a `kind`, turned into requests and compared with what is there. Pure; no requests here.

References are names or ids. A Secret's value is never in a document: `valueFrom` names a file (beside the document) or an environment
variable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oce.client.api import AGENT, CONFIGURATION, NAMESPACE, SECRET, SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oce.client.api import Kind, Resource

_MEMBERS: Final = {
    "Namespace": (NAMESPACE, frozenset({"existingNamespace"})),
    "Secret": (SECRET, frozenset({"valueFrom"})),
    "CredentialSource": (SOURCE, frozenset({"type", "config", "secrets"})),
    "Configuration": (CONFIGURATION, frozenset({"values", "secretBindings"})),
    "Agent": (
        AGENT,
        frozenset(
            {
                "configuration",
                "executionMode",
                "harnessAuth",
                "credentialSources",
                "initialWorkspaceFiles",
            }
        ),
    ),
}
"""Kind to what it is and the members its document may have besides `kind` and `name`, in the order of application."""
_ORDER: Final = [kind for kind, _ in _MEMBERS.values()]


class ManifestError(Exception):
    """A document cannot be used; says which and why, never a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One document: what kind of thing it is, how it is called, and its other members."""

    kind: Kind
    name: str
    members: Resource
    folder: str
    """Folder of the file, for `valueFrom.file`."""

    def text(self, member: str, default: str = "") -> str:
        """Return a member that must be text. Raises ManifestError."""
        value = self.members.get(member, default)
        if not isinstance(value, str):
            raise ManifestError(f"{self.label}: {member} must be text.")
        return value

    def mapping(self, member: str) -> dict[str, Any]:
        """Return a member that must be an object. Raises ManifestError."""
        value = self.members.get(member, {})
        if not isinstance(value, dict):
            raise ManifestError(f"{self.label}: {member} must be an object.")
        return value

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.kind.word} {self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: a JSON Pointer, what is there and what is wanted; None means absent."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.before)} → {_short(self.after)}"


def _short(value: Any) -> str:  # noqa: ANN401 # any JSON value
    text = "(absent)" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"  # noqa: PLR2004 # a terminal's width


def parse(document: Resource, folder: str) -> Manifest:
    """Check a document's kind, name and members. Raises ManifestError."""
    known = _MEMBERS.get(str(document.get("kind")))
    if known is None:
        raise ManifestError(f"kind must be one of {', '.join(_MEMBERS)}.")
    kind, members = known
    name = document.get("name")
    if not isinstance(name, str) or not name:
        article = "an" if kind is AGENT else "a"
        raise ManifestError(f"{article} {kind.word} needs a name.")
    unknown = sorted(set(document) - members - {"kind", "name"})
    if unknown:
        raise ManifestError(f"{kind.word} {name}: unknown members {', '.join(unknown)}.")
    if kind is SECRET and set(document.get("valueFrom") or {}) not in ({"file"}, {"env"}):
        raise ManifestError(f"secret {name}: valueFrom names either a file or an env variable.")
    return Manifest(
        kind=kind,
        name=name,
        members={key: value for key, value in document.items() if key not in {"kind", "name"}},
        folder=folder,
    )


def ordered(manifests: list[Manifest]) -> list[Manifest]:
    """Return the documents in an order in which references exist. Raises ManifestError for two of one name."""
    seen: set[tuple[str, str]] = set()
    for item in manifests:
        key = (item.kind.word, item.name)
        if key in seen:
            raise ManifestError(f"{item.label} is there twice.")
        seen.add(key)
    return sorted(manifests, key=lambda item: _ORDER.index(item.kind))


def _sources(manifest: Manifest) -> list[dict[str, str]]:
    found = manifest.members.get("credentialSources", [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ManifestError(f"{manifest.label}: credentialSources is a list of names.")
    return [{"sourceId": item} for item in found]


def _auth(manifest: Manifest, namespace: str) -> dict[str, Any] | None:
    if manifest.members.get("harnessAuth") is None:
        return None
    auth = manifest.mapping("harnessAuth")
    method, source = auth.get("method"), auth.get("source")
    if method == "credential_source":
        return {"method": method, "sourceId": source}
    if source is None:
        return {"method": method}
    return {
        "method": method,
        "source": {"kind": "secret", "namespaceId": namespace, "id": source},
    }


def _secret_refs(fields: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {
        field: {"kind": "secret", "namespaceId": namespace, "id": secret}
        for field, secret in fields.items()
    }


def _initial_files(manifest: Manifest) -> dict[str, str]:
    found = manifest.mapping("initialWorkspaceFiles")
    if not all(isinstance(text, str) for text in found.values()):
        raise ManifestError(f"{manifest.label}: initialWorkspaceFiles maps file names to text.")
    return found


def references(manifest: Manifest) -> list[str]:
    """Return the labels of what a document names, as far as they are names. Raises ManifestError."""
    found: list[tuple[Kind, object]] = []
    if manifest.kind is SOURCE:
        found += [(SECRET, name) for name in manifest.mapping("secrets").values()]
    elif manifest.kind is CONFIGURATION:
        found += [(SECRET, name) for name in manifest.mapping("secretBindings").values()]
    elif manifest.kind is AGENT:
        found.append((CONFIGURATION, manifest.text("configuration", manifest.name)))
        found += [(SOURCE, item["sourceId"]) for item in _sources(manifest)]
        auth = manifest.mapping("harnessAuth") if manifest.members.get("harnessAuth") else {}
        by_source = auth.get("method") == "credential_source"
        found.append((SOURCE if by_source else SECRET, auth.get("source")))
    return [f"{kind.word} {name}" for kind, name in found if name]


def request(manifest: Manifest, namespace: str) -> Resource:
    """Return the request that creates this resource, without a Secret's value."""
    body: Resource = {"name": manifest.name}
    if manifest.kind is NAMESPACE:
        if existing := manifest.text("existingNamespace"):
            body["existingNamespace"] = existing
    elif manifest.kind is SOURCE:
        body["type"] = manifest.text("type", "openai")
        body["config"] = manifest.mapping("config")
        body["secrets"] = _secret_refs(manifest.mapping("secrets"), namespace)
    elif manifest.kind is CONFIGURATION:
        body["kind"] = "agent"
        body["values"] = manifest.mapping("values")
        body["secretBindings"] = {
            name: {"source": reference}
            for name, reference in _secret_refs(
                manifest.mapping("secretBindings"), namespace
            ).items()
        }
    elif manifest.kind is AGENT:
        body["configurationId"] = manifest.text("configuration", manifest.name)
        body["executionMode"] = manifest.text("executionMode", "dedicated")
        body["harnessAuth"] = _auth(manifest, namespace)
        body["credentialSources"] = _sources(manifest)
        if files := _initial_files(manifest):
            body["initialWorkspaceFiles"] = files
    return body


_COMPARED: Final = {
    NAMESPACE.word: ("existingNamespace",),
    SECRET.word: (),
    SOURCE.word: ("type", "config", "secrets"),
    CONFIGURATION.word: ("values", "secretBindings"),
    AGENT.word: ("configurationId", "executionMode", "harnessAuth", "credentialSources"),
}
MUTABLE: Final = {
    SOURCE.word: ("secrets",),
    CONFIGURATION.word: ("values", "secretBindings"),
    AGENT.word: ("configurationId", "executionMode", "harnessAuth", "credentialSources"),
}
"""Members of a kind that an update may carry."""


def changes(
    manifest: Manifest, wanted: Resource, there: Resource, identify: Callable[[Kind, str], str]
) -> list[Change]:
    """Return how what is wanted differs from what is there; `identify` turns a name into an id (or leaves it)."""
    found: list[Change] = []
    for member in _COMPARED[manifest.kind.word]:
        before = _normal(member, there.get(member), identify)
        after = _normal(member, wanted.get(member), identify)
        found.extend(_differences(f"/{member}", before, after))
    return found


def _normal(member: str, value: Any, identify: Callable[[Kind, str], str]) -> Any:  # noqa: ANN401 # a JSON value
    """Return a member in a form that two spellings of one reference share."""
    if member == "configurationId":
        return identify(CONFIGURATION, value)
    if member == "credentialSources":
        return sorted(identify(SOURCE, item["sourceId"]) for item in value or [])
    if member in {"secrets", "secretBindings"}:
        references = {name: item.get("source", item) for name, item in (value or {}).items()}
        return {name: identify(SECRET, item["id"]) for name, item in references.items()}
    if member == "harnessAuth" and value is not None:
        return _normal_auth(value, identify)
    return value


def _normal_auth(value: dict[str, Any], identify: Callable[[Kind, str], str]) -> dict[str, Any]:
    if "sourceId" in value:
        return {**value, "sourceId": identify(SOURCE, value["sourceId"])}
    if "source" in value:
        return {"method": value["method"], "source": identify(SECRET, value["source"]["id"])}
    return value


def _differences(path: str, before: Any, after: Any) -> Iterator[Change]:  # noqa: ANN401 # JSON values
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _differences(f"{path}/{escaped}", before.get(key), after.get(key))
    elif before != after or type(before) is not type(after):
        yield Change(path, before, after)
