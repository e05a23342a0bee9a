"""Bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

from oce.domain.clock import Clock
from oce.domain.resources import Installation, Namespace
from oce.domain.secret import SecretText
from oce.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """The Installation; `key_text` only from the run that created it."""

    installation: Installation
    administrator_id: str
    created: bool
    namespace: Namespace | None
    key_id: str | None
    key_text: SecretText | None


async def bootstrap(
    db: Database, clock: Clock, *, name: str, namespace: str = "default"
) -> Bootstrapped:
    """Create the Installation once, with administrator, key and default Namespace; afterwards verify and change nothing."""
    raise NotImplementedError
