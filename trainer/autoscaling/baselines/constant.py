"""The best fleet of constant size, found by trying all that could be it (autoscaler specification §9.1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig
from trainer.autoscaling.baselines.availability import first_end_s
from trainer.autoscaling.episodes import run_policy
from trainer.autoscaling.policies.fixed import ConstantPolicy

Fleet = tuple[int, ...]

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class BestConstant:
    """The fleet, its mean cost in dollars over the traces, and how many fleets there were and were run."""

    sizes: Fleet
    cost: float
    fleets: int
    tried: int


def best_constant(
    config: SimulationConfig, traces: Sequence[Trace], on_fleet: Callable[[int, int], None] | None = None
) -> BestConstant:
    """Return the constant fleet with the least mean cost; nothing is random, for a constant fleet boots nothing.

    Fleets are tried from the cheapest on, until the rent alone of the rest is above the best cost. Where every type
    costs the same per core and all jobs take one core, one fleet stands for all of as many cores. on_fleet:
    told the number of fleets done and there are.
    """
    fleets = sorted(_fleets(config, traces), key=lambda sizes: price_per_hour(config, sizes))
    best: tuple[float, Fleet] | None = None
    tried = 0
    for done, sizes in enumerate(fleets, start=1):
        if best is None or least_rent(config, sizes, traces) < best[0]:
            runs = [run_policy(ConstantPolicy(sizes), config, trace) for trace in traces]
            tried += 1
            cost = fmean(run.cost for run in runs)
            if best is None or cost < best[0]:
                best = (cost, sizes)
        if on_fleet is not None:
            on_fleet(done, len(fleets))
    if best is None:
        raise ValueError("a configuration allows at least one fleet")
    return BestConstant(best[1], best[0], len(fleets), tried)


def price_per_hour(config: SimulationConfig, sizes: Fleet) -> float:
    """Return the dollars per hour of a fleet."""
    return sum(n * kind.price_per_hour for n, kind in zip(sizes, config.types, strict=True))


def least_rent(config: SimulationConfig, sizes: Fleet, traces: Sequence[Trace]) -> float:
    """Return dollars that a constant fleet costs at least on average: its rent until the work can be done."""
    cores = sum(n * c * v for n, c, v in zip(sizes, config.cores, config.speeds, strict=True))
    shortest_s = [
        max(0.0 if trace.staged else first_end_s(config, trace), trace.work_core_s / cores) for trace in traces
    ]
    return price_per_hour(config, sizes) * fmean(shortest_s) / HOUR_S


def _fleets(config: SimulationConfig, traces: Sequence[Trace]) -> list[Fleet]:
    """Return the fleets that may be best, each with a core at least."""
    ranges = [range(low, high + 1) for low, high in zip(config.minimum, config.limits, strict=True)]
    every = [sizes for sizes in itertools.product(*ranges) if any(sizes)]
    per_core = {round(kind.price_per_hour / kind.cores, 9) for kind in config.types}
    alike = len(per_core) == 1 and len(set(config.speeds)) == 1
    if not (alike and all((trace.width == 1).all() for trace in traces)):
        return every
    by_cores: dict[int, Fleet] = {}
    for sizes in sorted(every, key=sum):
        by_cores.setdefault(sum(n * c for n, c in zip(sizes, config.cores, strict=True)), sizes)
    return list(by_cores.values())
