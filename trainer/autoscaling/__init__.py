"""Autoscaling: recurrent PPO, its tasks and baselines, and how policies are evaluated."""

ABSENT = {
    "fit": "it has no population: make a workload of a job log by `trimtab trace import-swf`, and find a rule's "
    "setting for it by `trimtab tune autoscaling`",
    "price": "rent and waiting are given by `trimtab simulate autoscaling`",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
