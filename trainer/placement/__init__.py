"""Trains and evaluates placement: on which machine a request runs."""

ABSENT = {
    "tune": "the vector of a policy is found by `trimtab train placement`",
    "fit": "requests are played as they came: write them as an instance's file for `trimtab simulate placement`",
    "promote": "the settings of the pool name its policy: give the file that `trimtab train placement` wrote",
    "learn": "learn from an instance's file by `trimtab train placement`",
    "price": "the hosts that requests cost are given by `trimtab simulate placement`",
}
"""Verbs of `trimtab` that it does not take, and what to do instead."""
