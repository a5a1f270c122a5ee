"""The deployments of a run, drawn before any policy is asked: when they come, what they are, what is known of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.admission.population import Population
from simulator.admission.layout import ARRIVAL, HALVES, ONE_KIND, WEIGHED
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
    labels: str = "labelled"
    weights: str = "evidence"
    scale_outs: str = "gaps"


def draw_run(
    cluster: Cluster,
    seed: int,
    *,
    observations: int = 0,
    hours: float = HOURS_PER_RUN,
    labels: str = "labelled",
    weights: str = "evidence",
    scale_outs: str = "gaps",
) -> Run:
    """Draw the arrivals of a run (admission specification §2, §8).

    observations: of each of an arrival's processes as many were seen before: core lifetimes, scale-outs, sizes asked
    for. scale_outs: seen as `gaps` between them, censored at 1e6 hours, or as `counts` of as many single hours.
    labels: `labelled`, or `unlabelled`: the user has two kinds of deployments, both seen so often, and what comes is
    one of them without saying which. weights: of the two kinds by `evidence`, or `static`, one half each. The same seed
    gives the same deployments with the same futures whatever else is asked for. Raises BadInput.
    """
    if seed < 0:
        raise BadInput("seed", seed, "give a whole number from 0")
    if observations < 0:
        raise BadInput("observations", observations, "give a whole number from 0")
    if not (np.isfinite(hours) and hours > 0):
        raise BadInput("hours", hours, "give a number above 0")
    for name, word, words in (
        ("labels", labels, ("labelled", "unlabelled")),
        ("weights", weights, ("evidence", "static")),
        ("scale_outs", scale_outs, ("gaps", "counts")),
    ):
        if word not in words:
            raise BadInput(name, word, f"give {words[0]} or {words[1]}")
    children = np.random.SeedSequence(seed).spawn(7)
    timing, kinds, sizes, streams, before = (np.random.Generator(np.random.PCG64(child)) for child in children[:5])
    times = _arrival_times(timing, cluster.arrival_rate, hours)
    count = len(times)
    arrivals = np.zeros(count, dtype=ARRIVAL)
    arrivals["time"] = times
    _draw_kinds(kinds, arrivals, cluster.population)
    if cluster.initial_size == "empirical":
        arrivals["size"] = sizes.choice(np.asarray(cluster.sizes, dtype=np.int64), count)
    else:
        arrivals["size"] = 1 + sizes.poisson(arrivals["sig"])
    arrivals["stream"] = streams.integers(0, 2**64, count, dtype=np.uint64)
    if observations:
        _observe(before, arrivals, observations, scale_outs)
    arrivals["kinds"] = ONE_KIND
    if labels == "unlabelled":
        other = np.zeros(count, dtype=ARRIVAL)
        of_other, before_other = (np.random.Generator(np.random.PCG64(child)) for child in children[5:])
        _draw_kinds(of_other, other, cluster.population)
        if observations:
            _observe(before_other, other, observations, scale_outs)
        for name in ("deaths", "core_hours", "requests", "gap_hours", "extra", "sizes"):
            arrivals[f"other_{name}"] = other[f"seen_{name}"]
        arrivals["kinds"] = WEIGHED if weights == "evidence" else HALVES
    return Run(cluster, seed, hours, observations, arrivals, labels, weights, scale_outs)


def _draw_kinds(generator: np.random.Generator, arrivals: NDArray[np.void], law: Population) -> None:
    """Fill in the rates of each arrival's kind."""
    mu, lam, sig = generator.spawn(3)
    count = len(arrivals)
    arrivals["mu"] = mu.gamma(law.mu_shape, 1.0 / law.mu_rate, count)
    arrivals["lam"] = lam.gamma(law.lam_shape, 1.0 / law.lam_rate, count)
    arrivals["sig"] = sig.gamma(law.sig_shape, 1.0 / law.sig_rate, count)
    arrivals["theta"] = arrivals["lam"] * arrivals["mu"] ** law.power


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


def _observe(generator: np.random.Generator, arrivals: NDArray[np.void], count: int, scale_outs: str) -> None:
    """Fill in what was seen of each arrival's processes before it came (admission specification §8)."""
    lifetimes, gaps, sizes = generator.spawn(3)
    shape = (len(arrivals), count)
    tiny = np.finfo(np.float64).tiny
    arrivals["seen_deaths"] = count
    arrivals["seen_core_hours"] = lifetimes.exponential(size=shape).sum(axis=1) / np.maximum(arrivals["mu"], tiny)
    if scale_outs == "counts":
        arrivals["seen_requests"] = gaps.poisson(arrivals["theta"][:, None], size=shape).sum(axis=1)
        arrivals["seen_gap_hours"] = count
    else:
        waits = gaps.exponential(size=shape) / np.maximum(arrivals["theta"], tiny)[:, None]
        arrivals["seen_requests"] = (waits <= LONGEST_GAP_H).sum(axis=1)
        arrivals["seen_gap_hours"] = np.minimum(waits, LONGEST_GAP_H).sum(axis=1)
    arrivals["seen_extra"] = sizes.poisson(arrivals["sig"] * count)
    arrivals["seen_sizes"] = count
