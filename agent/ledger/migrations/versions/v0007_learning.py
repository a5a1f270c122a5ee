"""What learning needs of each minute of a fleet, kept longer than the decisions, and the settings of then."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "learning_minutes",
        sa.Column("seq", seq, primary_key=True, autoincrement=True),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("minute", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("context", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("learning_minutes_by_fleet", "learning_minutes", ["fleet", "seq"])
    op.create_table(
        "learning_contexts",
        sa.Column("context", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("learning_contexts")
    op.drop_table("learning_minutes")
