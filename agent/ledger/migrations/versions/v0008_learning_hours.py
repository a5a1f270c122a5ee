"""What learning needs of each hour of a pool, kept longer than the decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "learning_hours",
        sa.Column("seq", seq, primary_key=True, autoincrement=True),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("whole", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("learning_hours_by_pool", "learning_hours", ["pool", "seq"])


def downgrade() -> None:
    op.drop_table("learning_hours")
