"""Learning on the own fleet: what a ledger recorded becomes traces and a world, and these become cases."""
