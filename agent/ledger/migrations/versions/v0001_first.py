"""First schema: journal, decisions, intents, state, leader; journal rows cannot be changed."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
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


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "journal",
        sa.Column("seq", seq, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("journal_by_ref", "journal", ["ref"])
    op.create_index("journal_by_fleet", "journal", ["fleet", "seq"])
    op.create_index("journal_by_time", "journal", ["at"])
    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.String(), primary_key=True),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("changed", sa.SmallInteger(), nullable=False),
        sa.Column("inputs", sa.LargeBinary(), nullable=False),
    )
    op.create_index("decisions_by_fleet", "decisions", ["fleet", "at"])
    op.create_index("decisions_by_time", "decisions", ["at"])
    changed = sa.text("changed = 1")
    op.create_index("decisions_that_changed", "decisions", ["at"], sqlite_where=changed, postgresql_where=changed)
    op.create_table(
        "intents",
        sa.Column("intent_id", sa.String(), primary_key=True),
        sa.Column("decision_id", sa.String(), sa.ForeignKey("decisions.decision_id"), nullable=False),
        sa.Column("fleet", sa.String(), nullable=False),
        sa.Column("group_key", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double()),
        sa.Column("intent", sa.LargeBinary(), nullable=False),
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
    op.create_table(
        "state",
        sa.Column("fleet", sa.String(), primary_key=True),
        sa.Column("key", sa.String(), primary_key=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "leader",
        sa.Column("epoch", seq, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(_SQLITE_GUARD)
    else:
        op.execute(_POSTGRES_FUNCTION)
        op.execute(_POSTGRES_GUARD)
