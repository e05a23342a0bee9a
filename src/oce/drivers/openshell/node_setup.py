"""The workspace node's setup: an expiring envelope that lets a Sandbox enrol with its Agent's Gateway (mission document 000).

Compute stages the setup code; the Driver turns it into the envelope of the runtime provider and into one network rule. The envelope may
be renewed only from expired to later and only towards the same Gateway: same URL, same fingerprint. Everything else is a conflict.
The token inside is a secret until it expires, so an envelope hides itself. Pure; reading the Secret is `private_material`'s.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urlsplit

from oce.contracts.refusals import OwnershipConflict, RevisionUnsupported, StillPending
from oce.domain.secret import SecretText
from oce.drivers.openshell.profiles import NO_NODE_SETUP
from oce.policy.model import Access, Endpoint, Enforcement, Protocol, Rule, Tls

if TYPE_CHECKING:
    from oce.domain.resources import Json

SETUP_ENV: Final = "OPENCLAW_NODE_SETUP_CODE"
RULE_NAME: Final = "workspace-node-enrollment"
NODE_BINARY: Final = "/usr/local/bin/node"
_PREFIX: Final = "oc-pair://"
_MAX: Final = 65_536
_REQUIRED: Final = frozenset(("url", "bootstrapToken", "expiresAtMs"))
_OPTIONAL: Final = frozenset(("tlsFingerprint",))
_CODE: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_SAFE_INTEGER: Final = 2**53
_PORTS: Final = {"wss": 443, "ws": 80}
_FIELD: Final = "config.node_setup_json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup:
    """A checked envelope. `document` is its canonical JSON, token included."""

    document: SecretText
    url: str
    fingerprint: str | None
    expires_at_ms: int
    host: str
    port: int
    path: str
    tls: bool

    def live(self, now_ms: int) -> bool:
        """Tell whether the setup can still be used."""
        return self.expires_at_ms > now_ms


def from_code(code: SecretText) -> NodeSetup:
    """Read a setup code: `oc-pair://` (optional) and base64url JSON. Raises RevisionUnsupported; never repeats a value."""
    text = code.reveal().removeprefix(_PREFIX)
    if len(text) > _MAX or not _CODE.fullmatch(text):
        _malformed()
    try:
        raw = base64.urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
        return _checked(json.loads(raw))
    except (binascii.Error, ValueError, RecursionError):
        _malformed()


def held_by(config_value: str) -> NodeSetup | None:
    """Read what a provider holds; None for the placeholder. Raises OwnershipConflict for what we never wrote."""
    if config_value == NO_NODE_SETUP:
        return None
    try:
        return _checked(json.loads(config_value))
    except (ValueError, RecursionError, RevisionUnsupported):
        raise OwnershipConflict("provider", _FIELD) from None


def first(offered: NodeSetup | None, now_ms: int) -> NodeSetup | None:
    """Return what a new provider is made with. Raises StillPending while Compute has to renew the setup."""
    if offered is not None and not offered.live(now_ms):
        _expired()
    return offered


def chosen(held: NodeSetup | None, offered: NodeSetup | None, now_ms: int) -> NodeSetup | None:
    """Return the setup a provider should hold: its own, or its renewal. Raises OwnershipConflict, StillPending.

    Without an offer (the node enrolled and Compute withdrew the code) the provider keeps what it has.
    """
    if offered is None:
        return held
    if held is None or (held.url, held.fingerprint) != (offered.url, offered.fingerprint):
        raise OwnershipConflict("provider", _FIELD)
    if held.document == offered.document:
        return held
    if held.live(now_ms) or offered.expires_at_ms <= held.expires_at_ms:
        raise OwnershipConflict("provider", _FIELD)
    if not offered.live(now_ms):
        _expired()
    return offered


def rule(setup: NodeSetup) -> Rule:
    """Return the network rule that lets the node, and only the node, reach its Gateway.

    Over `wss` the node verifies the Gateway's certificate itself, so the relay stays opaque.
    """
    if setup.tls:
        endpoint = Endpoint(
            host=setup.host, ports=(setup.port,), tls=Tls.SKIP, enforcement=Enforcement.ENFORCE
        )
    else:
        endpoint = Endpoint(
            host=setup.host,
            ports=(setup.port,),
            protocol=Protocol.REST,
            enforcement=Enforcement.ENFORCE,
            access=Access.FULL,
            path=setup.path,
        )
    return Rule(key=RULE_NAME, name=RULE_NAME, binaries=(NODE_BINARY,), endpoints=(endpoint,))


def _checked(document: Json) -> NodeSetup:
    if not isinstance(document, dict) or not document.keys() >= _REQUIRED:
        _malformed()
    if document.keys() - _REQUIRED - _OPTIONAL:
        _malformed()
    url, token, expires = document["url"], document["bootstrapToken"], document["expiresAtMs"]
    fingerprint = document.get("tlsFingerprint")
    if not isinstance(token, str) or not token or not isinstance(fingerprint, str | None):
        _malformed()
    if isinstance(expires, bool) or not isinstance(expires, int) or not 0 < expires < _SAFE_INTEGER:
        _malformed()
    if not isinstance(url, str):
        _malformed()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        _malformed()
    plain = not parts.query and not parts.fragment and not {"@", "?", "#"} & set(url)
    if parts.scheme not in _PORTS or not plain or not _HOST.fullmatch(host) or port == 0:
        _malformed()
    return NodeSetup(
        document=SecretText(json.dumps(document, sort_keys=True, separators=(",", ":"))),
        url=url,
        fingerprint=fingerprint,
        expires_at_ms=expires,
        host=host,
        port=port or _PORTS[parts.scheme],
        path=parts.path or "/",
        tls=parts.scheme == "wss",
    )


def _malformed() -> NoReturn:
    raise RevisionUnsupported(
        "SANDBOX_HARNESS_UNSUPPORTED", "not supported: a node setup of that shape"
    )


def _expired() -> NoReturn:
    raise StillPending("WORKSPACE_NODE_PENDING", "the node setup has expired; it waits for renewal")
