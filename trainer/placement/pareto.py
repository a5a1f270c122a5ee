"""Several objectives at once: a swarm with an archive, the front of policies that no other dominates (§8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy, box
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from simulator.placement.instances import shuffle_order
from trainer.kit.drawing import POLICIES, SOFT, panel, svg
from trainer.placement.exact import lower_bound
from trainer.placement.swarm import (
    GLOBAL,
    INERTIA,
    OWN,
    SELECTION,
    SPEED,
    Floats,
    Plan,
    Samples,
    first,
    generator,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bools = NDArray[np.bool_]

OBJECTIVES = ("hosts", "imbalance", "concentration", "stranded", "range")
"""f1 opened hosts; f2 standard deviation of the share of cores in use over open hosts; f3 mean over applications of at
least four instances of the largest share on one host; f4 share of the free cores on hosts that cannot take 8c16g; f5
range of the hosts over the orders."""
SEARCHED = 3
"""So many of them span the front; the others are reported."""
ARCHIVE = 64
WORST = (1.15, 0.30, 0.35)
"""The reference point of the hypervolume: f1 as a multiple of the lower bound, f2 and f3."""
SPREAD_OUT, STRANDED_BELOW = 4, (8, 16)
"""Instances from which f3 counts an application; cores and memory below which free cores are stranded."""


@dataclass(frozen=True, slots=True)
class Points:
    """Points with their objectives (n, 5), standard errors of the means (n, 5; none of the range), and rejections."""

    points: Floats
    values: Floats
    errors: Floats
    rejected: Floats

    def of(self, kept: Bools | Sequence[int] | NDArray[np.int64]) -> Points:
        """Return some of the points."""
        return Points(self.points[kept], self.values[kept], self.errors[kept], self.rejected[kept])

    def __add__(self, other: Points) -> Points:
        return Points(
            np.vstack([self.points, other.points]),
            np.vstack([self.values, other.values]),
            np.vstack([self.errors, other.errors]),
            np.concatenate([self.rejected, other.rejected]),
        )


def measures(instance: Instance, outcome: engine.Outcome, arrays: Arrays) -> tuple[float, ...]:
    """Return f1 to f4 of one sequence; nothing placed is 0 of each."""
    placed = outcome.host >= 0
    if not placed.any() and not instance.snapshot:
        return 0.0, 0.0, 0.0, 0.0
    if outcome.host.max(initial=0) >= len(arrays.kind):
        # The simulator took more hosts than the arrays were made for.
        arrays = engine.arrays_of(instance, int(outcome.host.max()) + 1)
    owners = np.repeat(arrays.apps, arrays.counts)[placed]
    apps, hosts = len(arrays.limit), len(arrays.kind)
    running = np.bincount(owners * hosts + outcome.host[placed], minlength=apps * hosts).reshape(apps, hosts)
    for host, app, count in arrays.held.tolist():
        running[app, host] += count
    opened = running.any(axis=0)
    used = arrays.demand.T @ running[:, opened]
    size = arrays.size[:, opened]
    free = size - used
    instances = running.sum(axis=1)
    spread = instances >= SPREAD_OUT
    largest = running[spread].max(axis=1, initial=0) / instances[spread]
    narrow = (free[0] < STRANDED_BELOW[0]) | (free[1] < STRANDED_BELOW[1])
    return (
        float(opened.sum()),
        float((used[0] / size[0]).std()),
        float(largest.mean()) if spread.any() else 0.0,
        float(free[0, narrow].sum() / max(1, free[0].sum())),
    )


Measured = tuple[Policy, int]
"""A policy, and the draw on whose orders it is measured."""
Run = Callable[[Sequence[Measured]], Iterable[Floats]]
"""Calls `Measurement.rows` for each, in this process or in others."""


class Measurement:
    """Measures policies of a family on the orders of a draw. played: sequences so far."""

    def __init__(self, instance: Instance, family: str, samples: Samples) -> None:
        if instance.releases:
            raise BadInput("instance", instance.name, "it has releases, and its orders cannot be shuffled")
        self.instance, self.played = instance, 0
        self._family, self._samples = family, samples
        self._arrays = engine.arrays_of(instance)

    def points(self, points: Floats, draw: int, run: Run | None = None) -> Points:
        """Measure vectors of the family, (n, D)."""
        policies = [Policy("point", self._family, tuple(point.tolist())) for point in points]
        return replace(self.policies(policies, draw, run), points=points.copy())

    def rows(self, measured: Measured) -> Floats:
        """Return f1 to f4 and the rejections of each order, (orders, 5)."""
        policy, draw = measured
        rows = []
        for k in self._samples.shuffles(draw):
            order = shuffle_order(len(self.instance.requests), k)
            outcome = engine.play(self.instance, policy, order, arrays=self._arrays)
            rows.append((*measures(self.instance, outcome, self._arrays), float(outcome.rejected)))
        return np.array(rows)

    def policies(self, policies: Sequence[Policy], draw: int, run: Run | None = None) -> Points:
        """Measure any policies; their points are empty."""
        items = [(policy, draw) for policy in policies]
        self.played += len(items) * len(self._samples.shuffles(draw))
        rows = list(map(self.rows, items) if run is None else run(items))
        values = np.array([[*row[:, :4].mean(axis=0), np.ptp(row[:, 0])] for row in rows])
        spread = [row[:, :4].std(axis=0, ddof=1) / np.sqrt(len(row)) if len(row) > 1 else np.zeros(4) for row in rows]
        errors = np.array([[*one, np.nan] for one in spread])
        return Points(np.empty((len(policies), 0)), values, errors, np.array([row[:, 4].sum() for row in rows]))


def dominated(values: Floats, rejected: Floats) -> Bools:
    """Return which points another one dominates, (n,); values: (n, k), lower is better in each.

    A point with fewer rejections dominates one with more, whatever its values; of equal ones, one that is nowhere worse
    and somewhere better. Of points that are alike in all, the first stays.
    """
    n = len(values)
    found = np.zeros(n, dtype=np.bool_)
    for k in range(n):
        fewer = rejected < rejected[k]
        equal = rejected == rejected[k]
        better = (values <= values[k]).all(axis=1) & (values < values[k]).any(axis=1)
        twin = (values == values[k]).all(axis=1) & (np.arange(n) < k)
        found[k] = bool((fewer | (equal & (better | twin))).any())
    return found


def crowding(values: Floats) -> Floats:
    """Return the crowding distance of each point (Deb 2002), (n,): infinite at the ends of each objective."""
    n, objectives = values.shape
    found = np.zeros(n)
    for k in range(objectives):
        order = np.argsort(values[:, k], kind="stable")
        width = values[order[-1], k] - values[order[0], k]
        found[order[[0, -1]]] = np.inf
        if width > 0 and n > 2:
            found[order[1:-1]] += (values[order[2:], k] - values[order[:-2], k]) / width
    return found


def hypervolume(values: Floats, worst: Sequence[float]) -> float:
    """Return the volume that points (n, 3) dominate below a reference point, as a share of the box from 0 to it."""
    top = np.asarray(worst, dtype=np.float64)
    inside = values[(values < top).all(axis=1)] / top
    if not len(inside):
        return 0.0
    volume = 0.0
    levels = np.unique(inside[:, 2])
    for low, high in zip(levels, [*levels[1:], 1.0], strict=True):
        area, reached = 0.0, 1.0
        plane = inside[inside[:, 2] <= low]
        for x, y in plane[np.lexsort((plane[:, 1], plane[:, 0]))][:, :2]:
            if y < reached:
                area += (1.0 - x) * (reached - y)
                reached = y
        volume += area * (high - low)
    return float(volume)


def archived(found: Points, size: int = ARCHIVE) -> Points:
    """Return the points that none dominates; while there are more than `size`, the most crowded one goes."""
    kept = found.of(~dominated(found.values[:, :SEARCHED], found.rejected))
    while len(kept.points) > size:
        crowded = int(np.argmin(crowding(kept.values[:, :SEARCHED])))
        kept = kept.of(np.arange(len(kept.points)) != crowded)
    return kept


def search_front(
    plan: Plan,
    measured: Callable[[Floats, int], Points],
    on_iteration: Callable[[int, Points], None] = lambda *_: None,
) -> Points:
    """Return the front that a swarm with an archive finds, valued on the samples of the last choice.

    measured: `Measurement.points`. Velocity as in the search of one objective; each particle's leader comes of a binary
    tournament on crowding. Its own best gives way to a point that dominates it, and to one that neither dominates by a
    coin. Each refresh values the archive again.
    """
    low, high = box(plan.family)
    x = first(plan)
    v = np.array([generator(plan, 0, k).uniform(-SPEED, SPEED, low.size) for k in range(plan.population)]) / 4.0
    draw = 0
    own = measured(x, draw)
    archive = archived(own)
    for iteration in range(1, plan.iterations):
        if iteration % plan.refresh == 0:
            draw += 1
            archive = archived(measured(archive.points, draw))
            own = measured(own.points, draw)
        inertia = np.interp(iteration, (1, max(2, plan.iterations - 1)), INERTIA)
        distance = crowding(archive.values[:, :SEARCHED])
        coins = np.empty(plan.population)
        for k in range(plan.population):
            draws = generator(plan, iteration, k)
            a, b = draws.integers(0, len(archive.points), 2)
            leader = archive.points[a if distance[a] >= distance[b] else b]
            xi = draws.random((2, low.size))
            drawn = OWN * xi[0] * (own.points[k] - x[k]) + GLOBAL * xi[1] * (leader - x[k])
            v[k] = np.clip(inertia * v[k] + drawn, -SPEED, SPEED)
            coins[k] = draws.random()
        x = x + v
        v = np.where((x < low) | (x > high), 0.0, v)
        x = np.clip(x, low, high)
        fresh = measured(x, draw)
        taken = np.array([_takes(fresh, own, k, coins[k]) for k in range(plan.population)])
        own = Points(
            *(
                np.where(taken[:, None] if now.ndim == 2 else taken, now, before)
                for now, before in zip(_columns(fresh), _columns(own), strict=True)
            )
        )
        archive = archived(archive + fresh)
        on_iteration(iteration, archive)
    return archived(measured(archive.points, SELECTION))


def _columns(found: Points) -> tuple[Floats, ...]:
    return found.points, found.values, found.errors, found.rejected


def _takes(fresh: Points, own: Points, k: int, coin: float) -> bool:
    """Return whether a particle's new point becomes its own best."""
    values = np.vstack([own.values[k, :SEARCHED], fresh.values[k, :SEARCHED]])
    worse = dominated(values, np.array([own.rejected[k], fresh.rejected[k]]))
    return bool(worse[0] or (not worse[1] and coin < 0.5))


def within(front: Points, hosts: float = 2.0) -> int:
    """Return the point of least imbalance among those that open at most so many hosts more than the best (§8)."""
    allowed = front.values[:, 0] <= front.values[:, 0].min() + hosts
    return int(np.flatnonzero(allowed)[np.argmin(front.values[allowed, 1])])


def front_data(front: Points, fixed: Mapping[str, Points], measurement: Measurement, plan: Plan) -> dict[str, Any]:
    """Return a front as JSON data, with the hypervolumes of it and of fixed policies by name, and the chosen point."""
    bound = lower_bound(measurement.instance).hosts
    worst = (WORST[0] * bound, *WORST[1:])
    order = np.argsort(front.values[:, 0], kind="stable")
    ranked = front.of(order)
    others = [one.values[0, :SEARCHED] for one in fixed.values()]
    return {
        "instance": measurement.instance.name,
        "family": plan.family,
        "bound": bound,
        "objectives": list(OBJECTIVES),
        "reference_point": list(worst),
        "hypervolume": hypervolume(ranked.values[:, :SEARCHED], worst),
        "hypervolume_fixed": hypervolume(np.array(others), worst) if others else 0.0,
        "fixed": {name: one.values[0].tolist() for name, one in fixed.items()},
        "played": measurement.played,
        "chosen": {"rule": "least imbalance within 2 hosts of the fewest", "point": within(ranked)},
        "front": [
            {
                "theta": ranked.points[k].tolist(),
                "values": ranked.values[k].tolist(),
                "standard_errors": [None if np.isnan(error) else error for error in ranked.errors[k].tolist()],
            }
            for k in range(len(ranked.points))
        ],
    }


def front_picture(data: Mapping[str, Any]) -> str:
    """Return a front as SVG: hosts against imbalance and concentration, fixed policies beside it."""
    values = np.array([one["values"] for one in data["front"]])

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharex=True)
        for axes, place in zip(panels, (1, 2), strict=True):
            axes.plot(values[:, 0], values[:, place], "o", color=POLICIES[0], markersize=4, label="front")
            for k, (name, fixed) in enumerate(data["fixed"].items()):
                axes.plot(
                    fixed[0], fixed[place], "D", color=POLICIES[(k + 1) % len(POLICIES)], markersize=5, label=name
                )
            axes.axvline(data["bound"], color=SOFT, linewidth=1.0, linestyle="--")
            panel(axes, x="open, hosts", y=f"{OBJECTIVES[place]}, share")
        panels[0].legend()

    return svg((9.5, 3.4), draw)
