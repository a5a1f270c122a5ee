"""The rules of `domain.rules.admission.rule` for compiled code: horizons, kappa at each, and what a run keeps fixed."""

from __future__ import annotations

from dataclasses import astuple
from typing import NamedTuple

import numpy as np

from domain.rules.admission import rule as texts
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import BANDS_H, horizon_hours, log_grid, paper_grid
from domain.rules.admission.rule import Rule
from simulator.admission.arrivals import Run
from simulator.admission.moments import METHODS, PAPER, Prior, prior_of

SPREAD, GAMMA, SGAMMA, BUDGET = range(4)
"""The form of a rule: mean and standard deviations (zeroth, first and second too), one tail, all the tails."""


class Freshness(NamedTuple):
    """When a deployment's curves are out of date (admission specification §5.2)."""

    tolerance: float
    """Share by which its size may have changed, and share of its age that may have passed; 0 for always."""
    dead_band: float
    """Cores by which its size may have changed in any case, unless the tolerance is 0."""
    reuse_h: float
    """Hours for which sums whose answer is certain may refuse arrivals, at the horizon that failed last, without
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
    """The hours that each horizon covers."""
    feedback: bool
    sla: float
    marginal: float
    drawn: bool
    """Whether a deployment's first size is a draw of its request-size law, which is then an observation of it (§3)."""
    freshness: Freshness
    method: int
    fresh_method: int
    """For arrivals without prior observations."""
    conjugate: bool
    prior: Prior
    laws: Floats
    """(L, 6): the Gamma laws that arrivals may be judged by instead; see `Run.laws`."""


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
        np.array([astuple(law)[:6] for law in run.laws], dtype=np.float64).reshape(len(run.laws), 6),
    )


__all__ = ["Rule", "horizons_of", "kappas_of", "rule_of"]

TOLERANCE, DEAD_BAND_CORES = 0.3, 6.0
"""Looser than an agent's: curves that a decision depends on are renewed in any case."""


def rule_of(text: str) -> Rule:
    """Return the rule of a text such as zeroth:14000 or second:2.5 ; raises BadInput."""
    return texts.rule_of(text, tolerance=TOLERANCE, dead_band_cores=DEAD_BAND_CORES)


def horizons_of(grid: str) -> Floats:
    """Return the horizons in hours, rising (admission specification §5)."""
    return log_grid() if grid == "log" else paper_grid()


def kappas_of(rule: Rule, horizons: Floats) -> Floats:
    """Return kappa by horizon."""
    band = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons)
    return rule.kappa * np.asarray(rule.bands)[np.minimum(band, len(BANDS_H) - 1)]
