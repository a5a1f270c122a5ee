"""Which ledger this is, how many transactions wrote to it, and whose it is: account, region and deployment."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# A downgrade leaves the row here, so that the ledger is still itself after the next upgrade.
_SAVED = "fleet = '' AND key = 'identity'"


def upgrade() -> None:
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    identity = op.create_table(
        "ledger_identity",
        sa.Column("ledger_id", sa.String(), primary_key=True),
        sa.Column("generation", seq, nullable=False),
        sa.Column("account", sa.String()),
        sa.Column("region", sa.String()),
        sa.Column("deployment", sa.String()),
    )
    connection = op.get_bind()
    saved = connection.execute(sa.text(f"SELECT body FROM state WHERE {_SAVED}")).scalar()
    fields = bytes(saved).decode("utf-8").split(" ") if saved is not None else [uuid.uuid4().hex, "0", "", "", ""]
    ledger_id, generation, account, region, deployment = fields
    row = {"ledger_id": ledger_id, "generation": int(generation)}
    row |= {"account": account or None, "region": region or None, "deployment": deployment or None}
    op.bulk_insert(identity, [row])
    connection.execute(sa.text(f"DELETE FROM state WHERE {_SAVED}"))


def downgrade() -> None:
    connection = op.get_bind()
    query = sa.text("SELECT ledger_id, generation, account, region, deployment FROM ledger_identity")
    row = connection.execute(query).one()
    body = " ".join(str(value or "") if value != 0 else "0" for value in row).encode("utf-8")
    insert = sa.text("INSERT INTO state (fleet, key, body) VALUES ('', 'identity', :body)")
    connection.execute(insert, {"body": body})
    op.drop_table("ledger_identity")
