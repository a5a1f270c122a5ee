"""The journal names the decision of a row's subject; columns with the name of any subject are not called fleet."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Plain renames: neither database copies a row for them, nor for a column with a constant default.
    op.execute("ALTER TABLE journal RENAME COLUMN fleet TO subject")
    op.execute("ALTER TABLE state RENAME COLUMN fleet TO owner")
    op.add_column("journal", sa.Column("decision", sa.String(), nullable=False, server_default=""))
