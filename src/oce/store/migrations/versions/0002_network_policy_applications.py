"""Live changes of a revision's network policy."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the frozen SQL text as it stands."""
    text = (Path(__file__).parents[1] / "0002_network_policy_applications.sql").read_text(
        encoding="utf-8"
    )
    op.get_bind().connection.cursor().execute(text)
