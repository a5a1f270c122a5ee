"""How good a policy is: the suite of cases, every policy run on them, intervals and the report."""
