"""An epoch and a lease are of one subject; agents that share a ledger announce themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Constant defaults: neither database copies a row, and an agent of the version before still leads everything.
    for table in ("leader", "lease"):
        op.add_column(table, sa.Column("subject", sa.String(), nullable=False, server_default=""))
    op.create_index("leader_by_subject", "leader", ["subject", "epoch"])
    op.create_index("lease_by_subject", "lease", ["subject"], unique=True)
    op.create_table(
        "agent",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("process", sa.String(), nullable=False),
        sa.Column("revision", sa.String(), nullable=False),
        sa.Column("ready", sa.SmallInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=False),
        sa.Column("relay", sa.String(), nullable=False),
    )
