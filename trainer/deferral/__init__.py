"""Trains and evaluates deferral: which work waits for a cheaper or less busy hour."""

ABSENT = {
    "tune": "margins are compared by `trimtab evaluate deferral --policies LABEL=rolling:margin=0.5`",
    "fit": "the agent fits the forecast of a pool by itself, to the capacity that it saw",
    "learn": "train with `trimtab train deferral` on a scenario's file, then `trimtab promote deferral`",
    "price": "what a start earns and a delay costs is fixed; `POST .../quote` says what a job may expect",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
