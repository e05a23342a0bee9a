"""The control plane's API as Python calls: collections of resources, and the few operations that are more than that.

A resource is the JSON object of its API page (docs/reference/api), passed on as a dictionary: the client adds no second model that could
disagree with the server's. Names are resolved here, so that a caller may write `prod` where the API wants `ns_…`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from oce.client import events
from oce.client.context import read_key
from oce.client.errors import AmbiguousName, ContextError
from oce.client.transport import Transport
from oce.domain.secret import SecretText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oce.client.context import Context
    from oce.client.events import Event

Resource = dict[str, Any]
_PAGE: Final = "200"
_STREAM_SILENCE: Final = 60.0
"""Heartbeats come every 10 s; six missed ones mean that nobody is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of resource: its word, its path under `/` or under its Namespace, and how its members are named.

    `by_name`: the API takes a name wherever it takes an id. Else a text that does not begin with `prefix` is looked up by name here.
    `replayable`: its creation honours `Idempotency-Key`, so a creation whose answer was lost may be sent again.
    """

    word: str
    path: str
    prefix: str
    namespaced: bool = True
    by_name: bool = True
    replayable: bool = True


NAMESPACE: Final = Kind(word="namespace", path="/namespaces", prefix="ns_", namespaced=False)
SECRET: Final = Kind(word="secret", path="/secrets", prefix="sec_")
SOURCE: Final = Kind(word="credential-source", path="/credential-sources", prefix="cs_")
CONFIGURATION: Final = Kind(word="configuration", path="/configurations", prefix="cfg_")
AGENT: Final = Kind(word="agent", path="/agents", prefix="agt_")
ROLE: Final = Kind(word="role", path="/iam/roles", prefix="role_", by_name=False, replayable=False)
BINDING: Final = Kind(
    word="binding", path="/iam/access-bindings", prefix="binding_", by_name=False, replayable=False
)
PRINCIPAL: Final = Kind(
    word="service-principal",
    path="/iam/service-principals",
    prefix="spn_",
    by_name=False,
    replayable=False,
)
KEY: Final = Kind(
    word="key",
    path="/api/auth/service-keys",
    prefix="key_",
    namespaced=False,
    by_name=False,
    replayable=False,
)


def _dry(dry_run: bool) -> dict[str, str | None]:
    return {"dryRun": "true" if dry_run else None}


def _if_match(generation: int | None) -> dict[str, str]:
    return {} if generation is None else {"if-match": f'"{generation}"'}


class Client:
    """Calls under one context. Every method raises the errors of `oce.client.errors`."""

    def __init__(self, context: Context, *, timeout: float = 30.0) -> None:
        self.context = context
        self._transport = Transport(
            context.url,
            SecretText(read_key(context.key_file)),
            ca_file=context.ca_file,
            timeout=timeout,
        )

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def namespace(self) -> str:
        """Return the context's Namespace as it was given, by name or id. Raises ContextError when none is chosen."""
        if not self.context.namespace:
            raise ContextError("No Namespace is chosen.", "Give --namespace, or set OCC_NAMESPACE.")
        return self.context.namespace

    def base(self, kind: Kind, *, installation: bool = False) -> str:
        """Return the path of a collection; `installation` for the Installation-wide one of a namespaced kind."""
        if not kind.namespaced or installation:
            return kind.path
        return (
            f"/namespaces/{quote(self.reference(NAMESPACE, self.namespace()), safe='')}{kind.path}"
        )

    def pages(
        self,
        kind: Kind,
        *,
        installation: bool = False,
        limit: int | None = None,
        **filters: str | None,
    ) -> Iterator[Resource]:
        """Yield every resource of a collection (at most `limit`), fetching pages as they are needed."""
        yield from self.walk(self.base(kind, installation=installation), limit, **filters)

    def walk(
        self, path: str, limit: int | None = None, **filters: str | None
    ) -> Iterator[Resource]:
        """Yield the elements of any paged list."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else str(min(left, int(_PAGE)))
            answer = self._transport.request(
                "GET", path, query={"limit": size, "cursor": cursor, **filters}
            )
            yield from answer.document["data"]
            cursor = answer.document["meta"].get("nextCursor")
            if cursor is None:
                return
            left = None if left is None else left - int(size)

    def reference(self, kind: Kind, given: str, *, installation: bool = False) -> str:
        """Return what the API takes for a resource given by name or id. Raises AmbiguousName.

        A name that cannot stand in a path (it holds a slash) and the kinds without names in the API are looked up in the list.
        """
        if given.startswith(kind.prefix):
            return given
        if kind.by_name and "/" not in given and given not in {"", ".", ".."}:
            return given
        found = [
            str(item["id"])
            for item in self.pages(kind, installation=installation)
            if item.get("name") == given
        ]
        if len(found) != 1:
            raise AmbiguousName(kind.word, given, len(found))
        return found[0]

    def path_of(self, kind: Kind, given: str, *, installation: bool = False) -> str:
        """Return the path of one resource."""
        reference = self.reference(kind, given, installation=installation)
        return f"{self.base(kind, installation=installation)}/{quote(reference, safe='')}"

    def get(self, kind: Kind, name_or_id: str, *, installation: bool = False) -> Resource:
        """Read one resource."""
        return self.read(self.path_of(kind, name_or_id, installation=installation))

    def read(self, path: str, /, **query: str | None) -> Resource:
        """Read any path and return its `data`."""
        document = self._transport.request("GET", path, query=query).document
        return dict(document["data"])

    def create(
        self, kind: Kind, body: Resource, *, installation: bool = False, dry_run: bool = False
    ) -> Resource:
        """Create a resource; a dry run is judged by the server, changes nothing and returns {}."""
        path = self.base(kind, installation=installation)
        return self._post(path, body, replayable=kind.replayable, dry_run=dry_run)

    def _post(
        self,
        path: str,
        body: Resource | None,
        *,
        replayable: bool,
        dry_run: bool = False,
        generation: int | None = None,
    ) -> Resource:
        """Send a POST; a replayable one carries a fresh `Idempotency-Key`, so that a lost answer is asked for again."""
        headers = _if_match(generation)
        if replayable:
            headers["idempotency-key"] = f"occ-{os.urandom(16).hex()}"
        answer = self._transport.request(
            "POST", path, query=_dry(dry_run), body=body, headers=headers
        )
        return dict(answer.document["data"] or {})

    def update(
        self,
        kind: Kind,
        name_or_id: str,
        body: Resource,
        *,
        generation: int | None = None,
        dry_run: bool = False,
    ) -> Resource:
        """Change a resource; with `generation` only if it is still that one."""
        answer = self._transport.request(
            "PATCH",
            self.path_of(kind, name_or_id),
            query=_dry(dry_run),
            body=body,
            headers=_if_match(generation),
        )
        return dict(answer.document["data"] or {})

    def delete(self, kind: Kind, name_or_id: str, *, installation: bool = False) -> str:
        """Delete a resource and return how it was named."""
        self._transport.request("DELETE", self.path_of(kind, name_or_id, installation=installation))
        return name_or_id

    def deploy(self, agent: str, *, dry_run: bool = False) -> Resource:
        """Admit a deployment and return the revision."""
        path = f"{self.path_of(AGENT, agent)}/deploy"
        return self._post(path, None, replayable=True, dry_run=dry_run)

    def policy_path(self, agent: str) -> str:
        """Return the path of an Agent's network policy."""
        return f"{self.path_of(AGENT, agent)}/network-policy"

    def set_policy(
        self, agent: str, additions: list[Any], *, generation: int | None, dry_run: bool = False
    ) -> Resource:
        """Replace the additions of an Agent's draft."""
        answer = self._transport.request(
            "PUT",
            self.policy_path(agent),
            query=_dry(dry_run),
            body={"additions": additions},
            headers=_if_match(generation),
        )
        return dict(answer.document["data"] or {})

    def apply_policy(
        self, agent: str, *, generation: int | None, dry_run: bool = False
    ) -> Resource:
        """Put the draft's additions in force on the running revision."""
        return self._post(
            f"{self.policy_path(agent)}/apply",
            None,
            replayable=True,
            dry_run=dry_run,
            generation=generation,
        )

    def stop(self, agent: str) -> Resource:
        """Ask an Agent to stop."""
        return self._post(f"{self.path_of(AGENT, agent)}/stop", None, replayable=False)

    def deployment_events(self, agent: str, revision: str, last_id: str = "") -> Iterator[Event]:
        """Yield the progress of a deployment until it is over."""
        path = f"{self.path_of(AGENT, agent)}/deployments/{quote(revision, safe='')}/events"
        headers = {"last-event-id": last_id} if last_id else {}
        yield from events.read(
            self._transport.stream("GET", path, headers=headers, silence=_STREAM_SILENCE)
        )
