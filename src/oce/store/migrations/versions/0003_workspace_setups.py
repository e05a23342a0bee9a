"""Initial workspace files of Agents."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the frozen SQL text as it stands."""
    text = (Path(__file__).parents[1] / "0003_workspace_setups.sql").read_text(encoding="utf-8")
    op.get_bind().connection.cursor().execute(text)
