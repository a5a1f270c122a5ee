"""Clusters that deployments ask to come into: what is inside, the events reported, and the decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "admission_clusters",
        sa.Column("cluster", sa.String(), primary_key=True),
        sa.Column("revision", seq, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "admission_deployments",
        sa.Column("cluster", sa.String(), primary_key=True),
        sa.Column("deployment_id", sa.String(), primary_key=True),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("admission_deployments_by_time", "admission_deployments", ["last_at"])
    op.create_table(
        "admission_events",
        sa.Column("cluster", sa.String(), primary_key=True),
        sa.Column("event_id", sa.String(), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("admission_events_by_time", "admission_events", ["at"])
    op.create_table(
        "admission_decisions",
        sa.Column("decision_id", sa.String(), primary_key=True),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("number", seq, nullable=False),
        sa.Column("deployment_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_index("admission_decisions_by_time", "admission_decisions", ["at"])
    op.create_index("admission_decisions_by_number", "admission_decisions", ["cluster", "number"], unique=True)
    op.create_index("one_decision_per_request", "admission_decisions", ["cluster", "request_id"], unique=True)


def downgrade() -> None:
    for table in ("admission_decisions", "admission_events", "admission_deployments", "admission_clusters"):
        op.drop_table(table)
