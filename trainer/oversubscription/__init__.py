"""Oversubscription: policies, how they are judged, and how the learned one is trained."""

ABSENT = {
    "fit": "the agent learns the usage of a pool from its readings: find rates for it by "
    "`trimtab tune oversubscription`",
    "price": "cores saved and hot hours are given by `trimtab simulate oversubscription`",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
