"""Which admission rule fills a cluster best at the risk that was promised: thresholds, fronts, intervals, a report."""

ABSENT = {
    "train": "its rules have no network: find their population by `trimtab fit admission`, and the threshold by "
    "`trimtab tune admission`",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
