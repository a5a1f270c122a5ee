"""How good a policy is: the suite of cases, runs of every policy on them, intervals and the report."""
