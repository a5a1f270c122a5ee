"""Packings with full knowledge of all requests, to hold online policies against (placement specification §5).

Small instances are solved by CP-SAT, medium ones by columns of patterns and a dive, large ones by sorted best fit. Each
packing passes the independent checker before it is returned.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, TrimtabError, install_command
from domain.rules.placement.instance import DIMENSIONS, Application, Instance
from trainer.kit.jobs import Job, in_processes
from trainer.placement.bounds import lower_bound
from trainer.placement.checker import Packing, violations
from trainer.placement.cp_sat import Containers, fewest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pattern = tuple[int, ...]
"""Instances of each application on one host."""

CP_SAT, COLUMNS, SORTED = "cp-sat", "columns", "sorted"
METHODS = (CP_SAT, COLUMNS, SORTED)
SMALL, MEDIUM = 60, 250
"""Applications up to which an instance is solved by CP-SAT, and by columns."""
_REDUCED_COST = 1e-6


class PackingWrong(TrimtabError):
    """A method returned a packing that breaks a rule: a fault of the program; the message has the first violations."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A checked packing: hosts that it opens, the proven lower bound, and how it was found.

    bound: no packing has fewer hosts. wall_s: seconds that it took.
    """

    packing: Packing
    hosts: int
    bound: int
    method: str
    wall_s: float

    @property
    def optimal(self) -> bool:
        """Whether no packing has fewer hosts."""
        return self.hosts == self.bound


@dataclass(frozen=True, slots=True)
class _Problem:
    """An instance as arrays: containers and limit of each application, its demand (A, 3), and whom it excludes."""

    instance: Instance
    apps: tuple[Application, ...]
    counts: Ints
    limits: Ints
    demand: Ints
    capacity: Ints
    excludes: tuple[tuple[int, ...], ...]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield each pair that excludes each other, once."""
        for a, others in enumerate(self.excludes):
            yield from ((a, b) for b in others if a < b)


def solve(instance: Instance, method: str | None = None, *, limit_s: float = 60.0, workers: int = 2) -> Solution:
    """Return the packing of an instance found by a method of METHODS; by its size when None.

    limit_s: for CP-SAT and columns; what was found by then is returned. Raises BadInput for an instance with several
    types of hosts, a bounded number of them, releases, labels, racks or a snapshot, which these methods do not know.
    """
    problem = _problem(instance)
    if method is None:
        method = CP_SAT if len(problem.apps) <= SMALL else COLUMNS if len(problem.apps) <= MEDIUM else SORTED
    if method not in METHODS:
        raise BadInput("method", method, f"choose one of {', '.join(METHODS)}")
    start = time.perf_counter()
    bound = lower_bound(instance).hosts
    if method == CP_SAT:
        patterns, bound = _cp_sat(problem, bound, limit_s, workers)
    elif method == COLUMNS:
        patterns, bound = _columns(problem, bound, limit_s)
    else:
        patterns = sorted_packing(problem)
    packing = _packing(problem, patterns)
    wrong = violations(instance, packing)
    if wrong:
        raise PackingWrong(f"{method} on {instance.name}: {'; '.join(wrong[:3])}")
    return Solution(packing, len(patterns), bound, method, time.perf_counter() - start)


def _problem(instance: Instance) -> _Problem:
    wrong = [
        text
        for text, holds in (
            ("several types of hosts", len(instance.hosts) != 1),
            ("a bounded number of hosts", any(host.count is not None for host in instance.hosts)),
            ("releases", bool(instance.releases)),
            ("a snapshot", bool(instance.snapshot)),
            ("labels or racks", any(app.label or app.rack_limit for app in instance.applications)),
        )
        if holds
    ]
    if wrong:
        raise BadInput("instance", instance.name, f"it has {', '.join(wrong)}: the optimum is not known for these")
    wanted: Counter[str] = Counter()
    for request in instance.requests:
        wanted[request.application] += request.count
    apps = tuple(app for app in instance.applications if wanted[app.name])
    place = {app.name: k for k, app in enumerate(apps)}
    return _Problem(
        instance,
        apps,
        np.array([wanted[app.name] for app in apps], dtype=np.int64),
        np.array([app.limit for app in apps], dtype=np.int64),
        np.array([app.demand for app in apps], dtype=np.int64).reshape(-1, len(DIMENSIONS)),
        np.array(instance.hosts[0].capacity, dtype=np.int64),
        tuple(tuple(sorted(place[other] for other in app.excludes if other in place)) for app in apps),
    )


def _packing(problem: _Problem, patterns: Sequence[Pattern]) -> Packing:
    """Return where each container is, given how many of each application each host holds."""
    free: list[list[int]] = [[] for _ in problem.apps]
    for host in range(len(patterns) - 1, -1, -1):
        for a, number in enumerate(patterns[host]):
            free[a] += [host] * number
    place = {app.name: k for k, app in enumerate(problem.apps)}
    hosts = tuple(free[place[one.application]].pop() for one in problem.instance.requests for _ in range(one.count))
    return Packing((problem.instance.hosts[0].name,) * len(patterns), hosts)


def sorted_packing(problem: _Problem) -> list[Pattern]:
    """Return best fit in the order of hosts that an application needs at least, then of its cores, both falling.

    Best fit is by the sum of the residual fractions, ties to the lowest host (§2).
    """
    capacity, running = problem.capacity, np.zeros((1, len(problem.apps)), dtype=np.int64)
    used, opened = np.zeros((1, len(DIMENSIONS)), dtype=np.int64), 0
    needs = -(-problem.counts // problem.limits)
    for a in np.lexsort((np.arange(len(problem.apps)), -problem.demand[:, 0], -needs)).tolist():
        others = list(problem.excludes[a])
        for _ in range(int(problem.counts[a])):
            feasible = (used + problem.demand[a] <= capacity).all(axis=1) & (running[:, a] < problem.limits[a])
            feasible &= ~running[:, others].any(axis=1)
            fits = np.flatnonzero(feasible)
            left = ((capacity - used[fits] - problem.demand[a]) / capacity).sum(axis=1)
            host = int(fits[np.argmin(left)])
            used[host] += problem.demand[a]
            running[host, a] += 1
            if host == opened:
                # One closed host is always at the end, as a candidate.
                opened += 1
                used = np.vstack([used, np.zeros_like(used[:1])])
                running = np.vstack([running, np.zeros_like(running[:1])])
    return [tuple(row) for row in running[:opened].tolist()]


def _cp_sat(problem: _Problem, bound: int, limit_s: float, workers: int) -> tuple[list[Pattern], int]:
    """Return hosts for as few as CP-SAT finds below sorted best fit, and the bound that it proved."""
    if find_spec("ortools") is None:
        remedy = f"ortools is missing: {install_command('placement')}, or use another method"
        raise BadInput("method", CP_SAT, remedy)
    best = sorted_packing(problem)
    wanted = Containers(
        problem.counts.tolist(),
        problem.limits.tolist(),
        problem.demand.tolist(),
        problem.capacity.tolist(),
        list(problem.pairs()),
    )
    data = {"containers": asdict(wanted), "least": bound, "most": len(best), "limit_s": limit_s, "workers": workers}
    found = in_processes(fewest, [Job(problem.instance.name, data)], 1)[0] if bound < len(best) else {}
    patterns = found.get("patterns")
    return best if patterns is None else [tuple(row) for row in patterns], found.get("bound", bound)


def _columns(problem: _Problem, bound: int, limit_s: float) -> tuple[list[Pattern], int]:
    """Return hosts found by a dive over patterns, and the bound of the linear program over all patterns.

    While patterns price in, the program over those there are is solved; the bound of Farley, value over the best
    price, holds at every step. The dive then fixes patterns one after the other, the fullest share first, and prices
    anew for what is left; sorted best fit is the packing where it is not beaten.
    """
    stop = time.perf_counter() + limit_s
    best = sorted_packing(problem)
    patterns = list(dict.fromkeys(best))
    fixed: list[Pattern] = []
    left, first = problem.counts.copy(), True
    while left.any() and len(fixed) < len(best):
        while True:
            shares, value, duals = _relaxed(patterns, left)
            fresh, price = _priced(problem, duals, left)
            if first:
                bound = max(bound, math.ceil(value / max(price, 1.0) - _REDUCED_COST))
            if price <= 1.0 + _REDUCED_COST or time.perf_counter() > stop:
                break
            patterns.append(fresh)
        first = False
        if len(best) <= bound or time.perf_counter() > stop:
            return best, bound
        fitting = [k for k in np.argsort(-shares, kind="stable").tolist() if shares[k] > _REDUCED_COST]
        for k in fitting[:1] + [k for k in fitting[1:] if shares[k] >= 1.0 - _REDUCED_COST]:
            for _ in range(max(1, int(shares[k] + _REDUCED_COST))):
                # A pattern may hold more than is left: that much of it is used.
                part = np.minimum(np.array(patterns[k]), left)
                if part.any():
                    fixed.append(tuple(part.tolist()))
                    left -= part
    return (fixed, bound) if not left.any() and len(fixed) < len(best) else (best, bound)


def _highs() -> Any:
    import highspy

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("random_seed", 0)
    solver.setOptionValue("threads", 1)
    return solver


def _relaxed(patterns: Sequence[Pattern], left: Ints) -> tuple[Floats, float, Floats]:
    """Return how often each pattern is used in the linear program, its value, and the worth of each container."""
    import highspy

    solver, matrix = _highs(), np.array(patterns, dtype=np.float64)
    infinity = highspy.kHighsInf
    for need in left.tolist():
        solver.addRow(float(need), infinity, 0, np.empty(0, dtype=np.int32), np.empty(0))
    for row in matrix:
        places = np.flatnonzero(row).astype(np.int32)
        solver.addCol(1.0, 0.0, infinity, len(places), places, row[places])
    solver.run()
    found = solver.getSolution()
    duals = np.maximum(np.array(found.row_dual), 0.0)
    return np.array(found.col_value), float(solver.getInfo().objective_function_value), duals


def _priced(problem: _Problem, worth: Floats, left: Ints) -> tuple[Pattern, float]:
    """Return the pattern of one host with most worth, and a bound of any worth: a knapsack with limits, exclusions."""
    import highspy

    solver, apps = _highs(), len(problem.apps)
    most = np.minimum(np.minimum(problem.limits, left), _room(problem))
    none_int, none = np.empty(0, dtype=np.int32), np.empty(0)
    for a in range(apps):
        solver.addCol(
            -float(worth[a]) if worth[a] > 0 else 0.0, 0.0, float(most[a]) if worth[a] > 0 else 0.0, 0, none_int, none
        )
        solver.changeColIntegrality(a, highspy.HighsVarType.kInteger)
    everyone = np.arange(apps, dtype=np.int32)
    for k, capacity in enumerate(problem.capacity.tolist()):
        solver.addRow(-highspy.kHighsInf, float(capacity), apps, everyone, problem.demand[:, k].astype(np.float64))
    on: dict[int, int] = {}
    for a, b in problem.pairs():
        if worth[a] > 0 and worth[b] > 0 and most[a] and most[b]:
            for one in (a, b):
                if one not in on:
                    on[one] = apps + len(on)
                    solver.addCol(0.0, 0.0, 1.0, 0, none_int, none)
                    solver.changeColIntegrality(on[one], highspy.HighsVarType.kInteger)
                    row = np.array([one, on[one]], dtype=np.int32)
                    solver.addRow(-highspy.kHighsInf, 0.0, 2, row, np.array([1.0, -float(most[one])]))
            solver.addRow(-highspy.kHighsInf, 1.0, 2, np.array([on[a], on[b]], dtype=np.int32), np.ones(2))
    solver.run()
    values = np.rint(np.array(solver.getSolution().col_value)[:apps]).astype(np.int64)
    # The bound of the knapsack, not its value: with it the bound of Farley holds whatever the tolerance of the solver.
    return tuple(values.tolist()), -float(solver.getInfo().mip_dual_bound)


def _room(problem: _Problem) -> Ints:
    """Return how many containers of each application one empty host takes by its capacity."""
    room: Ints = (problem.capacity // np.maximum(problem.demand, 1)).min(axis=1)
    return room
