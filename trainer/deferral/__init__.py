"""Trains and evaluates deferral: which work waits for a cheaper or less busy hour."""

ABSENT = {
    "tune": "margins are compared by `trimtab evaluate deferral --policies LABEL=rolling:margin=0.5`",
    "fit": "the agent fits a pool's forecast itself; `trimtab simulate deferral --world FILE` plays your measurements",
    "learn": "train with `trimtab train deferral` on a scenario's file, then `trimtab promote deferral`",
    "price": "starts and delays have fixed values: `trimtab evaluate deferral` measures the policies",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
