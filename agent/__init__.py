"""The daemon: the loop, the policies it evaluates, the rails, the ledger and the command line."""
