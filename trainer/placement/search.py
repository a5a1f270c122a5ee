"""Search of a policy's vector: the particle swarm of §4, CMA-ES, cross-entropy and random search behind one interface.

A search is a function of its plan and of the values that it was given: draws come from generators with the key
(iteration, particle). So the values are its whole state: a resumed search replays them, and goes on bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, install_command
from domain.rules.placement.policies import KNOTS, box, parts_of

Floats = NDArray[np.float64]
Objective = Callable[[Floats, int], Floats]
"""Values (n,) of points (n, D), lower is better, on the samples of a draw (from 0; SELECTION for the last choice)."""

PSO, CMAES, CROSS_ENTROPY, RANDOM = "pso", "cmaes", "cross-entropy", "random"
SELECTION = -1
"""The draw of samples on which one of the finalists is chosen."""

INERTIA = (0.9, 0.4)
OWN, GLOBAL = 1.6, 1.6
"""w, from the first iteration to the last; c1 and c2."""
SPEED = 1.0
"""Most change of a coordinate in one iteration; a quarter of it at the begin."""
NARROW, REDRAWN = 0.02, 0.2
"""A swarm less wide than this share of the box in every coordinate is restarted: so large a share, the worst, anew."""
GAIN = 1e-3
STEP_SIZE = 0.3
"""Of CMA-ES, in half widths of the box."""
ELITE, SMOOTHING, LEAST_SPREAD = 0.25, 0.7, 0.02
"""Cross-entropy: share of the population that the next is drawn from, weight of the new estimate, smallest spread."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a search goes.

    family: that the vector is of. population: points an iteration. refresh: iterations between fresh samples, on which
    the best so far are valued anew. patience: iterations without a gain above GAIN that end it. finalists: of the best,
    so many are valued once more on samples of their own, and the best of these is the answer. starts: vectors that the
    first population has, beside the named policies.
    """

    family: str = "tiers17a"
    method: str = PSO
    population: int = 24
    iterations: int = 60
    refresh: int = 5
    patience: int = 15
    finalists: int = 6
    seed: int = 0
    starts: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        parts_of(self.family)
        if self.method not in METHODS:
            raise BadInput("method", self.method, f"choose one of {', '.join(METHODS)}")
        for name, least in (("population", 4), ("iterations", 1), ("refresh", 1), ("patience", 1), ("finalists", 1)):
            if getattr(self, name) < least:
                raise BadInput(name, getattr(self, name), f"give {least} or more")
        if not box(self.family)[0].size:
            raise BadInput(
                "family", self.family, "it has no parameters to search: choose tiers17a or another learned one"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration: the best point so far with its value on the present samples, mean of the iteration, all values."""

    iteration: int
    best: Floats
    value: float
    mean: float
    width: float
    """Of the points, as a share of the box, in their widest coordinate."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of a search; value: on the samples of the last choice. steps: one an iteration."""

    theta: Floats
    value: float
    steps: tuple[Step, ...]
    evaluations: int
    """Points that were valued, those valued anew included."""


@dataclass(slots=True)
class History:
    """The values of a search so far, in the order in which they were asked for, and the samples they are of."""

    values: list[Floats] = field(default_factory=list)

    def as_state(self) -> dict[str, Any]:
        """Return it as arrays for a checkpoint."""
        flat = np.concatenate([np.empty(0), *self.values])
        return {"told": flat, "lengths": np.array([len(one) for one in self.values], dtype=np.int64)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> History:
        """Return what `as_state` made."""
        ends = np.cumsum(state["lengths"])[:-1]
        return cls([part.copy() for part in np.split(state["told"], ends)] if len(state["lengths"]) else [])


class Searcher(Protocol):
    """A method: asks for points, is told their values, and keeps its best points, which are valued anew."""

    def ask(self, iteration: int) -> Floats: ...  # noqa: D102

    def tell(self, points: Floats, values: Floats) -> None: ...  # noqa: D102

    def kept(self) -> tuple[Floats, Floats]: ...  # noqa: D102

    def renew(self, values: Floats) -> None: ...  # noqa: D102


def search(
    plan: Plan,
    objective: Objective,
    *,
    history: History | None = None,
    on_step: Callable[[Step, History], None] | None = None,
) -> Found:
    """Return the best vector of a family that a method finds.

    history: the values of a search with this plan that was interrupted, which are not asked for again. on_step is
    called after every iteration that was not replayed. All methods ask for equally many values: `population` an
    iteration, and as many again at each refresh.
    """
    kept = history if history is not None else History()
    known = list(kept.values)
    asked = 0

    def valued(points: Floats, draw: int) -> Floats:
        nonlocal asked
        asked += 1
        if asked <= len(known):
            return known[asked - 1]
        values = np.asarray(objective(points, draw), dtype=np.float64)
        # A value that is no number loses against every other, whatever made it.
        values = np.where(np.isnan(values), np.inf, values)
        kept.values.append(values)
        return values

    searcher = METHODS[plan.method](plan)
    low, high = box(plan.family)
    steps: list[Step] = []
    draw, idle, best = 0, 0, math.inf
    for iteration in range(plan.iterations):
        if iteration and iteration % plan.refresh == 0:
            draw += 1
            searcher.renew(valued(searcher.kept()[0], draw))
            best = float(searcher.kept()[1].min())
        points = searcher.ask(iteration)
        values = valued(points, draw)
        searcher.tell(points, values)
        held, worth = searcher.kept()
        at = int(np.argmin(worth))
        idle = 0 if worth[at] < best - GAIN else idle + 1
        best = min(best, float(worth[at]))
        wide = float(((points.max(axis=0) - points.min(axis=0)) / (high - low)).max())
        steps.append(Step(iteration, held[at].copy(), float(worth[at]), float(values.mean()), wide))
        if on_step is not None and asked > len(known):
            on_step(steps[-1], kept)
        if idle >= plan.patience:
            break
    held, worth = searcher.kept()
    finalists = held[np.argsort(worth, kind="stable")[: plan.finalists]]
    values = valued(finalists, SELECTION)
    chosen = int(np.argmin(values))
    return Found(finalists[chosen], float(values[chosen]), tuple(steps), sum(len(one) for one in kept.values))


def generator(plan: Plan, iteration: int, particle: int) -> np.random.Generator:
    """Return the generator of a particle in an iteration, whichever process asks."""
    return np.random.default_rng(np.random.SeedSequence(plan.seed, spawn_key=(iteration, particle)))


def uniform(plan: Plan, iteration: int) -> Floats:
    """Return a population drawn uniformly from the box, (population, D)."""
    low, high = box(plan.family)
    rows = [generator(plan, iteration, k).uniform(low, high) for k in range(plan.population)]
    return np.array(rows)


def first(plan: Plan) -> Floats:
    """Return the population that every method begins with: the named policies, the rest uniform."""
    known = [np.array(start, dtype=np.float64) for start in plan.starts]
    points, named = uniform(plan, 0), [*known, *named_starts(plan.family).values()][: plan.population]
    if named:
        points[: len(named)] = named
    return points


def named_starts(family: str) -> dict[str, Floats]:
    """Return BF, WF and RESERVE(100, 8, 10) as vectors of a family, as far as it can express them.

    The first family of a sum expresses them, the others add nothing.
    """
    name = parts_of(family)[0][0]
    rest = np.zeros(box(family)[0].size - box(name)[0].size)
    if name == "linear14":
        by_residual = {"BF": -1.0, "WF": 1.0}
        own = {key: np.array([sign, sign, *[0.0] * 12]) for key, sign in by_residual.items()}
    elif name == "potential17":
        # A convex potential prefers hosts that are nearly full, a concave one those that are nearly empty.
        share = KNOTS / KNOTS[-1]
        convex, step = share**2, np.where(KNOTS >= 8, 0.5, 0.0)
        last = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
        own = {
            "BF": np.concatenate([convex, last]),
            "WF": np.concatenate([-convex, last]),
            "RESERVE": np.concatenate([step + 0.5 * convex, last]),
        }
    elif name.startswith("tiers"):
        free = [-1.0] * 4
        # As many large requests expected as the family can say, so that its reserve lasts.
        rest = np.concatenate([np.ones(box(name)[0].size - box("tiers17")[0].size), rest])
        # X_8 = 1 + 75 * (0.32 + 1) = 100 hosts, and n0 = 4 + 8 * (-0.25 + 1) = 10 containers.
        targets = [-1.0, 0.32, -1.0, -1.0]
        own = {
            "BF": np.array([*free, -1.0, 1.0, *free, -1.0, 1.0, *free, 0.0]),
            "WF": np.array([*free, 1.0, 1.0, *free, 1.0, 1.0, *free, 0.0]),
            "RESERVE": np.array([*targets, -1.0, 0.0, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0, *free, -0.25]),
        }
    else:
        own = {}
    return {key: np.concatenate([vector, rest]) for key, vector in own.items()}


class Swarm:
    """Particle swarm: every particle is drawn to its own best point and to the best of all (§4)."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._low, self._high = box(plan.family)
        self._x = first(plan)
        self._v = np.array([generator(plan, 0, k).uniform(-SPEED, SPEED, self._low.size) for k in self._all]) / 4.0
        self._own, self._values = self._x.copy(), np.full(plan.population, np.inf)

    @property
    def _all(self) -> range:
        return range(self._plan.population)

    def ask(self, iteration: int) -> Floats:
        """Move every particle; the first positions are asked for as they are."""
        if iteration == 0:
            return self._x.copy()
        inertia = np.interp(iteration, (1, max(2, self._plan.iterations - 1)), INERTIA)
        best = self._own[int(np.argmin(self._values))]
        for k in self._all:
            draws = generator(self._plan, iteration, k)
            xi = draws.random((2, self._low.size))
            drawn = OWN * xi[0] * (self._own[k] - self._x[k]) + GLOBAL * xi[1] * (best - self._x[k])
            self._v[k] = np.clip(inertia * self._v[k] + drawn, -SPEED, SPEED)
        self._x = self._x + self._v
        outside = (self._x < self._low) | (self._x > self._high)
        self._x, self._v = np.clip(self._x, self._low, self._high), np.where(outside, 0.0, self._v)
        if (np.ptp(self._x, axis=0) < NARROW * (self._high - self._low)).all():
            worst = np.argsort(-self._values, kind="stable")[: max(1, int(REDRAWN * self._plan.population))]
            for k in worst.tolist():
                self._x[k] = generator(self._plan, iteration, self._plan.population + k).uniform(self._low, self._high)
                self._v[k], self._values[k] = 0.0, np.inf
        return self._x.copy()

    def tell(self, points: Floats, values: Floats) -> None:
        """Keep what is better than a particle's best."""
        better = values < self._values
        self._own[better], self._values[better] = points[better], values[better]

    def kept(self) -> tuple[Floats, Floats]:
        """Return every particle's best point and its value."""
        return self._own, self._values

    def renew(self, values: Floats) -> None:
        """Take the values on fresh samples for those of before, which flatter the best."""
        self._values = values.copy()


@dataclass(slots=True)
class Best:
    """The best points of a method that keeps none itself: as many as its population."""

    size: int
    points: Floats
    values: Floats

    def add(self, points: Floats, values: Floats) -> None:
        """Keep the best of all; equal ones in the order in which they came."""
        all_points, all_values = np.vstack([self.points, points]), np.concatenate([self.values, values])
        order = np.argsort(all_values, kind="stable")[: self.size]
        self.points, self.values = all_points[order], all_values[order]


class _Keeping:
    """What methods share that keep their best points beside what they draw from."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._low, self._high = box(plan.family)
        self._best = Best(plan.population, np.empty((0, self._low.size)), np.empty(0))

    def kept(self) -> tuple[Floats, Floats]:
        """Return the best points and their values."""
        return self._best.points, self._best.values

    def renew(self, values: Floats) -> None:
        """Take the values on fresh samples for those of before."""
        self._best.values = values.copy()


class RandomSearch(_Keeping):
    """Points drawn uniformly, the named policies first."""

    def ask(self, iteration: int) -> Floats:
        """Draw a population."""
        return uniform(self._plan, iteration) if iteration else first(self._plan)

    def tell(self, points: Floats, values: Floats) -> None:
        """Keep the best."""
        self._best.add(points, values)


class CrossEntropy(_Keeping):
    """Points drawn from a normal distribution per coordinate, fitted to the best quarter of those before."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._centre, self._spread = np.zeros(self._low.size), np.ones(self._low.size)

    def ask(self, iteration: int) -> Floats:
        """Draw a population."""
        if iteration == 0:
            return first(self._plan)
        rows = [
            generator(self._plan, iteration, k).normal(self._centre, self._spread) for k in range(self._plan.population)
        ]
        return np.clip(np.array(rows), self._low, self._high)

    def tell(self, points: Floats, values: Floats) -> None:
        """Fit to the best quarter of this population."""
        first_time = not len(self._best.values)
        self._best.add(points, values)
        elite = points[np.argsort(values, kind="stable")[: max(2, int(ELITE * len(points)))]]
        weight = 1.0 if first_time else SMOOTHING
        least = LEAST_SPREAD * (self._high - self._low)
        self._centre = weight * elite.mean(axis=0) + (1.0 - weight) * self._centre
        self._spread = np.maximum(weight * elite.std(axis=0) + (1.0 - weight) * self._spread, least)


class Evolution(_Keeping):
    """CMA-ES of the package `cmaes`, begun at the best point of the first population."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if find_spec("cmaes") is None:
            remedy = f"cmaes is missing: {install_command('placement')}, or use another method"
            raise BadInput("method", CMAES, remedy)
        self._cma: Any = None

    def ask(self, iteration: int) -> Floats:
        """Draw a population from the present normal distribution, inside the box."""
        if iteration == 0:
            return first(self._plan)
        return np.array([self._cma.ask() for _ in range(self._plan.population)])

    def tell(self, points: Floats, values: Floats) -> None:
        """Adapt the distribution."""
        from cmaes import CMA

        self._best.add(points, values)
        if self._cma is None:
            # An edge of the box would leave CMA-ES half of its normal distribution.
            inside = self._low + 0.1 * (self._high - self._low), self._high - 0.1 * (self._high - self._low)
            self._cma = CMA(
                mean=np.clip(self._best.points[0], *inside),
                sigma=STEP_SIZE,
                bounds=np.stack([self._low, self._high], axis=1),
                seed=self._plan.seed,
                population_size=self._plan.population,
            )
            return
        # Finite stand-ins: the order of the values is all that counts.
        ranked = np.where(np.isinf(values), np.finfo(np.float64).max, values)
        self._cma.tell(list(zip(points, ranked.tolist(), strict=True)))


METHODS: Mapping[str, Callable[[Plan], Searcher]] = {
    PSO: Swarm,
    CMAES: Evolution,
    CROSS_ENTROPY: CrossEntropy,
    RANDOM: RandomSearch,
}
"""By name."""
