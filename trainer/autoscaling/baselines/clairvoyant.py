"""A bound that no policy beats: a mixed-integer model of the fleet, minute by minute, with all arrivals known (§9.5).

The model is a relaxation of the simulator: every run of every policy is a solution of it and costs no less there, so
its dual bound is a lower bound for all of them. It keeps boot times, one action a minute (or any), rent by the step,
the queue at each step's end, and jobs that run whole; a job that is interrupted may hold a core for nothing before. It
leaves out which VM a core belongs to.

Jobs start at the instants of a grid within a control step, which makes the model exact or merely valid. Rounding every
instant of a schedule down to a grid, and every duration down to one that takes grid points to grid points, keeps the
order of what happens on each core: floor(start + length) >= floor(start) + shortened length. So a model on such a grid
has every schedule of the simulator among its solutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from domain.workload import WHOLE_VM, Trace
from simulator.autoscaling.configuration import Billing, RemovalMode, SimulationConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Term = tuple[NDArray[np.int64] | int, float]
"""Variables, and the factor that each of them has."""

EXTRA_STEPS = 30
"""Steps after the earliest possible end in which the model may still work jobs off."""
SOLVER_SLACK = 1e-6
"""What the solver's own tolerances may add to a bound: this share of it is taken off."""
LONGEST_S = 300 * MINUTE_S
"""A trace whose last job cannot end sooner than this is not tried."""
MOST_OFFSETS = 12
"""A grid with more instants a step than this is not tried."""
EVEN_POINTS = (4, 2, 1)
"""Instants a step of the grids that serve where lengths vary; the first that keeps the model small is taken."""
MOST_STARTS = 8_000
"""Most start variables of a model: lengths of jobs times instants."""
COMMON_SHARE = 0.95
"""Share of the jobs whose lengths the grid of job starts has to keep as they are."""
_CLOSE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Grid:
    """Start instants as offsets from a step's start, sorted, the first one 0; lengths_s are kept, others shortened.

    unit_s: durations that are not kept are rounded down to a multiple of it.
    """

    step_s: float
    offsets: tuple[float, ...]
    lengths_s: tuple[float, ...]
    unit_s: float

    def floored(self, time_s: Floats | float) -> Floats:
        """Return the last instants at or before the times given, seconds."""
        times = np.asarray(time_s, dtype=np.float64)
        steps = np.floor((times + _CLOSE_S) / self.step_s) * self.step_s
        offsets = np.array(self.offsets)
        return np.asarray(steps + offsets[np.searchsorted(offsets, times - steps + _CLOSE_S, side="right") - 1])

    def duration(self, time_s: float) -> float:
        """Return the duration itself where the grid keeps it, else a shorter one that takes instants to instants."""
        if time_s in self.lengths_s:
            return time_s
        return math.floor(time_s / self.unit_s + _CLOSE_S) * self.unit_s

    def instants(self, steps: int) -> Floats:
        """Return all instants of so many steps, seconds."""
        return np.asarray((np.arange(steps)[:, None] * self.step_s + np.array(self.offsets)).ravel())


def grid_of(config: SimulationConfig, trace: Trace) -> Grid:
    """Return the grid of the instants at which jobs really start where they are few, else an even one.

    Jobs start at an action, an arrival, a VM's readiness or another job's end: the offsets of all these, closed under
    adding the length of a common job. Boot times that vary, or many arrivals and lengths, give too many of them.
    """
    step_s = config.step_s
    even = _even_grid(config, trace)
    arrivals = {_offset(time, step_s) for time in np.unique(trace.arrival_s)}
    shortest_s, longest_s = config.boot_extremes_s
    if shortest_s != longest_s or len(arrivals) > MOST_OFFSETS:
        return even
    seeds = arrivals | {0.0, _offset(shortest_s, step_s)}
    lengths, counts = np.unique(trace.service_s / config.speeds[0], return_counts=True)
    kept: list[float] = []
    offsets = seeds
    for place in np.argsort(-counts, kind="stable")[:MOST_OFFSETS]:
        wider = _closed(seeds, [*kept, float(lengths[place])], step_s)
        if wider is not None:
            kept.append(float(lengths[place]))
            offsets = wider
    covered = counts[np.isin(lengths, kept)].sum()
    if len(offsets) > MOST_OFFSETS or covered < COMMON_SHARE * trace.jobs:
        return even
    return Grid(step_s, tuple(sorted(offsets)), tuple(kept), step_s)


def starts_of(config: SimulationConfig, trace: Trace, grid: Grid) -> int:
    """Return how many start variables a model on this grid has: one for each length of jobs and instant."""
    lengths_s = np.unique(trace.service_s) / config.speeds[0]
    steps = math.ceil(float((trace.arrival_s + trace.service_s / config.speeds[0]).max(initial=0.0)) / grid.step_s)
    return len({grid.duration(s) for s in lengths_s.tolist()}) * len(grid.offsets) * steps


def _even_grid(config: SimulationConfig, trace: Trace) -> Grid:
    step_s = config.step_s
    for points in EVEN_POINTS:
        grid = Grid(step_s, tuple(step_s * k / points for k in range(points)), (), step_s / points)
        if starts_of(config, trace, grid) <= MOST_STARTS:
            break
    return grid


def _closed(seeds: set[float], lengths_s: list[float], step_s: float) -> set[float] | None:
    """Return the seeds closed under adding the lengths, None when that is more than MOST_OFFSETS."""
    found, fresh = set(seeds), set(seeds)
    while fresh:
        fresh = {_offset(start + length, step_s) for start in fresh for length in lengths_s} - found
        found |= fresh
        if len(found) > MOST_OFFSETS:
            return None
    return found


def _offset(time_s: float, step_s: float) -> float:
    rest = round(float(time_s) % step_s, 6)
    return 0.0 if rest >= step_s - _CLOSE_S else rest


class Unavailable(BadInput):
    """There is no clairvoyant model of this world or trace."""


def first_end_s(config: SimulationConfig, trace: Trace) -> float:
    """Return when the last job ends if none ever waits, seconds."""
    return float((trace.arrival_s + trace.service_s / config.speeds[0]).max(initial=0.0))


def check_available(config: SimulationConfig, trace: Trace) -> None:
    """Raise Unavailable, which names all of the world and the trace that the model has not."""
    faults = {
        "jobs released by others": trace.staged,
        "jobs that take whole VMs": bool((trace.width == WHOLE_VM).any()),
        "a trace without jobs": trace.jobs == 0,
        f"more than {LONGEST_S / 60:.0f} minutes": first_end_s(config, trace) > LONGEST_S,
        "a cool-down": config.cooldown_s > 0.0,
        "drain or checkpoint": config.removal_mode is not RemovalMode.IMMEDIATE,
        "removal of booting VMs": config.cancel_booting,
        "billing other than by the step": config.billing is not Billing.STEP,
        "the integral penalty": config.integral_penalty,
        "core speeds that differ": len(set(config.speeds)) > 1,
    }
    found = [name for name, there in faults.items() if there]
    if not found:
        starts = starts_of(config, trace, grid_of(config, trace))
        found = [f"too many lengths of jobs and minutes ({starts:,} starts)"] if starts > MOST_STARTS else []
    if found:
        raise Unavailable("clairvoyant plan", trace.name, f"the model does not cover {', '.join(found)}")


class Rows:
    """low <= sum of factor * variable <= high, row after row."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._factors: list[NDArray[np.float64]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, low: float, high: float, *terms: Term) -> None:
        """Add one row."""
        for variables, factor in terms:
            columns = np.atleast_1d(np.asarray(variables, dtype=np.int64))
            self._rows.append(np.full(columns.size, len(self._low)))
            self._columns.append(columns)
            self._factors.append(np.full(columns.size, factor))
        self._low.append(low)
        self._high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        """Return the rows as a constraint over so many variables."""
        places = (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = csr_array((np.concatenate(self._factors), places), shape=(len(self._low), variables))
        return LinearConstraint(matrix, self._low, self._high)


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
    `Unavailable` for a world or trace that the model does not cover.
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
        self.boot_s = float(self.grid.floored(config.boot_extremes_s[0]))
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

    def _capacity(self, n: int, time_s: float) -> list[Term]:
        """Return minus the ready cores at a time within step n (from 0), or at its end, as terms of a row."""
        terms: list[Term] = []
        for k, cores in enumerate(self.config.cores):
            terms.append((self.vms[n, k], -float(cores)))
            terms.extend((self.added[m, k], float(cores)) for m in self._unready(n, time_s))
        return terms

    def _running(self, time_s: float) -> list[Term]:
        """Return the cores of jobs that run to their end and are running at a time, as terms of a row."""
        terms: list[Term] = []
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
