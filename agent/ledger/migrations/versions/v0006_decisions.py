"""One table for the decisions of every kind: fleets, clusters and pools had one each."""

import json
import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BATCH = 500
_COMMON = "decision_id, number, request_id, at, body"


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.drop_index("decisions_by_fleet", "decisions")
    op.execute("ALTER TABLE decisions RENAME COLUMN fleet TO subject")
    op.add_column("decisions", sa.Column("decision", sa.String(), nullable=False, server_default="autoscaling"))
    op.add_column("decisions", sa.Column("kind", sa.String(), nullable=False, server_default=""))
    op.add_column("decisions", sa.Column("number", seq))
    op.add_column("decisions", sa.Column("request_id", sa.String()))
    op.add_column("decisions", sa.Column("about", sa.String(), nullable=False, server_default=""))
    op.add_column("decisions", sa.Column("body", sa.LargeBinary()))
    connection = op.get_bind()
    connection.execute(
        sa.text(
            f"INSERT INTO decisions ({_COMMON}, subject, about, decision, changed, inputs) "
            f"SELECT {_COMMON}, cluster, deployment_id, 'admission', 0, :nothing FROM admission_decisions"
        ),
        {"nothing": b""},
    )
    connection.execute(
        sa.text(
            f"INSERT INTO decisions ({_COMMON}, subject, kind, decision, changed, inputs) "
            f"SELECT {_COMMON}, pool, kind, 'oversubscription', 0, COALESCE(inputs, :nothing) "
            "FROM oversubscription_decisions"
        ),
        {"nothing": b""},
    )
    _mark_admitted(connection)
    # Dropped with their indexes first: one of these has the name of an index of the new table.
    op.drop_table("admission_decisions")
    op.drop_table("oversubscription_decisions")
    op.create_index("decisions_by_subject", "decisions", ["decision", "subject", "at"])
    op.create_index("decisions_by_number", "decisions", ["decision", "subject", "number"], unique=True)
    op.create_index("one_decision_per_request", "decisions", ["decision", "subject", "request_id"], unique=True)


def _mark_admitted(connection: sa.Connection) -> None:
    """Mark the admissions that let a deployment in as decisions that changed something."""
    last = ""
    page = sa.text(
        "SELECT decision_id, body FROM decisions WHERE decision = 'admission' AND decision_id > :last "
        "ORDER BY decision_id LIMIT :most"
    )
    while rows := connection.execute(page, {"last": last, "most": _BATCH}).all():
        last = rows[-1].decision_id
        admitted = [{"of": row.decision_id} for row in rows if _admits(bytes(row.body))]
        if admitted:
            connection.execute(sa.text("UPDATE decisions SET changed = 1 WHERE decision_id = :of"), admitted)


def _admits(stored: bytes) -> bool:
    try:
        body: Any = json.loads(stored if stored.startswith(b"{") else zlib.decompress(stored))
    except (ValueError, zlib.error):
        # A body that is damaged is reported when it is read; it must not keep the ledger from its new schema.
        return False
    return bool(body.get("admit")) and not body.get("advice")


def downgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    for index in ("decisions_by_subject", "decisions_by_number", "one_decision_per_request"):
        op.drop_index(index, "decisions")
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
    connection = op.get_bind()
    connection.execute(
        sa.text(
            f"INSERT INTO admission_decisions ({_COMMON}, cluster, deployment_id) "
            f"SELECT {_COMMON}, subject, about FROM decisions WHERE decision = 'admission'"
        )
    )
    connection.execute(
        sa.text(
            f"INSERT INTO oversubscription_decisions ({_COMMON}, pool, kind, inputs) "
            f"SELECT {_COMMON}, subject, kind, CASE WHEN inputs = :nothing THEN NULL ELSE inputs END "
            "FROM decisions WHERE decision = 'oversubscription'"
        ),
        {"nothing": b""},
    )
    connection.execute(
        sa.text(
            "DELETE FROM intents WHERE decision_id IN "
            "(SELECT decision_id FROM decisions WHERE decision <> 'autoscaling')"
        )
    )
    connection.execute(sa.text("DELETE FROM decisions WHERE decision <> 'autoscaling'"))
    for column in ("body", "about", "request_id", "number", "kind", "decision"):
        op.drop_column("decisions", column)
    op.execute("ALTER TABLE decisions RENAME COLUMN subject TO fleet")
    op.create_index("decisions_by_fleet", "decisions", ["fleet", "at"])
