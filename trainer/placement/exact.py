"""Bounds, packings with full knowledge of all requests, and the checker of any packing (placement specification §5).

Small instances are solved by CP-SAT, medium ones by columns of patterns and a dive, large ones by sorted best fit. Each
packing passes the checker before it is returned; the checker shares no code with any policy, simulator or solver (§13).

CP-SAT runs in a process without HiGHS: ortools and highspy each bring a library of that name, and a process can
hold one of them. So this module imports either only where it is used.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, TrimtabError, install_command
from domain.rules.placement.bounds import Bound, least_hosts, needs_of
from domain.rules.placement.instance import DIMENSIONS, Application, Instance, excluded_pairs
from trainer.kit.jobs import Job, Workers, run_jobs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pattern = tuple[int, ...]
"""Instances of each application on one host."""

CP_SAT, COLUMNS, SORTED = "cp-sat", "columns", "sorted"
METHODS = (CP_SAT, COLUMNS, SORTED)
SMALL, MEDIUM = 60, 250
"""Applications up to which an instance is solved by CP-SAT, and by columns."""
REDUCED_COST = 1e-6
LEAST_S = 0.1
"""Time that CP-SAT has for one number of hosts in any case."""


# Bounds.


def lower_bound(instance: Instance) -> Bound:
    """Return the largest of the bounds: totals over capacity, instances over limit, cliques of exclusions.

    Containers that were released before others came count while they run. Raises BadInput where no host can take a
    container at all.
    """
    most, needs = largest_host(instance), needs_of(instance.applications, cliques(instance))
    if not (needs.demand <= most[:, 0]).all():
        raise BadInput("instance", instance.name, "no host can take some container: add hosts")
    found = (least_hosts(running, needs, most) for running in _peaks(instance))
    return max([Bound(len(instance.snapshot), "snapshot"), *found], key=lambda bound: bound.hosts)


def largest_host(instance: Instance) -> Ints:
    """Return the most that a host of an instance has in each dimension, (3, 1)."""
    sizes = [host.capacity for host in instance.hosts if host.count != 0]
    most: Ints = np.array(sizes, dtype=np.int64).reshape(-1, len(DIMENSIONS)).max(axis=0, initial=0)[:, None]
    return most


def cliques(instance: Instance) -> list[tuple[int, ...]]:
    """Return applications, as positions, of which each excludes each other: one clique grown from every pair.

    The application of most hosts among the common exclusions is added, greedily.
    """
    wanted: Counter[str] = Counter()
    for request in instance.requests:
        wanted[request.application] += request.count
    place = {app.name: k for k, app in enumerate(instance.applications)}
    needs = {app.name: -(-wanted[app.name] // app.limit) for app in instance.applications}
    excludes = {app.name: app.excludes for app in instance.applications}
    found = set()
    for name, other in excluded_pairs(instance.applications):
        clique, common = [name, other], excludes[name] & excludes[other]
        while common:
            heaviest = max(sorted(common), key=lambda one: needs[one])
            clique.append(heaviest)
            common &= excludes[heaviest]
        found.add(tuple(sorted(place[one] for one in clique)))
    return sorted(found)


def _peaks(instance: Instance) -> Iterator[Ints]:
    """Yield how many containers of each application run at the end, and before every run of releases, (A,)."""
    place = {app.name: k for k, app in enumerate(instance.applications)}
    running = np.zeros(len(place), dtype=np.int64)
    for _, held in instance.snapshot:
        for name, number in held.items():
            running[place[name]] += number
    owner = {request.name: place[request.application] for request in instance.requests}
    ends = sorted(instance.releases, key=lambda release: release.at_s)
    ended, since = 0, False
    for request in instance.requests:
        while ended < len(ends) and ends[ended].at_s <= request.at_s:
            if since:
                yield running
                since = False
            running[owner[ends[ended].request]] -= 1
            ended += 1
        running[place[request.application]] += request.count
        since = True
    yield running


# Checker.

REJECTED = -1
"""In place of a host: the container is on none."""


@dataclass(frozen=True, slots=True)
class Packing:
    """On which host each container of an instance was placed.

    kinds: type of each host, those of the snapshot first. hosts: host of each container, as a position in `kinds`:
    requests in the order of the instance, their containers by index; REJECTED for none. racks: rack of each host, ""
    for another one each; empty where no host has one.
    """

    kinds: tuple[str, ...]
    hosts: tuple[int, ...]
    racks: tuple[str, ...] = ()

    @property
    def opened(self) -> int:
        """Hosts that the instance began with, or that ever had a container."""
        return len(self.kinds)

    @property
    def rejected(self) -> int:
        """Containers on no host."""
        return self.hosts.count(REJECTED)


@dataclass(slots=True)
class _Host:
    capacity: tuple[int, ...]
    label: str
    rack: str
    used: list[int] = field(default_factory=lambda: [0] * len(DIMENSIONS))
    running: Counter[str] = field(default_factory=Counter)


def violations(instance: Instance, packing: Packing, *, may_reject: bool = False) -> list[str]:
    """Return every broken rule as a sentence, none for a packing that keeps them all.

    Rules: each container is on one host that exists (or is rejected, where that may be); capacity in every dimension;
    instances of an application on one host and in one rack; exclusions; labels; hosts there are of each type. A
    container runs from its request on until its release; each rule is held to at the moment of every placement.
    """
    kinds = {kind.name: kind for kind in instance.hosts}
    found = list(_wrong_hosts(instance, packing))
    if len(packing.hosts) != instance.containers:
        found.append(f"{len(packing.hosts)} containers are placed, the requests have {instance.containers}")
    if found:
        return found
    racks = packing.racks or ("",) * len(packing.kinds)
    pool = [
        _Host(kinds[kind].capacity, kinds[kind].label, rack or f"host {at}")
        for at, (kind, rack) in enumerate(zip(packing.kinds, racks, strict=True))
    ]
    apps = {app.name: app for app in instance.applications}
    excluded = {app.name: set(app.excludes) for app in instance.applications}
    for app in instance.applications:
        # One side is enough to name an exclusion: the checker does not trust in symmetry.
        for other in app.excludes:
            excluded.setdefault(other, set()).add(app.name)
    in_rack: Counter[tuple[str, str]] = Counter()
    for at, (_, held) in enumerate(instance.snapshot):
        for name, number in held.items():
            _take(pool[at], apps[name], number, in_rack)
    owners = {one.name: one.application for one in instance.requests}
    ends = sorted(instance.releases, key=lambda release: release.at_s)
    placed: dict[tuple[str, int], int] = {}
    ended, at = 0, 0
    for request in instance.requests:
        while ended < len(ends) and ends[ended].at_s <= request.at_s:
            end = ends[ended]
            host = placed.get((end.request, end.index), REJECTED)
            if host != REJECTED:
                _take(pool[host], apps[owners[end.request]], -1, in_rack)
            ended += 1
        for index in range(request.count):
            host = packing.hosts[at]
            at += 1
            container = f"{request.name}[{index}] of {request.application}"
            if host == REJECTED:
                found += [] if may_reject else [f"{container} is on no host"]
                continue
            placed[request.name, index] = host
            app = apps[request.application]
            _take(pool[host], app, 1, in_rack)
            found += (
                f"{container} on host {host}: {text}" for text in _broken(pool[host], app, excluded[app.name], in_rack)
            )
    return found


def _wrong_hosts(instance: Instance, packing: Packing) -> Iterator[str]:
    known = {kind.name: kind.count for kind in instance.hosts}
    for kind, number in sorted(Counter(packing.kinds).items()):
        if kind not in known:
            yield f"{number} hosts are of type {kind}, which the instance does not have"
        elif known[kind] is not None and number > (known[kind] or 0):
            yield f"{number} hosts are of type {kind}, of which there are {known[kind]}"
    if packing.racks and len(packing.racks) != len(packing.kinds):
        yield f"{len(packing.racks)} racks are given for {len(packing.kinds)} hosts"
    begun = tuple(kind for kind, _ in instance.snapshot)
    if packing.kinds[: len(begun)] != begun:
        yield "the first hosts are not those of the snapshot"
    outside = sorted({host for host in packing.hosts if host != REJECTED and not 0 <= host < len(packing.kinds)})
    for host in outside:
        yield f"host {host} does not exist: there are {len(packing.kinds)}"


def _take(host: _Host, app: Application, number: int, in_rack: Counter[tuple[str, str]]) -> None:
    host.used = [used + number * need for used, need in zip(host.used, app.demand, strict=True)]
    host.running[app.name] += number
    in_rack[host.rack, app.name] += number


def _broken(host: _Host, app: Application, excluded: set[str], in_rack: Counter[tuple[str, str]]) -> Iterator[str]:
    for name, used, most in zip(DIMENSIONS, host.used, host.capacity, strict=True):
        if used > most:
            yield f"{name} {used} of {most}"
    if host.running[app.name] > app.limit:
        yield f"{host.running[app.name]} instances, the limit is {app.limit}"
    for other in sorted(excluded):
        if host.running[other] > 0:
            yield f"{other} runs there, which it excludes"
    if app.rack_limit is not None and in_rack[host.rack, app.name] > app.rack_limit:
        yield f"{in_rack[host.rack, app.name]} instances in rack {host.rack}, the limit is {app.rack_limit}"
    if app.label and host.label != app.label:
        yield f"the host's label is {host.label or 'none'}, it needs {app.label}"


# Packings with full knowledge.


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
    """An instance as arrays: containers and limit of each application, its demand (A, 3), and its exclusions."""

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

    limit_s: for CP-SAT and columns, which return the best packing so far. Raises BadInput for an instance with several
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
    arrays = {name: getattr(problem, name).tolist() for name in ("counts", "limits", "demand", "capacity")}
    containers = {**arrays, "pairs": list(problem.pairs())}
    data = {"containers": containers, "least": bound, "most": len(best), "limit_s": limit_s, "workers": workers}
    found = run_jobs(fewest, [Job(problem.instance.name, data)], Workers())[0] if bound < len(best) else {}
    patterns = found.get("patterns")
    return best if patterns is None else [tuple(row) for row in patterns], found.get("bound", bound)


def _columns(problem: _Problem, bound: int, limit_s: float) -> tuple[list[Pattern], int]:
    """Return hosts found by a dive over patterns, and the bound of the linear program over all patterns.

    While patterns price in, the program over those there are is solved; the bound of Farley, value over the best
    price, holds at every step. The dive then fixes patterns one after the other, the fullest share first, and
    prices again for the remainder; sorted best fit is the packing where it is not beaten.
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
                bound = max(bound, math.ceil(value / max(price, 1.0) - REDUCED_COST))
            if price <= 1.0 + REDUCED_COST or time.perf_counter() > stop:
                break
            patterns.append(fresh)
        first = False
        if len(best) <= bound or time.perf_counter() > stop:
            return best, bound
        fitting = [k for k in np.argsort(-shares, kind="stable").tolist() if shares[k] > REDUCED_COST]
        for k in fitting[:1] + [k for k in fitting[1:] if shares[k] >= 1.0 - REDUCED_COST]:
            for _ in range(max(1, int(shares[k] + REDUCED_COST))):
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
    # The bound of the knapsack, not its value: with it the bound of Farley holds at any tolerance of the solver.
    return tuple(values.tolist()), -float(solver.getInfo().mip_dual_bound)


def _room(problem: _Problem) -> Ints:
    """Return how many containers of each application one empty host takes by its capacity."""
    room: Ints = (problem.capacity // np.maximum(problem.demand, 1)).min(axis=1)
    return room


# CP-SAT, in its process.


def fewest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return patterns (instances of each application, by host) on the fewest hosts found, and the bound proven.

    data: `containers`, the arguments of `_filled`; `least`, the known bound; `most`, one more than the hosts to try;
    `limit_s`; `workers`. Each number of hosts is tried in turn. One that is neither refuted nor filled in time is
    passed over, and the bound stays there. patterns is None where nothing below `most` was found.
    """
    bound, proven = int(data["least"]), True
    stop = time.perf_counter() + data["limit_s"]
    for hosts in range(bound, data["most"]):
        limit_s = max(LEAST_S, stop - time.perf_counter())
        found, refuted = _filled(**data["containers"], hosts=hosts, limit_s=limit_s, workers=data["workers"])
        if found is not None:
            return {"patterns": found, "bound": bound}
        proven = proven and refuted
        bound = hosts + 1 if proven else bound
        if time.perf_counter() > stop:
            break
    return {"patterns": None, "bound": bound}


def _filled(
    *,
    counts: Sequence[int],
    limits: Sequence[int],
    demand: Sequence[Sequence[int]],
    capacity: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    hosts: int,
    limit_s: float,
    workers: int,
) -> tuple[list[list[int]] | None, bool]:
    """Return a packing into equal hosts, None without one; and whether it is proven that there is none.

    counts, limits: containers of each application, and most of them on one host. demand: of one, by application and
    dimension. pairs: applications that exclude each other.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = [min(limit, count) for limit, count in zip(limits, counts, strict=True)]
    apps = range(len(most))
    y = [[model.new_int_var(0, most[a], f"y{a}_{h}") for h in range(hosts)] for a in apps]
    for a in apps:
        model.add(sum(y[a]) == counts[a])
    excluding = sorted({a for pair in pairs for a in pair})
    presence = {(a, h): model.new_bool_var(f"on{a}_{h}") for a in excluding for h in range(hosts)}
    for (a, h), on in presence.items():
        model.add(y[a][h] <= most[a] * on)
    for a, b in pairs:
        for h in range(hosts):
            model.add_at_most_one(presence[a, h], presence[b, h])
    for k, room in enumerate(capacity):
        for h in range(hosts):
            model.add(sum(demand[a][k] * y[a][h] for a in apps) <= room)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return [[int(solver.value(y[a][h])) for a in apps] for h in range(hosts)], False
    return None, bool(status == cp_model.INFEASIBLE)
