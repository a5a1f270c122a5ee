"""The tables of the ledger, and a trigger by which rows of the journal never change."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None

_SQLITE_GUARD = """
CREATE TRIGGER journal_rows_never_change BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END
"""
_POSTGRES_FUNCTION = """
CREATE FUNCTION refuse_journal_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$
"""
_POSTGRES_GUARD = """
CREATE TRIGGER journal_rows_never_change BEFORE UPDATE ON journal
FOR EACH ROW EXECUTE FUNCTION refuse_journal_change()
"""
_SEQ = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        _double("at"),
        _text("fleet"),
        _text("kind"),
        _text("ref"),
        _text("reason"),
        _body("body"),
        sqlite_autoincrement=True,
    )
    op.create_index("journal_by_ref", "journal", ["ref"])
    op.create_index("journal_by_fleet", "journal", ["fleet", "seq"])
    op.create_index("journal_by_time", "journal", ["at"])
    op.create_table(
        "decisions",
        _key("decision_id"),
        _text("subject"),
        _double("at"),
        sa.Column("changed", sa.SmallInteger(), nullable=False),
        _body("inputs"),
        sa.Column("decision", sa.String(), nullable=False, server_default="autoscaling"),
        sa.Column("kind", sa.String(), nullable=False, server_default=""),
        sa.Column("number", _SEQ),
        sa.Column("request_id", sa.String()),
        sa.Column("about", sa.String(), nullable=False, server_default=""),
        sa.Column("body", sa.LargeBinary()),
    )
    op.create_index("decisions_by_subject", "decisions", ["decision", "subject", "at"])
    op.create_index("decisions_by_time", "decisions", ["at"])
    changed = sa.text("changed = 1")
    op.create_index("decisions_that_changed", "decisions", ["at"], sqlite_where=changed, postgresql_where=changed)
    op.create_index("decisions_by_number", "decisions", ["decision", "subject", "number"], unique=True)
    op.create_index("one_decision_per_request", "decisions", ["decision", "subject", "request_id"], unique=True)
    op.create_table(
        "intents",
        _key("intent_id"),
        sa.Column("decision_id", sa.String(), sa.ForeignKey("decisions.decision_id"), nullable=False),
        _text("fleet"),
        _text("group_key"),
        _text("state"),
        _double("created_at"),
        sa.Column("closed_at", sa.Double()),
        _body("intent"),
        sa.Column("outcome", sa.LargeBinary()),
    )
    op.create_index("intents_of_decision", "intents", ["decision_id"])
    is_open = sa.text("state = 'open'")
    op.create_index(
        "one_open_intent_per_group",
        "intents",
        ["fleet", "group_key"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_table("state", _key("fleet"), _key("key"), _body("body"))
    op.create_table("leader", _number_key("epoch"), _text("owner"), _double("since"))
    op.create_table("lease", _number_key("epoch"), _text("owner"), _double("expires_at"))
    identity = op.create_table(
        "ledger_identity",
        _key("ledger_id"),
        sa.Column("generation", _SEQ, nullable=False),
        *(sa.Column(name, sa.String()) for name in ("account", "region", "deployment")),
    )
    op.bulk_insert(identity, [{"ledger_id": uuid.uuid4().hex, "generation": 0}])
    op.create_table("admission_clusters", _key("cluster"), sa.Column("revision", _SEQ, nullable=False), _body("body"))
    op.create_table(
        "admission_deployments",
        _key("cluster"),
        _key("deployment_id"),
        _text("stage"),
        _double("last_at"),
        _body("body"),
    )
    op.create_index("admission_deployments_by_time", "admission_deployments", ["last_at"])
    op.create_table("admission_events", _key("cluster"), _key("event_id"), _double("at"), _body("body"))
    op.create_index("admission_events_by_time", "admission_events", ["at"])
    op.create_table(
        "learning_minutes",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        _text("fleet"),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("minute", "epoch", "context")),
        _body("body"),
    )
    op.create_index("learning_minutes_by_fleet", "learning_minutes", ["fleet", "seq"])
    op.create_table(
        "learning_contexts",
        sa.Column("context", sa.BigInteger(), primary_key=True, autoincrement=False),
        _text("fleet"),
        _double("at"),
        _body("body"),
    )
    op.create_table(
        "learning_hours",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        _text("pool"),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("whole", sa.SmallInteger(), nullable=False),
        _body("body"),
    )
    op.create_index("learning_hours_by_pool", "learning_hours", ["pool", "seq"])
    op.create_table(
        "placement_changes",
        _key("pool"),
        sa.Column("revision", sa.BigInteger(), primary_key=True, autoincrement=False),
        _double("at"),
        _body("body"),
    )
    op.create_index("placement_changes_by_time", "placement_changes", ["at"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute(_SQLITE_GUARD)
    else:
        op.execute(_POSTGRES_FUNCTION)
        op.execute(_POSTGRES_GUARD)


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), primary_key=True)


def _number_key(name: str) -> sa.Column[int]:
    return sa.Column(name, _SEQ, primary_key=True, autoincrement=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def _double(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=False)


def _body(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=False)
