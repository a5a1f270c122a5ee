"""Deployments drawn from a population and lived alone, none refused, inside a window: for tables and for comparison.

The process is the simulator's (admission specification §2), with its random numbers in its order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.population import Population
from simulator.admission.streams import extra_cores, key_of, mixed, uniform
from trainer.admission.fitting.compiled import compiled

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
PEAK, ACTIVATED, ENDED, REQUESTS, DEAD, LAST, EVENTS = range(7)
"""Columns of what `_lives` counts; LAST is the number of cores that ended at the last instant."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Deployments before they live, arrays (N,)."""

    mu: Floats
    theta: Floats
    sig: Floats
    initial: Counts
    keys: NDArray[np.uint64]
    hours: Floats
    """From its arrival to the end of the window."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What became of them, arrays (N,); the fields that a table of machines tells too are named as in `Histories`."""

    peak: Counts
    activated: Counts
    ended: Counts
    scale_outs: Counts
    dead: NDArray[np.bool_]
    last_cores: Counts
    events: Counts
    core_hours: Floats


@compiled
def _live(
    key: np.uint64,
    size: int,
    mu: float,
    theta: float,
    sig: float,
    stop: float,
    hours: float,
    counted: Counts,
    born: Floats,
    began: Floats,
    over: Floats,
    at: int,
) -> float:
    """Live one deployment until `hours` and return its core-hours.

    Every core's beginning and end are written to `began` and `over` from `at` on, unless they have no room; a core that
    lives on ends at infinity. `born` has room for the cores that live at a time.
    """
    kept = len(began) > 0
    now, draws, alive, written, area = 0.0, np.uint64(0), size, at, 0.0
    counted[PEAK] = counted[ACTIVATED] = size
    if kept:
        born[:size] = 0.0
    while alive > 0:
        rate = alive * mu + theta + stop
        after = now - math.log(uniform(key, draws)) / rate if rate > 0.0 else np.inf
        if not after < hours:
            break
        area += alive * (after - now)
        now = after
        which = uniform(key, draws + np.uint64(1)) * rate
        third = draws + np.uint64(2)
        counted[EVENTS] += 1
        if which < alive * mu:
            if kept:
                # The number that a scale-out takes for its size says here which core it is.
                chosen = min(int(uniform(key, third) * alive), alive - 1)
                began[written], over[written] = born[chosen], now
                born[chosen] = born[alive - 1]
                written += 1
            alive -= 1
            counted[ENDED] += 1
            counted[LAST] = 1
        elif which < alive * mu + theta:
            cores = 1 + extra_cores(sig, key, third)
            if kept:
                born[alive : alive + cores] = now
            alive += cores
            counted[REQUESTS] += 1
            counted[ACTIVATED] += cores
            counted[PEAK] = max(counted[PEAK], alive)
        else:
            if kept:
                began[written : written + alive] = born[:alive]
                over[written : written + alive] = now
                written += alive
            counted[ENDED] += alive
            counted[LAST] = alive
            alive = 0
        draws += np.uint64(3)
    if alive > 0:
        area += alive * (hours - now)
        if kept:
            began[written : written + alive] = born[:alive]
            over[written : written + alive] = np.inf
    counted[DEAD] = alive == 0
    return area


@compiled
def _lives(
    keys: NDArray[np.uint64],
    initial: Counts,
    mu: Floats,
    theta: Floats,
    sig: Floats,
    lifetimes: float,
    hours: Floats,
    counted: Counts,
    area: Floats,
    began: Floats,
    over: Floats,
    at: Counts,
    most: int,
) -> None:
    born = np.empty(most if len(began) > 0 else 0)
    for i in range(len(keys)):
        start = at[i] if len(began) > 0 else 0
        area[i] = _live(
            keys[i],
            initial[i],
            mu[i],
            theta[i],
            sig[i],
            mu[i] / lifetimes,
            hours[i],
            counted[i],
            born,
            began,
            over,
            start,
        )


@compiled
def _initial(sig: Floats, keys: NDArray[np.uint64], sizes: Counts) -> None:
    for i in range(len(keys)):
        sizes[i] = 1 + extra_cores(sig[i], mixed(keys[i]), np.uint64(0))


@compiled
def _keys(seed: np.uint64, streams: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
    for i in range(len(streams)):
        keys[i] = key_of(seed, streams[i])


def uniforms(count: int, seed: int) -> Floats:
    """Return numbers (3, count) in (0, 1) for mu, lam and sig, the same for every population: see `drawn_from`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
    return np.clip(generator.random((3, count)), 1e-12, 1.0 - 1e-12)


def drawn_from(population: Population, quantiles: Floats, hours: Floats, seed: int) -> Drawn:
    """Return deployments at the given quantiles (3, N) of the population, which have `hours` (N,) to live.

    The same quantiles and seed under two populations are common random numbers.
    """
    from scipy.special import gammaincinv

    mu = gammaincinv(population.mu_shape, quantiles[0]) / population.mu_rate
    lam = gammaincinv(population.lam_shape, quantiles[1]) / population.lam_rate
    sig = gammaincinv(population.sig_shape, quantiles[2]) / population.sig_rate
    keys, initial = np.empty(len(mu), dtype=np.uint64), np.empty(len(mu), dtype=np.int64)
    _keys(np.uint64(seed), np.arange(len(mu), dtype=np.uint64), keys)
    _initial(sig, keys, initial)
    return Drawn(mu, lam * mu**population.power, sig, initial, keys, hours)


def lives_of(drawn: Drawn, lifetimes: float) -> Lives:
    """Live every deployment to the end of the window."""
    return _lived(drawn, lifetimes, np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), 0)


def cores_of(drawn: Drawn, lifetimes: float) -> tuple[Counts, Floats, Floats]:
    """Return deployment, beginning and end of every core, hours from the deployment's arrival; infinite: lives on."""
    lives = lives_of(drawn, lifetimes)
    total = int(lives.activated.sum())
    began, over = np.empty(total), np.empty(total)
    _lived(drawn, lifetimes, began, over, np.cumsum(lives.activated) - lives.activated, int(lives.peak.max()))
    return np.repeat(np.arange(len(drawn.mu)), lives.activated), began, over


def _lived(drawn: Drawn, lifetimes: float, began: Floats, over: Floats, at: Counts, most: int) -> Lives:
    counted, area = np.zeros((len(drawn.mu), 7), dtype=np.int64), np.empty(len(drawn.mu))
    _lives(
        *(drawn.keys, drawn.initial, drawn.mu, drawn.theta, drawn.sig, lifetimes, drawn.hours),
        *(counted, area, began, over, at, most),
    )
    return Lives(
        peak=counted[:, PEAK],
        activated=counted[:, ACTIVATED],
        ended=counted[:, ENDED],
        scale_outs=counted[:, REQUESTS],
        dead=counted[:, DEAD] == 1,
        last_cores=np.where(counted[:, DEAD] == 1, counted[:, LAST], 0),
        events=counted[:, EVENTS],
        core_hours=area,
    )
