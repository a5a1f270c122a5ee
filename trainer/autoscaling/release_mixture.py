"""The loads that the release policy is trained and chosen on: random batches, their shifts, and logs as recorded.

Every trace is drawn from one seed, so training, selection and reports never share one (autoscaler specification §7.1,
§11, §12.6). Nothing here is taken from the recorded windows that are reported: `log_like` draws the marks that job
logs have in common (§7.3): few users, parallel jobs split into one-core jobs, a working day, very unequal run times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from domain.workload import DEFAULT_RAM_GB, Trace, make_trace
from simulator.workloads.synthetic import train_rand

HOUR_S = 3600.0
FAMILIES = ("random", "longer", "burst", "idle", "log")
SHARES = (0.4, 0.12, 0.12, 0.12, 0.24)
"""Chance of each family in training."""
LONGEST_JOB_S = 4.0 * HOUR_S
MOST_JOBS = 8000
CALL_S = 60.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Traces with the family of each."""

    traces: tuple[Trace, ...]
    families: tuple[str, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """Chance of each trace, so that families have their SHARES."""
        count = {family: self.families.count(family) for family in FAMILIES}
        share = dict(zip(FAMILIES, SHARES, strict=True))
        return tuple(share[family] / count[family] for family in self.families)


def mixture(first_seed: int, per_family: int, fleet_cores: int) -> Mixture:
    """Return `per_family` traces of each family; seed `first_seed` + k draws the k-th of all.

    fleet_cores: cores of the fleet at its limits; batches are scaled from the 140 cores that `train_rand` is made for.
    """
    traces, families = [], []
    for number, family in enumerate(FAMILIES):
        for k in range(per_family):
            traces.append(load_of(family, first_seed + number * per_family + k, fleet_cores))
            families.append(family)
    return Mixture(tuple(traces), tuple(families))


def load_of(family: str, seed: int, fleet_cores: int) -> Trace:
    """Return a trace of a family of FAMILIES.

    random: `train_rand`. longer: the same with run times up to 2.5 times as long. burst: one of its batches up to 12
    times as large. idle: its first hour, then hours with a short job now and then. log: see `log_like`.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    if family == "log":
        return log_like(seed, fleet_cores)
    trace = _thinned(train_rand(seed), fleet_cores / 140.0, rng)
    if family == "longer":
        return replace(trace, name=f"{trace.name}-longer", service_s=trace.service_s * rng.uniform(1.2, 2.5))
    if family == "burst":
        return _burst(trace, int(rng.integers(4, 13)), rng)
    if family == "idle":
        return _idle(trace, rng)
    return trace


def log_like(seed: int, fleet_cores: int) -> Trace:
    """Return jobs as a compressed log of a parallel machine has them.

    Submissions come over 2 to 4 hours, at a rate that swells and ebbs; each is one job, or a parallel one split into 2
    to 64 one-core jobs. Run times are lognormal with a median of 8 to 150 s and a sigma of 1 to 2.2, up to four hours.
    Their work is 10 to 60 % of what `fleet_cores` do in that time.
    """
    rng = np.random.default_rng([seed, len(FAMILIES)])
    span_s = rng.uniform(2.0, 4.0) * HOUR_S
    work_core_s = math.exp(rng.uniform(math.log(0.1), math.log(0.6))) * fleet_cores * span_s
    median_s, sigma = math.exp(rng.uniform(math.log(8.0), math.log(150.0))), rng.uniform(1.0, 2.2)
    parallel, widest = rng.uniform(0.0, 0.8), int(rng.integers(2, 7))
    submissions = MOST_JOBS
    service_s = np.minimum(rng.lognormal(math.log(median_s), sigma, size=submissions), LONGEST_JOB_S)
    width = np.where(rng.random(submissions) < parallel, 2 ** rng.integers(1, widest + 1, size=submissions), 1)
    enough = int(np.searchsorted(np.cumsum(service_s * width), work_core_s)) + 1
    few = int(np.searchsorted(np.cumsum(width), MOST_JOBS))
    kept = max(min(enough, few, submissions), 1)
    depth, phase, waves = rng.uniform(0.0, 0.9), rng.uniform(0.0, 2.0 * math.pi), rng.uniform(0.5, 3.0)
    at = np.linspace(0.0, 1.0, 2000)
    rate = 1.0 + depth * np.sin(2.0 * math.pi * waves * at + phase)
    arrival_s = np.interp(np.sort(rng.random(kept)), np.cumsum(rate) / rate.sum(), at) * span_s
    arrival_s -= arrival_s[0]
    return make_trace(f"log-like-{seed}", np.repeat(arrival_s, width[:kept]), np.repeat(service_s[:kept], width[:kept]))


def _thinned(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    if share >= 1.0:
        return trace
    kept = rng.random(trace.jobs) < share
    kept[-1] = True
    return _trace(trace.name, trace.arrival_s[kept] - trace.arrival_s[kept][0], trace.service_s[kept])


def _burst(trace: Trace, factor: int, rng: np.random.Generator) -> Trace:
    batches = np.unique(trace.arrival_s)
    struck = np.flatnonzero(trace.arrival_s == batches[int(rng.integers(batches.size // 4, batches.size - 1))])
    more = rng.choice(struck, size=(factor - 1) * struck.size)
    return _trace(
        f"{trace.name}-burst",
        np.append(trace.arrival_s, trace.arrival_s[more]),
        np.append(trace.service_s, trace.service_s[more]),
    )


def _idle(trace: Trace, rng: np.random.Generator) -> Trace:
    early = trace.arrival_s < HOUR_S
    calls = HOUR_S + np.cumsum(rng.uniform(0.5, 3.0, size=4)) * HOUR_S
    return _trace(
        f"{trace.name}-idle",
        np.append(trace.arrival_s[early], calls),
        np.append(trace.service_s[early], np.full(calls.size, CALL_S)),
    )


def _trace(name: str, arrival_s: Floats, service_s: Floats) -> Trace:
    jobs = arrival_s.size
    return make_trace(
        name, arrival_s, service_s, width=np.ones(jobs, dtype=np.int64), ram_gb=np.full(jobs, DEFAULT_RAM_GB)
    )
