"""Tunes a rule on seeds of its own and reports it on others, so that no baseline is weaker than it need be (§9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.reference import Measures, SimulationConfig
from trainer.autoscaling.baselines.grids import GRIDS
from trainer.autoscaling.episodes import Pool, run_task

if TYPE_CHECKING:
    from collections.abc import Iterator

TUNING_SEED = 500_000
"""Seeds from here on tune; 0..999 report, and what trains or chooses uses neither."""
FINALISTS = 12
FIRST_SEEDS = 2
"""The whole grid is run on so many seeds, its best FINALISTS on all of them."""


@dataclass(frozen=True, slots=True)
class Cases:
    """What runs are made on: a world, and a trace for each seed."""

    config: SimulationConfig
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]

    def first(self, count: int) -> Cases:
        """Return the first of them."""
        return Cases(self.config, self.traces[:count], self.seeds[:count])


def cases_of(config: SimulationConfig, trace_of: Callable[[int], Trace], first_seed: int, count: int) -> Cases:
    """Return `count` cases, the trace and the boot times of each drawn from one seed."""
    if count < 1:
        raise BadInput("seeds", count, "give 1 or more")
    seeds = tuple(range(first_seed, first_seed + count))
    return Cases(config, tuple(trace_of(seed) for seed in seeds), seeds)


@dataclass(frozen=True, slots=True)
class Objective:
    """What is made small: cost (rent and waiting), or with minute_price rent and that many dollars per minute of run.

    A run that did not finish its jobs counts as infinitely bad.
    """

    minute_price: float = 0.0

    def of(self, run: Measures, jobs: int) -> float:
        """Return dollars."""
        if run.jobs_finished < jobs:
            return float("inf")
        return run.rent + self.minute_price * run.run_time_s / 60.0 if self.minute_price > 0 else run.cost


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting and its mean objective over tuning seeds."""

    policy: str
    objective: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best setting, its figures on the reporting seeds, and the finalists it was chosen from, best first."""

    policy: str
    objective: float
    runs: tuple[Measures, ...]
    finalists: tuple[Tried, ...]
    settings: int


def tune(
    name: str,
    tuning: Cases,
    reporting: Cases,
    *,
    objective: Objective | None = None,
    workers: int = 1,
    on_run: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Search the grid of a policy of GRIDS on `tuning`, and run the best setting on `reporting`.

    The whole grid is run on the first FIRST_SEEDS cases, the best FINALISTS on all. on_run: told the runs done and to
    do. Raises BadInput for a policy without a grid, or when tuning and reporting share a seed.
    """
    if name not in GRIDS:
        raise BadInput("policy", name, f"choose one of {', '.join(GRIDS)}")
    if set(tuning.seeds) & set(reporting.seeds):
        raise BadInput("seeds", tuning.seeds[0], "tune on other seeds than those reported")
    objective = objective or Objective()
    grid = GRIDS[name](tuning.config)
    few = tuning.first(FIRST_SEEDS)
    total = len(grid) * len(few.seeds) + FINALISTS * len(tuning.seeds) + len(reporting.seeds)
    with _counting(workers, total, on_run) as pool:
        first = _ranked(pool, grid, few, objective)
        finalists = _ranked(pool, [tried.policy for tried in first[:FINALISTS]], tuning, objective)
        best = finalists[0]
        runs = tuple(pool.run(_tasks([best.policy], reporting)))
    return Tuned(best.policy, best.objective, runs, tuple(finalists), len(grid))


Task = tuple[str, SimulationConfig, Trace, int]


def _tasks(policies: Sequence[str], cases: Cases) -> list[Task]:
    pairs = list(zip(cases.traces, cases.seeds, strict=True))
    return [(policy, cases.config, trace, seed) for policy in policies for trace, seed in pairs]


def explore(
    name: str, cases: Cases, *, workers: int = 1, on_run: Callable[[int, int], None] | None = None
) -> list[tuple[str, list[Measures]]]:
    """Run the whole grid of a policy on all cases and return every setting with its runs, for choices of one's own."""
    grid = GRIDS[name](cases.config)
    with _counting(workers, len(grid) * len(cases.seeds), on_run) as pool:
        return _runs(pool, grid, cases)


def _runs(pool: Pool, policies: Sequence[str], cases: Cases) -> list[tuple[str, list[Measures]]]:
    runs, each = list(pool.run(_tasks(policies, cases))), len(cases.seeds)
    return [(policy, runs[place * each : (place + 1) * each]) for place, policy in enumerate(policies)]


def _ranked(pool: Pool, policies: Sequence[str], cases: Cases, objective: Objective) -> list[Tried]:
    """Return the settings by mean objective; equals stay in the order of the grid."""
    found = []
    for policy, runs in _runs(pool, policies, cases):
        values = [objective.of(run, trace.jobs) for run, trace in zip(runs, cases.traces, strict=True)]
        found.append(Tried(policy, fmean(values)))
    return sorted(found, key=lambda tried: tried.objective)


@contextmanager
def _counting(workers: int, total: int, on_run: Callable[[int, int], None] | None) -> Iterator[Pool]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if on_run is not None:
            on_run(done, total)

    with Pool(run_task, workers, count) as pool:
        yield pool
