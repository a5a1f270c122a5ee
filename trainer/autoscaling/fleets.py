"""Fleets at large: worlds and loads drawn from one distribution, and the queue rule tuned for each of them.

Training draws fleets of 1 to 9 VM types except 5 and 7; those, and 10 to 12 types and limits above 200, are held out.
Everything follows from one seed. Seeds of loads: a world's own trace, then those that its rule is tuned on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.fleet import VmType
from domain.units import HOUR_S
from domain.workload import DEFAULT_RAM_GB, Trace, make_trace
from simulator.autoscaling.branching import BranchedEpisodes, RuleSetting
from simulator.autoscaling.configuration import (
    Billing,
    CooldownScope,
    CpuSampling,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)

Floats = NDArray[np.float64]

TRAINED_TYPES, HELD_OUT_TYPES = (1, 2, 3, 4, 6, 8, 9), (5, 7, 10, 11, 12)
CORES = (1, 2, 4, 8, 16, 32, 48, 64, 96)
MOST_LIMIT, MOST_CORES, MOST_JOBS = 200, 6_000, 20_000
SHORTEST_JOB_S, LONGEST_JOB_S = 5.0, 6 * HOUR_S
LOADS = ("batch", "diurnal", "bursty", "log")
HORIZONS_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
IDLE_S = (0.0, 120.0, 300.0, 600.0)
# How a fleet's own log is cut. Here, for who reads a record needs them without torch.
LEFT_OUT = 0.4
"""Share of the windows, the later ones, that only judge."""
LEAST_WINDOWS = 4
"""Windows to learn from, and windows to judge by, at least."""
DAYS, WINDOWS = 8, 16
"""Logs of so many days in all are cut into days, shorter ones into so many windows, of an hour or more."""
TUNED_ON = 4
"""Loads of a world that its rule is tuned on; none of them is the one it is measured on."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A drawn world with what fixes its loads.

    load: of LOADS. work_core_s, span_s: what a load asks for in all, and over how long. length_s, sigma: median and
    spread of job lengths. sizes_known: whether the work of waiting jobs is known.
    """

    seed: int
    config: SimulationConfig
    load: str
    work_core_s: float
    span_s: float
    length_s: float
    sigma: float
    sizes_known: bool

    def trace(self, number: int) -> Trace:
        """Return the world's load of a number: 0 is measured, the others are for tuning and training."""
        rng = np.random.default_rng([self.seed, 1, number])
        mean_s = self.length_s * math.exp(self.sigma**2 / 2.0)
        jobs = int(min(max(self.work_core_s / mean_s, 3), MOST_JOBS))
        lengths = self.length_s * np.exp(self.sigma * rng.standard_normal(jobs))
        arrivals = _ARRIVALS[self.load](rng, jobs, self.span_s)
        order = np.argsort(arrivals, kind="stable")
        return make_trace(
            f"fleet-{self.seed}-{number}",
            arrivals[order] - arrivals.min(),
            np.clip(lengths, SHORTEST_JOB_S, LONGEST_JOB_S)[order],
            width=np.ones(jobs, dtype=np.int64),
            ram_gb=np.full(jobs, DEFAULT_RAM_GB),
        )


def _batches(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    times = np.cumsum(rng.uniform(600.0, 2400.0, size=max(int(span_s / 1500.0), 1)))
    shares = rng.gamma(2.0, size=times.size)
    found: Floats = rng.choice(times, size=jobs, p=shares / shares.sum())
    return found


def _diurnal(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    return _at_rate(rng, jobs, span_s, 1.0 + rng.uniform(0.4, 0.95) * np.sin(_turns(rng, rng.uniform(0.5, 2.0))))


def _bursty(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    """A quiet rate with stretches of a many times higher one."""
    turns = np.cumsum(rng.random(2000) < 0.02)
    high = rng.random(int(turns[-1]) + 1) < rng.uniform(0.1, 0.4)
    return _at_rate(rng, jobs, span_s, np.where(high[turns], rng.uniform(4.0, 20.0), 1.0))


def _log_like(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    """Submissions of one job or of many at once, at a rate that swells and ebbs."""
    single = rng.random(jobs) < rng.uniform(0.2, 1.0)
    sizes = np.where(single, 1, 2 ** rng.integers(1, 7, size=jobs))
    kept = int(np.searchsorted(np.cumsum(sizes), jobs)) + 1
    rate = 1.0 + rng.uniform(0.0, 0.9) * np.sin(_turns(rng, rng.uniform(0.5, 3.0)))
    submissions = np.sort(_at_rate(rng, kept, span_s, rate))
    return np.repeat(submissions, sizes[:kept])[:jobs]


def _turns(rng: np.random.Generator, waves: float) -> Floats:
    found: Floats = 2.0 * math.pi * waves * np.linspace(0.0, 1.0, 2000) + rng.uniform(0.0, 2.0 * math.pi)
    return found


def _at_rate(rng: np.random.Generator, jobs: int, span_s: float, rate: Floats) -> Floats:
    passed = np.cumsum(rate) / rate.sum()
    found: Floats = np.interp(rng.random(jobs), passed, np.linspace(0.0, 1.0, rate.size)) * span_s
    return found


_ARRIVALS = {"batch": _batches, "diurnal": _diurnal, "bursty": _bursty, "log": _log_like}


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a draw that is uniform in its logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def fleet_of(seed: int, types: Sequence[int] = TRAINED_TYPES, limit: tuple[int, int] = (1, MOST_LIMIT)) -> Fleet:
    """Return the fleet of a seed, with one of these numbers of VM types and limits in this range."""
    rng = np.random.default_rng([seed, 0])
    kinds = int(rng.choice(np.array(types)))
    cores = np.sort(rng.choice(np.array(CORES), size=kinds, replace=kinds > len(CORES)))
    per_core = _between(rng, 0.02, 0.12)
    prices = per_core * cores.astype(np.float64)
    if rng.random() < 0.5:
        prices = per_core * cores ** rng.uniform(0.85, 1.1) * np.exp(0.15 * rng.standard_normal(kinds))
    limits = np.array([round(_between(rng, *limit)) for _ in range(kinds)])
    shrunk = min(1.0, MOST_CORES / float((limits * cores).sum()))
    limits = np.maximum((limits * shrunk).astype(np.int64), 1)
    minimum = np.zeros(kinds, dtype=np.int64)
    if rng.random() < 0.6:
        minimum[int(rng.integers(kinds))] = 1
    boot_s = _between(rng, 20.0, 450.0)
    drains = rng.random() < 0.7
    config = SimulationConfig(
        types=tuple(
            VmType(f"type-{k}", int(c), 4.0 * float(c), float(round(p, 6)))
            for k, (c, p) in enumerate(zip(cores, prices, strict=True))
        ),
        limits=tuple(limits.tolist()),
        minimum=tuple(minimum.tolist()),
        initial=tuple(minimum.tolist()),
        waiting_price_per_hour=round(per_core * _between(rng, 0.25, 4.0), 6),
        boot_low_s=boot_s,
        boot_high_s=min(boot_s * rng.uniform(1.0, 1.6), 600.0),
        cooldown_s=0.0 if rng.random() < 0.3 else float(round(rng.uniform(30.0, 600.0))),
        cooldown_scope=CooldownScope.PER_DIRECTION if rng.random() < 0.7 else CooldownScope.PER_TYPE,
        removal_choice=RemovalChoice.LEAST_WORK_LOST if drains or rng.random() < 0.5 else RemovalChoice.NEWEST,
        removal_mode=RemovalMode.DRAIN if drains else RemovalMode.IMMEDIATE,
        cpu_sampling=CpuSampling.INSTANT,
        billing=Billing.STEP if rng.random() < 0.5 else Billing.EXACT,
        max_steps=4_000,
    )
    span_s = rng.uniform(3.0, 8.0) * HOUR_S
    length_s = _between(rng, 10.0, 1.5 * HOUR_S)
    return Fleet(
        seed=seed,
        config=config,
        load=str(rng.choice(np.array(LOADS))),
        work_core_s=_between(rng, 0.03, 0.5) * config.max_cores * span_s,
        span_s=span_s,
        length_s=length_s,
        sigma=rng.uniform(0.2, 1.5),
        sizes_known=bool(rng.random() < 0.7),
    )


def tuned(fleet: Fleet, loads: int = TUNED_ON, horizons_s: Sequence[float] = HORIZONS_S) -> RuleSetting:
    """Return the setting of the queue rule that costs least on a fleet's tuning loads."""
    typical = 0.0 if fleet.sizes_known else fleet.length_s * math.exp(fleet.sigma**2 / 2.0)
    return tuned_on(fleet.config, [fleet.trace(number) for number in range(1, loads + 1)], typical, horizons_s)


def tuned_on(
    config: SimulationConfig, traces: Sequence[Trace], job_core_s: float = 0.0, horizons_s: Sequence[float] = HORIZONS_S
) -> RuleSetting:
    """Return the setting of the queue rule that costs least on these loads; job_core_s: see `RuleSetting`."""
    settings = [RuleSetting(horizon, idle, job_core_s) for horizon in horizons_s for idle in IDLE_S]
    costs = np.zeros(len(settings))
    for number, trace in enumerate(traces, start=1):
        for place, setting in enumerate(settings):
            costs[place] += BranchedEpisodes(config, trace, setting).play(number).cost
    return settings[int(costs.argmin())]
