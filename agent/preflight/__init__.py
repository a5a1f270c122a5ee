"""The read-only check before the first run of the account and of this host."""
