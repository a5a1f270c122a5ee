"""What each write to a placement pool replaced, so that the pool is known as of any decision."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "placement_changes",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("revision", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("placement_changes_by_time", "placement_changes", ["at"])


def downgrade() -> None:
    op.drop_table("placement_changes")
