"""Inputs of decisions are compressed with a dictionary, which is stored once for many of them."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "dictionaries",
        sa.Column("dictionary_id", _SEQ, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("dictionaries_by_time", "dictionaries", ["at"])
    # Neither database copies a row for a column that is NULL. In words: alembic would rebuild SQLite's table for it.
    kind = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    op.execute(f"ALTER TABLE decisions ADD COLUMN dictionary {kind} REFERENCES dictionaries (dictionary_id)")
    is_used = sa.text("dictionary IS NOT NULL")
    index = ("decisions_by_dictionary", "decisions", ["dictionary"])
    op.create_index(*index, sqlite_where=is_used, postgresql_where=is_used)
