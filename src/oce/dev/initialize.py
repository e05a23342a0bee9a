"""Bring a fresh cluster to a usable control plane: roles, schema, Installation, administrator key. Repeatable.

A program that runs once at each start (`python -m oce.dev.initialize`), so that the supervisor itself needs no database library. Bootstrap
happens once; the key's one-time text goes into a 0600 file before it is committed. A later start verifies, and changes nothing unless
the file is lost or its key is about to expire: whoever owns the state directory gets a fresh one (reference/control-plane.md §3.2, and ours).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from oce.core.errors import CoreError
from oce.core.installation.commands import bootstrap, ensure_administrator_key
from oce.dev.files import write_private
from oce.dev.postgres import PostgresPlan
from oce.domain.clock import SystemClock
from oce.store.database import Database
from oce.store.errors import StoreError
from oce.store.migrate import migrate
from oce.store.provision import APPLICATION, MIGRATOR, provision

if TYPE_CHECKING:
    from oce.domain.resources import Installation, ServiceKey
    from oce.domain.secret import SecretText

DATABASE: Final = "occ"
NAMESPACE: Final = "default"
NAME: Final = "local"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The administrator's key of this machine: 0600, the shape that `occ key create` writes."""

    path: Path

    def known(self) -> str | None:
        """Return the id of the key in the file, None when there is none to be read."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))["data"]
            return str(data["id"]) if data["key"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def deliver(self, installation: Installation, key: ServiceKey, text: SecretText) -> None:
        """Write the file; called before the key is committed, so that no key exists that nobody has."""
        document = {
            "data": {
                "id": key.id,
                "servicePrincipalId": key.service_principal_id,
                "name": key.name,
                "key": text.reveal(),
            },
            "meta": {"installationId": installation.id},
        }
        write_private(self.path, json.dumps(document, indent=2) + "\n")


async def initialize(plan: PostgresPlan, key_file: KeyFile) -> None:
    """Provision, migrate, bootstrap, repair the key file. Raises DBAPIError, StoreError, CoreError, CommandError, OSError."""
    await asyncio.to_thread(provision, plan.url("postgres", "postgres"), DATABASE)
    await asyncio.to_thread(migrate, plan.url(MIGRATOR, DATABASE))
    database, clock = Database(plan.url(APPLICATION, DATABASE), pool_size=2), SystemClock()
    try:
        await bootstrap(database, clock, name=NAME, namespace=NAMESPACE, deliver=key_file.deliver)
        await ensure_administrator_key(
            database, clock, known=key_file.known(), deliver=key_file.deliver
        )
    finally:
        await database.close()


def main() -> int:
    """Run once; 1 with a sentence on standard error when the database refuses."""
    parser = argparse.ArgumentParser(prog="oce.dev.initialize", description=__doc__)
    parser.add_argument("--postgres", type=Path, required=True)
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    given = parser.parse_args()
    plan = PostgresPlan(root=given.postgres, runtime=given.runtime)
    try:
        asyncio.run(initialize(plan, KeyFile(given.key_file)))
    except CommandError as error:
        sys.stderr.write(f"the database was written by a newer release of OCE: {error}\n")
    except (DBAPIError, StoreError, CoreError, OSError) as error:
        cause = error.__cause__ or error
        sys.stderr.write(f"the database cannot be prepared: {str(cause).strip()}\n")
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
