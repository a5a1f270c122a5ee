"""The futures of deployments: what is believed of each, and the moments of its size at each horizon, in one batch.

Formulas: admission specification §3, §4, §8; `domain.rules.admission` holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.admission.records import LabelWeight, Prior
from domain.rules.admission.belief import (
    PRODUCTION_DROP,
    PRODUCTION_FLOOR,
    PRODUCTION_NODES,
    Floats,
    conjugate_belief,
    exact_belief,
    log_evidence,
    mix,
)
from domain.rules.admission.cluster import Moments
from domain.rules.admission.moments import Beliefs, ab_batch, na_batch
from domain.rules.admission.na import paper_moments
from domain.rules.admission.population import Belief, Population


@dataclass(frozen=True, slots=True)
class DeploymentStatistics:
    """What was seen of one deployment itself, up to now: see `population.Statistics`."""

    cores: float
    deaths: float
    core_hours: float
    scale_outs: float
    hours: float
    extra_cores: float
    size_draws: float


@dataclass(frozen=True, slots=True)
class Curves:
    """Moments of N sizes at H horizons, and scale-out requests expected per hour: each (N, H), or (H,) for their sums.

    `third` is central; third moments and requests are zeros where they are not known.
    """

    mean: Floats
    variance: Floats
    third: Floats
    requests: Floats

    @property
    def parts(self) -> tuple[Floats, Floats, Floats, Floats]:
        """All four, in order."""
        return self.mean, self.variance, self.third, self.requests

    def __getitem__(self, place: Any) -> Curves:
        """Return some of them, by rows or horizons."""
        return Curves(*(part[place] for part in self.parts))

    def __add__(self, other: Curves) -> Curves:
        """Return both together: moments of what is independent add up."""
        return Curves(*(one + two for one, two in zip(self.parts, other.parts, strict=True)))


def futures(
    population: Population,
    seen: Sequence[DeploymentStatistics],
    priors: Sequence[tuple[Prior, ...]],
    horizons_h: Floats,
    moments: Moments,
    *,
    conjugate: bool = False,
    laws: Sequence[Population | None] = (),
) -> Curves:
    """Return the curves of deployments, each with what is known of its kind before it came; see `Prior`.

    conjugate: believe that rates are independent, as the moments `paper` always do. laws: of each, that of its names in
    place of the population's; one that was learnt under another power does not count.
    """
    owner = np.array([i for i, kinds in enumerate(priors) for _ in kinds or (None,)], dtype=np.int64)
    each = [prior for kinds in priors for prior in (kinds or (Prior(),))]
    rows = _rows([seen[i] for i in owner], each)
    sizes = np.array([seen[i].cores for i in owner], dtype=np.float64)
    each_law = _laws(population, [laws[i] if laws else None for i in owner])
    found = _moments(population, each_law, sizes, rows, horizons_h, moments, conjugate=conjugate)
    if owner.size == len(seen):
        return found
    weight = np.concatenate([_weights(population, s, kinds) for s, kinds in zip(seen, priors, strict=True)])
    return _mixed(found, owner, weight, len(seen))


def label_weights(
    population: Population, seen: DeploymentStatistics, priors: tuple[Prior, ...]
) -> tuple[LabelWeight, ...]:
    """Return the chance of each kind after what was seen of the deployment itself (§8)."""
    chances = _weights(population, seen, priors)
    return tuple(LabelWeight(prior.label, float(chance)) for prior, chance in zip(priors, chances, strict=True))


def _rows(seen: Sequence[DeploymentStatistics], priors: Sequence[Prior]) -> Floats:
    """Return (7, N): deaths, core-hours, scale-outs, hours, gap hours, extra cores, size draws."""
    rows = [
        (
            s.deaths + p.deaths,
            s.core_hours + p.core_hours,
            s.scale_outs + p.scale_outs,
            s.hours,
            p.gap_hours,
            s.extra_cores + p.extra_cores,
            s.size_draws + p.size_draws,
        )
        for s, p in zip(seen, priors, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 7).T


def _laws(population: Population, laws: Sequence[Population | None]) -> Floats:
    """Return (8, N): the law of each, with the power and the lifetimes of the population."""
    numbers = {
        law: astuple(
            replace(law, lifetimes=population.lifetimes)
            if law is not None and law.power == population.power
            else population
        )
        for law in set(laws)
    }
    return np.array([numbers[law] for law in laws], dtype=np.float64).reshape(len(laws), 8).T


def _conjugate_each(laws: Floats, rows: Floats) -> list[Belief]:
    return [conjugate_belief(*(float(part) for part in column)) for column in np.vstack([laws, rows]).T]


def _conjugate(laws: Floats, rows: Floats) -> Beliefs:
    each = np.array(_conjugate_each(laws, rows)).reshape(rows.shape[1], 7)
    shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = each.T
    return shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate


def _moments(
    population: Population,
    laws: Floats,
    sizes: Floats,
    rows: Floats,
    horizons_h: Floats,
    moments: Moments,
    *,
    conjugate: bool,
) -> Curves:
    power, lifetimes = population.power, population.lifetimes
    if moments is Moments.PAPER:
        mean, variance = np.empty((sizes.size, horizons_h.size)), np.empty((sizes.size, horizons_h.size))
        for i, alone in enumerate(_conjugate_each(laws, rows)):
            paper_moments(float(sizes[i]), *alone, power, lifetimes, horizons_h, mean[i], variance[i])
        return Curves(mean, variance, np.zeros_like(mean), np.zeros_like(mean))
    belief = _conjugate(laws, rows) if conjugate else exact_belief(*laws, *rows)
    if moments is Moments.NA:
        mean, variance = na_batch(sizes, belief, power, lifetimes, horizons_h)
        return Curves(mean, variance, np.zeros_like(mean), np.zeros_like(mean))
    fast = moments is Moments.AB_FAST
    return Curves(*ab_batch(sizes, belief, power, lifetimes, horizons_h, fast=fast))


def _weights(population: Population, seen: DeploymentStatistics, priors: tuple[Prior, ...]) -> Floats:
    if len(priors) < 2:
        return np.ones(1)
    blank = DeploymentStatistics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    count = len(priors)
    after = _log_evidence(population, _rows([seen] * count, priors))
    before = _log_evidence(population, _rows([blank] * count, priors))
    log_weight = np.log([prior.weight for prior in priors]) + after - before
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(weight / weight.sum())


def _log_evidence(population: Population, rows: Floats) -> Floats:
    """Return the log of the chance of what was seen, but for what all kinds have in common (§3)."""
    mu, weight = np.empty(PRODUCTION_NODES), np.empty(PRODUCTION_NODES)
    belief = exact_belief(*_laws(population, [None] * rows.shape[1]), *rows)
    power, drop, floor = population.power, PRODUCTION_DROP, PRODUCTION_FLOOR
    found = []
    for kind in range(rows.shape[1]):
        shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = (float(part[kind]) for part in belief)
        of_lam = (lam_shape, lam_rate, exposure_h)
        found.append(log_evidence(shape, rate, *of_lam, size_shape, size_rate, power, drop, floor, mu, weight))
    return np.array(found)


def _mixed(curves: Curves, owner: NDArray[np.int64], weight: Floats, count: int) -> Curves:
    """Return the curves of mixtures: row i of the result mixes the rows whose owner is i (§8)."""
    first = np.searchsorted(owner, np.arange(count))
    mean, variance, third, requests = curves[first].parts
    share = weight[first]
    for row in np.setdiff1d(np.arange(owner.size), first):
        i = owner[row]
        share[i] += weight[row]
        mine = 1.0 - weight[row] / share[i]
        mix(mine, mean[i], variance[i], third[i], curves.mean[row], curves.variance[row], curves.third[row])
        requests[i] = mine * requests[i] + (1.0 - mine) * curves.requests[row]
    return Curves(mean, variance, third, requests)
