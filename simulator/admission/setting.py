"""What of a rule and a cluster stays the same during a run, as compiled code takes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from domain.rules.admission.policies import horizon_hours
from simulator.admission.arrivals import Run
from simulator.admission.moments import METHODS, PAPER, Floats, Prior, prior_of
from simulator.admission.rule import Rule, kappas_of

SPREAD, GAMMA, SGAMMA, BUDGET = range(4)
"""What a rule asks of the sums: mean and standard deviations (zeroth, first and second too), a tail, all the tails."""


class Freshness(NamedTuple):
    """When a deployment's curves are out of date (admission specification §5.2)."""

    tolerance: float
    """Share by which its size may have changed, and share of its age that may have passed; 0 for always."""
    dead_band: float
    """Cores by which its size may have changed in any case, unless the tolerance is 0."""
    reuse_h: float
    """Hours for which sums whose answer is certain may turn arrivals away, at the horizon that failed last, without
    being brought up to date; none when the tolerance is 0."""


class Setting(NamedTuple):
    """A rule, its cluster and the run's seed."""

    seed: np.uint64
    moments: bool
    """Whether the rule looks at curves at all."""
    question: int
    limit: float
    kappas: Floats
    risk: float
    hours: Floats
    """How many hours each horizon stands for."""
    feedback: bool
    sla: float
    marginal: float
    drawn: bool
    """Whether a deployment's first size is a draw of its request-size law, which then tells of that law (§3)."""
    freshness: Freshness
    method: int
    fresh_method: int
    """For arrivals of which nothing was seen."""
    conjugate: bool
    prior: Prior


def setting_of(run: Run, rule: Rule, horizons: Floats) -> Setting:
    """Return the setting for a run under a rule."""
    cluster = run.cluster
    limit = float(cluster.capacity if rule.limit is None else rule.limit)
    method = METHODS.index(rule.moments)
    return Setting(
        np.uint64(run.seed),
        rule.looks_ahead,
        {"gamma": GAMMA, "sgamma": SGAMMA, "budget": BUDGET}.get(rule.kind, SPREAD),
        # The first-moment rule asks for less than its limit, the second for no more.
        float(np.nextafter(limit, -np.inf)) if rule.kind == "first" else limit,
        kappas_of(rule, horizons) if rule.kind == "second" else np.zeros(len(horizons)),
        rule.risk,
        horizon_hours(horizons),
        rule.feedback,
        cluster.sla,
        rule.marginal_cores,
        cluster.initial_size == "drawn",
        Freshness(rule.tolerance, rule.dead_band_cores, rule.reuse_h),
        method,
        METHODS.index(rule.fresh) if rule.fresh else method,
        method == PAPER or rule.belief == "conjugate",
        prior_of(cluster.population),
    )
