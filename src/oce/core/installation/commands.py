"""Bootstrap: make the Installation once (reference/control-plane.md §3.2).

One transaction makes the Installation, its administrator, a 30-day key and the queued `default` Namespace, so there is no half of it.
Whoever calls this writes the key's text to a private file; it is returned once and exists nowhere else. A second run verifies and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from oce.core import checks
from oce.core.access import keys
from oce.core.access.rules import ADMINISTRATOR
from oce.core.audit import rules as audit_rules
from oce.core.errors import Conflict, NotFound
from oce.domain.ids import IdKind, new_id
from oce.domain.resources import (
    AccessBinding,
    Identity,
    Installation,
    Namespace,
    NamespaceStatus,
    ServiceKey,
)
from oce.domain.secret import SecretText
from oce.store import audit, iam, namespaces, service_keys, work
from oce.store import installation as installations

if TYPE_CHECKING:
    from oce.domain.clock import Clock
    from oce.store.database import Database, Tx

KEY_NAME: Final = "bootstrap-admin"
KEY_LIFETIME: Final = timedelta(days=30)
KEY_RENEWAL: Final = timedelta(days=7)
"""An administrator key with less left than this counts as lost when a machine starts (ours)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """The Installation; the key, its text and the Namespace only from the run that created it."""

    installation: Installation
    administrator_id: str
    created: bool
    namespace: Namespace | None = None
    key: ServiceKey | None = None
    key_text: SecretText | None = None

    @property
    def key_id(self) -> str | None:
        """Id of the key that was made."""
        return self.key.id if self.key else None


Deliver = Callable[[Installation, ServiceKey, SecretText], None]


async def bootstrap(
    db: Database,
    clock: Clock,
    *,
    name: str,
    namespace: str = "default",
    deliver: Deliver | None = None,
) -> Bootstrapped:
    """Create the Installation, or verify the existing one.

    `deliver` stores the key's text durably (a private file) before the Installation is committed, so that a crash cannot leave an
    Installation whose only key nobody has; what it raises undoes everything.
    Raises InvalidRequest (name), Conflict INSTALLATION_EXISTS (one of another name is there), UnknownOutcome (run it again to see).
    """
    checks.name(name)
    checks.name(namespace, "/namespace")
    async with db.transact() as tx:
        await installations.lock_for_bootstrap(tx)
        present = await installations.find(tx)
        if present is not None:
            if present.name != name:
                raise Conflict(
                    f"The Installation exists with the name {present.name}.",
                    code="INSTALLATION_EXISTS",
                )
            administrators = await iam.lock_unscoped_bindings(tx, ADMINISTRATOR)
            return Bootstrapped(
                installation=present,
                administrator_id=administrators[0].subject_id if administrators else "",
                created=False,
            )
        now = clock.now()
        installation = Installation(id=new_id(IdKind.INSTALLATION), name=name, created_at=now)
        administrator = Identity(id=new_id(IdKind.SERVICE_PRINCIPAL), kind="service_principal")
        first = Namespace(
            id=new_id(IdKind.NAMESPACE),
            name=namespace,
            status=NamespaceStatus.PROVISIONING,
            created_at=now,
        )
        key = ServiceKey(
            id=new_id(IdKind.SERVICE_KEY),
            service_principal_id=administrator.id,
            namespace_id=None,
            name=KEY_NAME,
            created_at=now,
            expires_at=now + KEY_LIFETIME,
        )
        text, stored = keys.issue(key.id)
        await installations.insert(tx, installation)
        await iam.insert_identity(tx, administrator)
        await iam.insert_binding(
            tx,
            AccessBinding(
                id=new_id(IdKind.BINDING),
                subject_kind="identity",
                subject_id=administrator.id,
                role_id=ADMINISTRATOR,
                namespace_id=None,
                resource_kind=None,
                resource_id=None,
            ),
        )
        await service_keys.insert(tx, key, stored)
        await namespaces.insert(tx, first)
        await work.enqueue(
            tx,
            key=work.operation_key("namespace", first.id, "ensure"),
            namespace_id=first.id,
            actor_id=administrator.id,
            namespace_target="ready",
        )
        if deliver is not None:
            deliver(installation, key, text)
        await audit.append(
            tx,
            audit_rules.event(
                installation_id=installation.id,
                at=now,
                actor_id=administrator.id,
                action="openclaw.installation.bootstrap",
                resource=("installation", installation.id),
                namespace_id=None,
                kind="bootstrap",
                details={"namespaceId": first.id, "keyId": key.id},
            ),
        )
    return Bootstrapped(
        installation=installation,
        administrator_id=administrator.id,
        created=True,
        namespace=first,
        key=key,
        key_text=text,
    )


async def ensure_administrator_key(
    db: Database, clock: Clock, *, known: str | None, deliver: Deliver
) -> ServiceKey | None:
    """Issue a fresh administrator key when the one that this machine knows is lost; ours, for whoever owns the machine.

    `known` is the id in the machine's key file, None when there is no such file or it cannot be read. A key that is revoked, expired or has
    less than `KEY_RENEWAL` left is as good as lost. `deliver` stores the new text before it is committed. Returns the new key, or None when
    the known one holds. An older key stays what it was: `occ key list` shows it. Raises NotFound when the Installation or every
    administrator is gone, UnknownOutcome.
    """
    now = clock.now()
    async with db.transact() as tx:
        installation = await installations.find(tx)
        if installation is None:
            raise NotFound
        held = None if known is None else await service_keys.get(tx, known)
        if held is not None and held.expires_at - now > KEY_RENEWAL:
            return None
        administrator = await _administrator(tx)
        key = ServiceKey(
            id=new_id(IdKind.SERVICE_KEY),
            service_principal_id=administrator.id,
            namespace_id=None,
            name=KEY_NAME,
            created_at=now,
            expires_at=now + KEY_LIFETIME,
        )
        text, stored = keys.issue(key.id)
        await service_keys.insert(tx, key, stored)
        deliver(installation, key, text)
        await audit.append(
            tx,
            audit_rules.event(
                installation_id=installation.id,
                at=now,
                actor_id=administrator.id,
                action="openclaw.installation.reissue_administrator_key",
                resource=("service_key", key.id),
                namespace_id=None,
                details={"servicePrincipalId": administrator.id, "name": key.name},
            ),
        )
    return key


async def _administrator(tx: Tx) -> Identity:
    """Return a principal of the Installation that is bound to the administrator role. Raises NotFound."""
    for binding in await iam.lock_unscoped_bindings(tx, ADMINISTRATOR):
        found = await iam.identity(tx, binding.subject_id)
        if found is not None and found.namespace_id is None and found.agent_id is None:
            return found
    raise NotFound
