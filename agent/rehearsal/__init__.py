"""The dry run: the real loop on a fake AWS with recorded jobs and faults; and the rehearsal in virtual time."""
