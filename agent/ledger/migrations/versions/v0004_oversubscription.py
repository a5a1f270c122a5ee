"""Pools whose CPU is oversold: what was decided for each hour and each request."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "oversubscription_decisions",
        sa.Column("decision_id", sa.String(), primary_key=True),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("number", seq, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("request_id", sa.String()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("inputs", sa.LargeBinary()),
    )
    op.create_index("oversubscription_decisions_by_time", "oversubscription_decisions", ["at"])
    op.create_index(
        "oversubscription_decisions_by_number", "oversubscription_decisions", ["pool", "number"], unique=True
    )
    op.create_index("one_rate_per_request", "oversubscription_decisions", ["pool", "request_id"], unique=True)


def downgrade() -> None:
    op.drop_table("oversubscription_decisions")
