"""The forecast of one deployment in the simulator: the rules of the domain, compiled."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.belief import PRODUCTION_DROP, PRODUCTION_FLOOR, PRODUCTION_NODES
from domain.rules.admission.compiled import compile_all
from domain.rules.admission.population import Belief, Population
from domain.rules.admission.rule import METHODS as METHODS
from simulator.admission.elementary import ELEMENTARY
from simulator.admission.engine import WEIGHED
from simulator.compilation import compiled, inlined

Floats = NDArray[np.float64]

RULES = compile_all(partial(inlined, arrays=True), ELEMENTARY)
"""The functions of domain.rules.admission: there is no other definition of a formula in this package."""
_exact_belief, _conjugate_belief = RULES.exact_belief, RULES.conjugate_belief
_ab_moments, _na_moments, _paper_moments = RULES.ab_moments, RULES.na_moments, RULES.paper_moments
_lam_count, _size_count, _node_count = RULES.lam_count, RULES.size_count, RULES.node_count
_log_evidence, _odds_share, _mix = RULES.log_evidence, RULES.odds_share, RULES.mix

AB_FAST, AB, NA, PAPER = range(4)


class Prior(NamedTuple):
    """The fields of a `Population` in order, as compiled code takes them."""

    mu_shape: float
    mu_rate: float
    lam_shape: float
    lam_rate: float
    sig_shape: float
    sig_rate: float
    power: float
    lifetimes: float


def prior_of(law: Population) -> Prior:
    """Return the population for compiled code."""
    return Prior(*astuple(law))


class DeploymentStatistics(NamedTuple):
    """The statistics of one deployment (admission specification §3)."""

    size: int
    deaths: int
    core_hours: float
    requests: int
    hours: float
    gap_hours: float
    extra: int
    sizes: int


class Sums(NamedTuple):
    """Curves of one deployment (H,), or of N of them (N, H).

    third: third central moments; requests: scale-outs expected per hour; both without horizons unless wanted.
    """

    mean: Floats
    variance: Floats
    third: Floats
    requests: Floats


class Room(NamedTuple):
    """Scratch space: points of mu and their weights, and the curves of the other kind of a mixture."""

    nodes: Floats
    weights: Floats
    other: Sums


def room_for(horizons: int, thirds: int, requests: int) -> Room:
    """Return room for curves at so many horizons; thirds, requests: as many, or 0 where they are not wanted."""
    points = (np.zeros(PRODUCTION_NODES), np.zeros(PRODUCTION_NODES))
    other = Sums(np.zeros(horizons), np.zeros(horizons), np.zeros(thirds), np.zeros(requests))
    return Room(*points, other)


@compiled
def believed(prior: Prior, seen: DeploymentStatistics, conjugate: bool) -> Belief:
    """Return the belief given the statistics, in the form of `domain.rules.admission.belief`."""
    everything = (
        *(prior.mu_shape, prior.mu_rate, prior.lam_shape, prior.lam_rate, prior.sig_shape, prior.sig_rate),
        *(prior.power, prior.lifetimes, float(seen.deaths), seen.core_hours, float(seen.requests), seen.hours),
        *(seen.gap_hours, float(seen.extra), float(seen.sizes)),
    )
    belief: Belief = _conjugate_belief(*everything) if conjugate else _exact_belief(*everything)
    return belief


@compiled
def forecast(
    method: int,
    conjugate: bool,
    prior: Prior,
    seen: DeploymentStatistics,
    times: Floats,
    room: Room,
    out: Sums,
) -> None:
    """Fill in the curves of one deployment after `times` hours, rising and above 0 (specification §4).

    Third moments and requests are zero for the methods NA and PAPER, which do not give them.
    """
    belief = believed(prior, seen, conjugate)
    size, nodes = float(seen.size), _node_count(belief[0])
    mu, weight = room.nodes[:nodes], room.weights[:nodes]
    out.third[:] = 0.0
    out.requests[:] = 0.0
    if method == PAPER:
        _paper_moments(size, *belief, prior.power, prior.lifetimes, times, out.mean, out.variance)
    elif method == NA:
        _na_moments(
            *(size, *belief, prior.power, prior.lifetimes, times, PRODUCTION_DROP, PRODUCTION_FLOOR),
            *(mu, weight, out.mean, out.variance),
        )
    else:
        lam_points, size_points = 1, 1
        if method == AB:
            lam_points, size_points = _lam_count(belief[2]), _size_count(belief[5])
        _ab_moments(
            *(size, *belief, prior.power, prior.lifetimes, times, PRODUCTION_DROP, PRODUCTION_FLOOR),
            *(lam_points, size_points, mu, weight, out.mean, out.variance, out.third, out.requests),
        )


@compiled
def _evidence(prior: Prior, seen: DeploymentStatistics, room: Room) -> float:
    belief = believed(prior, seen, False)
    nodes = _node_count(belief[0])
    value: float = _log_evidence(
        *(*belief, prior.power, PRODUCTION_DROP, PRODUCTION_FLOOR, room.nodes[:nodes], room.weights[:nodes])
    )
    return value


@compiled
def share_of_first(
    kinds: int,
    prior: Prior,
    one: DeploymentStatistics,
    one_before: DeploymentStatistics,
    two: DeploymentStatistics,
    two_before: DeploymentStatistics,
    room: Room,
) -> float:
    """Return the chance that a deployment is of the first of two kinds, half and half before it came (§8).

    one, two: the observations of either kind if the deployment is of it; before: without the deployment itself.
    """
    if kinds != WEIGHED:
        return 0.5
    odds = _evidence(prior, one, room) - _evidence(prior, one_before, room)
    odds = odds - _evidence(prior, two, room) + _evidence(prior, two_before, room)
    share: float = _odds_share(odds)
    return share


@compiled
def forecast_mixed(
    method: int,
    conjugate: bool,
    prior: Prior,
    share: float,
    one: DeploymentStatistics,
    two: DeploymentStatistics,
    times: Floats,
    room: Room,
    out: Sums,
) -> None:
    """Fill in the curves of a deployment that is of the first kind with the chance `share`, else of the second."""
    forecast(method, conjugate, prior, two, times, room, room.other)
    forecast(method, conjugate, prior, one, times, room, out)
    other = room.other
    _mix(share, out.mean, out.variance, out.third, other.mean, other.variance, other.third)
    for k in range(len(out.requests)):
        out.requests[k] = share * out.requests[k] + (1.0 - share) * other.requests[k]
