"""The revisions of the ledger's schema, one module each, oldest first."""
