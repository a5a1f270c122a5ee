"""What is forecast of one deployment in the simulator: the rules of the domain, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.belief import PRODUCTION_DROP, PRODUCTION_FLOOR, PRODUCTION_NODES
from domain.rules.admission.compiled import compile_all
from domain.rules.admission.population import Belief, Population
from domain.rules.admission.rule import METHODS as METHODS
from simulator.admission.compiled import compiled
from simulator.admission.layout import WEIGHED

Floats = NDArray[np.float64]

RULES = compile_all(compiled)
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
    return Prior(
        *(law.mu_shape, law.mu_rate, law.lam_shape, law.lam_rate, law.sig_shape, law.sig_rate),
        *(law.power, law.lifetimes),
    )


class Seen(NamedTuple):
    """What is known of one deployment: the statistics of admission specification §3."""

    size: int
    deaths: int
    core_hours: float
    requests: int
    hours: float
    gap_hours: float
    extra: int
    sizes: int


class Room(NamedTuple):
    """Room to work in: points of mu and their weights, and the curves of the other kind of a mixture."""

    nodes: Floats
    weights: Floats
    mean: Floats
    variance: Floats
    third: Floats
    requests: Floats


def room_for(horizons: int, thirds: int, requests: int) -> Room:
    """Return room for curves at so many horizons; thirds, requests: as many, or 0 where they are not wanted."""
    points = (np.zeros(PRODUCTION_NODES), np.zeros(PRODUCTION_NODES))
    return Room(*points, np.zeros(horizons), np.zeros(horizons), np.zeros(thirds), np.zeros(requests))


@compiled
def believed(prior: Prior, seen: Seen, conjugate: bool) -> Belief:
    """Return the belief after what was seen, in the form of `domain.rules.admission.belief`."""
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
    seen: Seen,
    times: Floats,
    room: Room,
    mean: Floats,
    variance: Floats,
    third: Floats,
    requests: Floats,
) -> None:
    """Fill in the curves of one deployment after `times` hours, rising and above 0 (specification §4).

    third, requests: third central moment and scale-out requests per hour; of length 0 unless wanted, and zero for the
    methods NA and PAPER, which do not tell them.
    """
    belief = believed(prior, seen, conjugate)
    size, nodes = float(seen.size), _node_count(belief[0])
    mu, weight = room.nodes[:nodes], room.weights[:nodes]
    third[:] = 0.0
    requests[:] = 0.0
    if method == PAPER:
        _paper_moments(size, *belief, prior.power, prior.lifetimes, times, mean, variance)
    elif method == NA:
        _na_moments(
            *(size, *belief, prior.power, prior.lifetimes, times, PRODUCTION_DROP, PRODUCTION_FLOOR),
            *(mu, weight, mean, variance),
        )
    else:
        lam_points, size_points = 1, 1
        if method == AB:
            lam_points, size_points = _lam_count(belief[2]), _size_count(belief[5])
        _ab_moments(
            *(size, *belief, prior.power, prior.lifetimes, times, PRODUCTION_DROP, PRODUCTION_FLOOR),
            *(lam_points, size_points, mu, weight, mean, variance, third, requests),
        )


@compiled
def _evidence(prior: Prior, seen: Seen, room: Room) -> float:
    belief = believed(prior, seen, False)
    nodes = _node_count(belief[0])
    value: float = _log_evidence(
        *(*belief, prior.power, PRODUCTION_DROP, PRODUCTION_FLOOR, room.nodes[:nodes], room.weights[:nodes])
    )
    return value


@compiled
def share_of_first(
    kinds: int, prior: Prior, one: Seen, one_before: Seen, two: Seen, two_before: Seen, room: Room
) -> float:
    """Return the chance that a deployment is of the first of two kinds, half and half before it came (§8).

    one, two: all that was seen of either kind if the deployment is of it; before: without the deployment itself.
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
    one: Seen,
    two: Seen,
    times: Floats,
    room: Room,
    mean: Floats,
    variance: Floats,
    third: Floats,
    requests: Floats,
) -> None:
    """Fill in the curves of a deployment that is of the first kind with the chance `share`, else of the second."""
    forecast(method, conjugate, prior, two, times, room, room.mean, room.variance, room.third, room.requests)
    forecast(method, conjugate, prior, one, times, room, mean, variance, third, requests)
    _mix(share, mean, variance, third, room.mean, room.variance, room.third)
    for k in range(len(requests)):
        requests[k] = share * requests[k] + (1.0 - share) * room.requests[k]
