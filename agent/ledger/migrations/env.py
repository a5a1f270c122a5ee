"""Alembic's entry: runs the revisions on the connection, and in the transaction, that the ledger hands over."""

from alembic import context

from agent.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
