"""Bring a fresh cluster to a usable control plane: roles, schema, Installation, administrator key. Repeatable.

Bootstrap happens once; the key's one-time text goes into a 0600 file that is written before anybody can use it. A later start verifies
and changes nothing (reference/control-plane.md §3.2).
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from oce.core.installation.commands import bootstrap
from oce.dev.state import write_private
from oce.domain.clock import SystemClock
from oce.store.database import Database
from oce.store.migrate import migrate
from oce.store.provision import APPLICATION, MIGRATOR, provision

if TYPE_CHECKING:
    from pathlib import Path

    from oce.dev.postgres import PostgresPlan

DATABASE: Final = "occ"
NAMESPACE: Final = "default"


async def initialize(plan: PostgresPlan, key_file: Path) -> None:
    """Provision, migrate, bootstrap. Raises store errors."""
    await asyncio.to_thread(provision, plan.url("postgres", "postgres"), DATABASE)
    await asyncio.to_thread(migrate, plan.url(MIGRATOR, DATABASE))
    database = Database(plan.url(APPLICATION, DATABASE), pool_size=2, name="bootstrap")
    try:
        made = await bootstrap(database, SystemClock(), name="local", namespace=NAMESPACE)
    finally:
        await database.close()
    if made.key_text is not None:
        document = {
            "data": {
                "id": made.key_id,
                "servicePrincipalId": made.administrator_id,
                "name": "bootstrap-admin",
                "key": made.key_text.reveal(),
            },
            "meta": {"installationId": made.installation.id},
        }
        write_private(key_file, json.dumps(document, indent=2) + "\n")
