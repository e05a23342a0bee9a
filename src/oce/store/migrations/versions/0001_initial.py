"""The first schema: every table of the first release, its constraints, the two roles' rights and the built-in roles."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the frozen SQL text as it stands."""
    text = (Path(__file__).parents[1] / "0001_initial.sql").read_text(encoding="utf-8")
    op.get_bind().connection.cursor().execute(text)
