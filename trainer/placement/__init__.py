"""Trains and evaluates placement: on which machine a request runs."""

ABSENT = {
    "tune": "the vector of a policy is found by `trimtab train placement`",
    "fit": "requests are played as they came: write them as an instance's file for `trimtab simulate placement`",
    "price": "the hosts that requests cost are given by `trimtab simulate placement`",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
