"""The deployments of a run, drawn before any policy is asked: when they come, what they are, what is known of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from simulator.admission.layout import ARRIVAL
from simulator.admission.presets import HOURS_PER_RUN, Cluster

LONGEST_GAP_H = 1e6
"""A gap between scale-outs is observed no longer than this; then it is censored (admission specification §8)."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run before it is played: its arrivals, records of layout ARRIVAL in order of time."""

    cluster: Cluster
    seed: int
    hours: float
    observations: int
    arrivals: NDArray[np.void]


def draw_run(cluster: Cluster, seed: int, *, observations: int = 0, hours: float = HOURS_PER_RUN) -> Run:
    """Draw the arrivals of a run (admission specification §2, §8).

    observations: of each of an arrival's processes as many were seen before: core lifetimes, gaps between scale-outs,
    request sizes. The same seed gives the same deployments whatever the number of observations. Raises BadInput.
    """
    if seed < 0:
        raise BadInput("seed", seed, "give a whole number from 0")
    if observations < 0:
        raise BadInput("observations", observations, "give a whole number from 0")
    if not (np.isfinite(hours) and hours > 0):
        raise BadInput("hours", hours, "give a number above 0")
    timing, kinds, sizes, streams, before = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(5)
    )
    times = _arrival_times(timing, cluster.arrival_rate, hours)
    count = len(times)
    arrivals = np.zeros(count, dtype=ARRIVAL)
    arrivals["time"] = times
    law = cluster.population
    mu, lam, sig = kinds.spawn(3)
    arrivals["mu"] = mu.gamma(law.mu_shape, 1.0 / law.mu_rate, count)
    arrivals["lam"] = lam.gamma(law.lam_shape, 1.0 / law.lam_rate, count)
    arrivals["sig"] = sig.gamma(law.sig_shape, 1.0 / law.sig_rate, count)
    arrivals["theta"] = arrivals["lam"] * arrivals["mu"] ** law.power
    arrivals["size"] = 1 + sizes.poisson(arrivals["sig"])
    arrivals["stream"] = streams.integers(0, 2**64, count, dtype=np.uint64)
    if observations:
        _observe(before, arrivals, observations)
    return Run(cluster, seed, hours, observations, arrivals)


def _arrival_times(generator: np.random.Generator, rate: float, hours: float) -> NDArray[np.float64]:
    if rate <= 0.0:
        return np.zeros(0)
    parts, last = [], 0.0
    while last < hours:
        part = last + np.cumsum(generator.exponential(1.0 / rate, 4096))
        parts.append(part)
        last = float(part[-1])
    times = np.concatenate(parts)
    return times[times < hours]


def _observe(generator: np.random.Generator, arrivals: NDArray[np.void], count: int) -> None:
    """Fill in what was seen of each arrival's processes before it came (admission specification §8)."""
    lifetimes, gaps, sizes = generator.spawn(3)
    shape = (len(arrivals), count)
    tiny = np.finfo(np.float64).tiny
    arrivals["seen_deaths"] = count
    arrivals["seen_core_hours"] = lifetimes.exponential(size=shape).sum(axis=1) / np.maximum(arrivals["mu"], tiny)
    waits = gaps.exponential(size=shape) / np.maximum(arrivals["theta"], tiny)[:, None]
    arrivals["seen_requests"] = (waits <= LONGEST_GAP_H).sum(axis=1)
    arrivals["seen_gap_hours"] = np.minimum(waits, LONGEST_GAP_H).sum(axis=1)
    arrivals["seen_extra"] = sizes.poisson(arrivals["sig"] * count)
    arrivals["seen_sizes"] = count
