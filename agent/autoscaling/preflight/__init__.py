"""The checks of fleets before the first run, of the account and of the host."""
