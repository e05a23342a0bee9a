"""The administrator's key file of a machine: written before the key is committed, and made anew when it is lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from oce.core.errors import NotFound
from oce.core.installation.commands import (
    KEY_LIFETIME,
    KEY_RENEWAL,
    bootstrap,
    ensure_administrator_key,
)
from oce.dev.initialize import KeyFile
from oce.store import service_keys

if TYPE_CHECKING:
    from pathlib import Path

    from oce.domain.clock import Clock
    from oce.store.database import Database

pytestmark = pytest.mark.postgres
_NOW = datetime(2030, 1, 1, tzinfo=UTC)


class _At:
    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment


async def _ensure(db: Database, clock: Clock, file: KeyFile) -> bool:
    made = await ensure_administrator_key(db, clock, known=file.known(), deliver=file.deliver)
    return made is not None


async def test_a_key_that_is_lost_is_issued_anew(db: Database, tmp_path: Path):
    clock, file = _At(_NOW), KeyFile(tmp_path / "administrator.json")
    first = await bootstrap(db, clock, name="local", deliver=file.deliver)
    assert file.known() == first.key_id
    assert not await _ensure(db, clock, file)

    for loss in ("", "{", '{"data": {"id": "sk_1", "key": ""}}', None):
        if loss is None:
            file.path.unlink()
        else:
            file.path.write_text(loss)
        assert await _ensure(db, clock, file)
        assert file.known() not in {None, first.key_id}
        assert file.path.stat().st_mode & 0o777 == 0o600
        assert not await _ensure(db, clock, file)

    async with db.read() as reader:
        events = await reader.all(
            "SELECT actor_id, details FROM occ.audit_events WHERE action = %(action)s",
            action="openclaw.installation.reissue_administrator_key",
        )
        held = await service_keys.get(reader, str(file.known()))
    assert len(events) == 4
    assert {event["actor_id"] for event in events} == {first.administrator_id}
    assert held is not None
    assert held.service_principal_id == first.administrator_id
    secret = json.loads(file.path.read_text())["data"]["key"]
    assert secret not in json.dumps([dict(event) for event in events], default=str)


@pytest.mark.parametrize(("left", "again"), [(timedelta(seconds=1), False), (timedelta(0), True)])
async def test_a_key_about_to_expire_counts_as_lost(
    db: Database, tmp_path: Path, left: timedelta, again: bool
):
    clock, file = _At(_NOW), KeyFile(tmp_path / "administrator.json")
    await bootstrap(db, clock, name="local", deliver=file.deliver)
    clock.moment = _NOW + KEY_LIFETIME - KEY_RENEWAL - left
    assert await _ensure(db, clock, file) is again


async def test_a_key_that_cannot_be_kept_is_not_made(db: Database, tmp_path: Path):
    clock, file = _At(_NOW), KeyFile(tmp_path / "gone" / "administrator.json")
    with pytest.raises(FileNotFoundError):
        await bootstrap(db, clock, name="local", deliver=file.deliver)
    with pytest.raises(NotFound):
        await _ensure(db, clock, file)
    await bootstrap(db, clock, name="local")
    with pytest.raises(FileNotFoundError):
        await _ensure(db, clock, file)
    async with db.read() as reader:
        assert len(await service_keys.page(reader, ("", ""), 10)) == 1
