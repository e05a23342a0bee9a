"""How a Driver says no.

DriverRefusal                        carries a code of the failure catalogue and its tempo
├── RevisionUnsupported              this revision cannot run here; permanent
├── NamespaceRefused                 the provider refuses our identity for the Namespace; permanent
├── GatewayUnauthorized              the provider refuses our identity where absence had to be proved; two tempos
├── WorkspaceSetupRefused            initial workspace files refused; permanent
├── NetworkPolicyConflict            an addition reaches a host with its own path; names the rule
├── OwnershipConflict                an object of ours by name is not ours, or differs; names the field
├── TransientDependency              a named dependency is away; no attempt is spent
├── StillPending                     accepted and not finished; look again
├── DeletionUnconfirmed              a deletion found nothing where a read had found something
└── CredentialSourceRefused          a credential source cannot be used by this revision; permanent
ConfigurationRefused                 a document is not acceptable; carries detail paths and codes, never values
UnsupportedByDriver                  the Driver does not offer this member; HTTP 501
NotVisible                           the provider shows no such object (absent or concealed); not a proof of absence

Provider text never leaves a Driver: a refusal's sentence names the method, the gRPC or HTTP status and one fixed category.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from oce.domain.failures import CATALOGUE, Tempo

_FIELD: Final = re.compile(r"[A-Za-z0-9_.\[\]/-]{1,300}")


class DriverRefusal(Exception):
    """A Driver's typed no. `code` is listed in the catalogue and allows `tempo`."""

    def __init__(
        self, code: str, tempo: Tempo, message: str = "", *, hint_code: str | None = None
    ) -> None:
        if tempo not in CATALOGUE[code].tempos:
            raise ValueError(f"{code} has no tempo {tempo}")
        super().__init__(message or CATALOGUE[code].message)
        self.code = code
        self.tempo = tempo
        self.hint_code = hint_code


class RevisionUnsupported(DriverRefusal):
    """The Driver cannot run this revision and a retry cannot change that."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, Tempo.PERMANENT, message)


class NamespaceRefused(DriverRefusal):
    """The provider refused the control plane's identity; the message holds only the provider's refusal code."""

    def __init__(self, provider_code: str) -> None:
        super().__init__("SANDBOX_NAMESPACE_REFUSED", Tempo.PERMANENT, provider_code)


class GatewayUnauthorized(DriverRefusal):
    """Refused identity while absence had to be proved: nothing hidden is ever recorded gone (mission document 003).

    A missing role is permanent at once; an identity that could not be *authenticated* (`transient`) retries within the attempts.
    """

    def __init__(self, *, transient: bool) -> None:
        tempo = Tempo.RETRY if transient else Tempo.PERMANENT
        super().__init__(
            "SANDBOX_GATEWAY_UNAUTHORIZED", tempo, hint_code="sandbox-gateway-identity"
        )


class WorkspaceSetupRefused(DriverRefusal):
    """Initial workspace files cannot be set up."""

    def __init__(self, message: str = "") -> None:
        super().__init__("SANDBOX_WORKSPACE_SETUP_REFUSED", Tempo.PERMANENT, message)


class NetworkPolicyConflict(DriverRefusal):
    """An addition reaches a host that the Driver routes only through its own path."""

    def __init__(self, rule: str) -> None:
        super().__init__("SANDBOX_NETWORK_POLICY_CONFLICT", Tempo.PERMANENT, f"rule {rule}")
        self.rule = rule


class OwnershipConflict(DriverRefusal):
    """An object that has our name is not ours or is not what we would make; `field` says where it differs."""

    def __init__(self, kind: str, field: str) -> None:
        """`field` may end with a name that the provider chose; one that is no plain name is not repeated."""
        shown = field if _FIELD.fullmatch(field) else "a name that cannot be shown"
        super().__init__(
            "SANDBOX_OWNERSHIP_CONFLICT", Tempo.PERMANENT, f"{kind} differs in {shown}"
        )
        self.kind = kind
        self.field = shown


class TransientDependency(DriverRefusal):
    """A named dependency is unreachable, silent or overloaded."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, Tempo.TRANSIENT, message)


class StillPending(DriverRefusal):
    """The provider accepted and has not finished."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, Tempo.PENDING, message)


class DeletionUnconfirmed(DriverRefusal):
    """A deletion reported nothing there although a read just before saw the object."""

    def __init__(self) -> None:
        super().__init__("SANDBOX_DELETION_UNCONFIRMED", Tempo.RETRY)


class CredentialSourceRefused(DriverRefusal):
    """A credential source cannot be attached to this revision."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, Tempo.PERMANENT, message)


@dataclass(frozen=True, slots=True)
class Detail:
    """Where a document is wrong (JSON Pointer) and how (a detail code of reference/control-plane.md §2.3); never a value."""

    path: str
    code: str
    note: str = ""


class ConfigurationRefused(Exception):
    """A document is not acceptable; the API answers 400 with the details."""

    def __init__(self, *details: Detail) -> None:
        super().__init__(
            "; ".join(
                f"{d.path or '/'}: {d.code}{f' ({d.note})' if d.note else ''}" for d in details
            )
        )
        self.details = details


class UnsupportedByDriver(Exception):
    """The selected Driver does not offer this member."""


class NotVisible(Exception):
    """The provider shows no such object; it may be absent or concealed."""
