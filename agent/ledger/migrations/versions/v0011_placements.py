"""Drop the previous values of each write to a placement pool, which replay alone read."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("placement_changes")
