"""What nobody beats: a mixed-integer model of the fleet, minute by minute, with all arrivals known (§9.5).

The model is a relaxation of the simulator: every run of every policy is a solution of it and costs no less there, so
its dual bound is a lower bound for all of them. It keeps boot times, one action a minute (or any), rent by the step,
the queue at each step's end, and jobs that run whole; a job that is interrupted may hold a core for nothing before. It
leaves out which VM a core belongs to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, OptimizeResult, milp

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig
from trainer.autoscaling.baselines.availability import check_available, first_end_s
from trainer.autoscaling.baselines.grid import Grid, grid_of
from trainer.autoscaling.baselines.rows import Rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXTRA_STEPS = 30
"""Steps after the earliest possible end in which the model may still work jobs off."""
SOLVER_SLACK = 1e-6
"""What the solver's own tolerances may add to a bound: this share of it is taken off."""
HOUR_S = 3600.0
_CLOSE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver found.

    bound: dollars, no policy costs less. cost: dollars of the best solution found, inf for none; that of its replay in
    the simulator differs. fleet: its VMs per step and type after the step's action, int64 of shape (steps, N), up to
    the earliest end. proven: the solver closed its gap.
    """

    bound: float
    cost: float
    fleet: Ints
    proven: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Jobs:
    """Jobs of one length and width: arrivals as seen by the starts (floored), and as they count as waiting."""

    length_s: float
    width: int
    startable_s: Floats
    arrival_s: Floats


def solve(
    config: SimulationConfig,
    trace: Trace,
    *,
    single: bool,
    largest_change: int = 0,
    time_limit_s: float = 60.0,
    relaxed: bool = False,
) -> Solution:
    """Return the bound and the best fleet found within the time limit.

    single: one VM a step (act-7); else any number per type, or at most largest_change, which is a promise that the
    bound then depends on. relaxed: let VMs be fractions, for a quick and looser bound; there is no fleet then. Raises
    `availability.Unavailable` for a world or trace that the model does not cover.
    """
    check_available(config, trace)
    model = _Model(config, trace, single, largest_change)
    fractions = model.run(np.zeros(model.variables), time_limit_s)
    bound = float(fractions.fun) if fractions.status == 0 else 0.0
    result = fractions
    if not relaxed:
        result = model.run(model.whole, time_limit_s)
        # Stopped early, the solver may know less than the relaxation.
        if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
            bound = max(bound, float(result.mip_dual_bound))
    found = result.x is not None and not relaxed
    fleet = np.rint(result.x[model.vms[: model.finish]]).astype(np.int64) if found else np.empty((0, 0), dtype=np.int64)
    return Solution(
        bound=bound * (1.0 - SOLVER_SLACK),
        cost=float(result.fun) if found else math.inf,
        fleet=fleet,
        proven=result.status == 0,
    )


class _Model:
    """Variables (numbered), their costs and bounds, and the rows that tie them."""

    def __init__(self, config: SimulationConfig, trace: Trace, single: bool, largest_change: int) -> None:
        self.config, self.grid = config, grid_of(config, trace)
        self.finish = math.ceil(first_end_s(config, trace) / config.step_s - 1e-9)
        self.steps = self.finish + EXTRA_STEPS
        self.instants = self.grid.instants(self.steps)
        self.jobs = _classes(config, trace, self.grid)
        kinds = len(config.types)
        self.variables = 0
        self.vms = self._number(self.steps, kinds)
        self.added = self._number(self.steps, kinds)
        self.removed = self._number(self.steps, kinds)
        self.waiting = self._number(self.steps)
        self.doomed = self._number(self.steps)
        self.starts = self._number(len(self.jobs), self.instants.size)
        self.left = self._number(len(self.jobs))
        self.costs = np.zeros(self.variables)
        self.upper = np.full(self.variables, np.inf)
        self.whole = np.zeros(self.variables)
        self.rows = Rows()
        self._price()
        self._fleet(single, largest_change)
        self._work()
        self._wait()

    def run(self, whole: Floats, time_limit_s: float) -> OptimizeResult:
        """Solve with the variables marked in `whole` kept to whole numbers."""
        return milp(
            self.costs,
            integrality=whole,
            bounds=Bounds(np.zeros(self.variables), self.upper),
            constraints=self.rows.constraint(self.variables),
            options={"time_limit": time_limit_s, "mip_rel_gap": 1e-4},
        )

    def _number(self, *shape: int) -> NDArray[np.int64]:
        first = self.variables
        self.variables += math.prod(shape)
        return np.arange(first, self.variables).reshape(shape)

    def _price(self) -> None:
        """Rent of every VM and step, the queue's price, and for jobs left over the least rent that they can cost."""
        config, share = self.config, self.config.step_s / HOUR_S
        prices = np.array([kind.price_per_hour for kind in config.types])
        self.costs[self.vms] = prices * share
        self.costs[self.waiting] = config.waiting_price_per_hour * share
        cheapest = min(price / cores for price, cores in zip(prices, config.cores, strict=True)) / HOUR_S
        self.costs[self.left] = [jobs.length_s * jobs.width * cheapest for jobs in self.jobs]

    def _fleet(self, single: bool, largest_change: int) -> None:
        """VMs follow additions and removals; after the earliest end a run may be over, and nothing binds any more."""
        config, alive = self.config, self.finish
        for name in (self.vms, self.added, self.removed):
            self.whole[name[:alive]] = 1
            self.upper[name] = config.limits
        if largest_change:
            for name in (self.added, self.removed):
                self.upper[name[:alive]] = np.minimum(self.upper[name[:alive]], largest_change)
        boot_s = float(self.grid.floored(config.boot_low_s))
        self.boot_s = boot_s
        for n in range(self.steps):
            for k, initial in enumerate(config.initial):
                change = ((self.vms[n, k], 1.0), (self.added[n, k], -1.0), (self.removed[n, k], 1.0))
                if n == 0:
                    self.rows.add(initial, initial, *change)
                else:
                    self.rows.add(0.0, 0.0, *change, (self.vms[n - 1, k], -1.0))
                # Only ready VMs are removed, and the minimum stays ready.
                if n < alive:
                    low = min(config.minimum[k], initial)
                    unready = self._unready(n, n * config.step_s)
                    self.rows.add(low, np.inf, (self.vms[n, k], 1.0), *((self.added[m, k], -1.0) for m in unready))
            if single and n < alive:
                self.rows.add(0.0, 1.0, (self.added[n], 1.0), (self.removed[n], 1.0))

    def _unready(self, n: int, time_s: float) -> range:
        """Return the steps up to n whose additions are not ready at a time within step n (from 0)."""
        first = n
        while first > 0 and (first - 1) * self.config.step_s + self.boot_s > time_s + _CLOSE_S:
            first -= 1
        last = n if n * self.config.step_s + self.boot_s > time_s + _CLOSE_S else n - 1
        return range(first, last + 1)

    def _capacity(self, n: int, time_s: float) -> list[tuple[NDArray[np.int64] | int, float]]:
        """Return minus the ready cores at a time within step n (from 0), or at its end, as terms of a row."""
        terms: list[tuple[NDArray[np.int64] | int, float]] = []
        for k, cores in enumerate(self.config.cores):
            terms.append((self.vms[n, k], -float(cores)))
            terms.extend((self.added[m, k], float(cores)) for m in self._unready(n, time_s))
        return terms

    def _running(self, time_s: float) -> list[tuple[NDArray[np.int64] | int, float]]:
        """Return the cores of jobs that run to their end and are running at a time, as terms of a row."""
        terms: list[tuple[NDArray[np.int64] | int, float]] = []
        for jobs, starts in zip(self.jobs, self.starts, strict=True):
            running = (self.instants <= time_s + _CLOSE_S) & (self.instants > time_s - jobs.length_s + _CLOSE_S)
            if running.any():
                terms.append((starts[running], float(jobs.width)))
        return terms

    def _work(self) -> None:
        """No job starts before it arrives, every job starts or is left, and no more run than there are cores."""
        for jobs, starts, left in zip(self.jobs, self.starts, self.left, strict=True):
            arrived = np.searchsorted(np.sort(jobs.startable_s), self.instants + _CLOSE_S, side="right")
            self.upper[starts[arrived == 0]] = 0.0
            growth = np.flatnonzero(np.diff(arrived, append=jobs.arrival_s.size + 1))
            for i in growth[arrived[growth] > 0]:
                self.rows.add(0.0, float(arrived[i]), (starts[: i + 1], 1.0))
            self.rows.add(float(jobs.arrival_s.size), float(jobs.arrival_s.size), (starts, 1.0), (left, 1.0))
        points = len(self.grid.offsets)
        for i, time_s in enumerate(self.instants):
            self.rows.add(-np.inf, 0.0, *self._running(time_s), *self._capacity(i // points, time_s))

    def _wait(self) -> None:
        """Waiting at a step's end are those arrived and neither started for good nor on a core that they will lose."""
        arrivals = np.sort(np.concatenate([jobs.arrival_s for jobs in self.jobs]))
        for n in range(self.steps):
            end_s = (n + 1) * self.config.step_s
            arrived = float(np.searchsorted(arrivals, end_s, side="right"))
            begun = self.starts[:, self.instants <= end_s + _CLOSE_S].ravel()
            self.rows.add(arrived, np.inf, (self.waiting[n], 1.0), (begun, 1.0), (self.doomed[n], 1.0))
            self.rows.add(-np.inf, 0.0, (self.doomed[n], 1.0), *self._running(end_s), *self._capacity(n, end_s))


def _classes(config: SimulationConfig, trace: Trace, grid: Grid) -> list[_Jobs]:
    """Group the jobs by length (rounded down where the grid asks for it) and width."""
    lengths = np.array([grid.duration(s) for s in trace.service_s / config.speeds[0]])
    startable = grid.floored(trace.arrival_s)
    keys = sorted(set(zip(lengths.tolist(), trace.width.tolist(), strict=True)))
    groups = [(length, width, (lengths == length) & (trace.width == width)) for length, width in keys]
    return [_Jobs(length, width, startable[mine], trace.arrival_s[mine]) for length, width, mine in groups]
