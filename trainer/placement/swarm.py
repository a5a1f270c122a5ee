"""The swarm: search of a policy's vector by the hosts that it opens over orders of requests (§3, §4).

From top to bottom: settings, value of a vector, first population, methods, search. Next to the published particle swarm
there are CMA-ES, cross-entropy and random search behind one interface, at equally many values.

A search is a function of its plan and of the values: draws come from generators with the key (iteration, particle). So
the values are its whole state: a resumed search replays them and continues bit for bit. Shuffles up to 9,999 are left
to tests: samples begin at FIRST.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, install_command
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import BF, KNOTS, Policy, box, parts_of
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from simulator.placement.instances import shuffle_order, shuffled, taken_over

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Settings.

PSO, CMAES, CROSS_ENTROPY, RANDOM = "pso", "cmaes", "cross-entropy", "random"
SHUFFLED, NOMINAL = "shuffled", "nominal"
SELECTION = -1
"""The draw of samples on which one of the finalists is chosen."""
FIRST, FIRST_SELECTION = 10_000, 1_010_000
"""Shuffle of the first sample of draw 0, and of the last choice."""
SELECTED_ON = 96
"""Shuffles of the last choice."""
INERTIA = (0.9, 0.4)
OWN, GLOBAL = 1.6, 1.6
"""w, from the first iteration to the last; c1 and c2."""
SPEED = 1.0
"""Most change of a coordinate in one iteration; a quarter of it at the begin."""
NARROW, REDRAWN = 0.02, 0.2
"""A swarm less wide than this share of the box in every coordinate is restarted: this share, the worst, is redrawn."""
GAIN = 1e-3
STEP_SIZE = 0.3
"""Of CMA-ES, in half widths of the box."""
ELITE, SMOOTHING, LEAST_SPREAD = 0.25, 0.7, 0.02
"""Cross-entropy: share of the population that the next is drawn from, weight of the new estimate, smallest spread."""
PRICE_OF_REJECTION = 1_000.0
"""Hosts that a rejected container counts as."""
WARM_UP = 0.3
"""Share of the time of arrivals that does not count where containers end; host-hours end with the last arrival."""
FILLED = (0.5, 0.9)
"""Share of the requests that best fit places before a vector takes over, drawn uniformly."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the search. Raises BadInput."""

    family: str = "tiers17a"  # of policies, by `domain.rules.placement.policies`
    method: str = PSO
    population: int = 24  # points of an iteration
    iterations: int = 60
    refresh: int = 5  # iterations between fresh samples, on which the best points are valued again
    patience: int = 15  # iterations without a gain above GAIN that end the search
    finalists: int = 6  # best points that are valued once more on samples of the last choice; their best is the result
    seed: int = 0
    starts: tuple[tuple[float, ...], ...] = ()  # vectors in the first population, before the named policies

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
class Samples:
    """Settings of the sequences on which a vector is valued. Raises BadInput."""

    sequences: int = 24  # of each instance and draw
    rho: float = 0.3  # weight of the range over them
    orders: str = SHUFFLED  # or nominal: the given order is the one sequence
    filled: float = 0.0  # share of the sequences that begin with a cluster filled by best fit (FILLED)

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise BadInput("sequences", self.sequences, "give 1 or more; 24 see the rare bad orders, 10 do not")
        if not 0.0 <= self.rho <= 10.0:
            raise BadInput("rho", self.rho, "give a weight from 0 to 10")
        if self.orders not in (SHUFFLED, NOMINAL):
            raise BadInput("orders", self.orders, f"choose {SHUFFLED} or {NOMINAL}")
        if not 0.0 <= self.filled <= 1.0:
            raise BadInput("filled", self.filled, "give a share from 0 to 1")

    def shuffles(self, draw: int) -> list[int]:
        """Return the shuffles of a draw, or those of the last choice for SELECTION."""
        if draw == SELECTION:
            return list(range(FIRST_SELECTION, FIRST_SELECTION + SELECTED_ON))
        return list(range(FIRST + draw * self.sequences, FIRST + (draw + 1) * self.sequences))

    def seen(self, iterations: int, refresh: int) -> list[int]:
        """Return every shuffle that a search with this many iterations was valued on."""
        if self.orders == NOMINAL:
            return []
        draws = range(1 + (iterations - 1) // refresh)
        return [k for draw in (*draws, SELECTION) for k in self.shuffles(draw)]


# Value of a vector.


def value_of(cost: Floats, rho: float) -> float:
    """Return the mean of the costs of sequences plus `rho` times their range (§3)."""
    return float(cost.mean() + rho * np.ptp(cost))


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Orders of one instance, and its arrays; with a snapshot the first requests are placed.

    best_fit_hours: host-hours of best fit where containers end, 0 where they do not.
    """

    instance: Instance
    orders: Ints
    arrays: Arrays
    best_fit_hours: float = 0.0


Point = tuple[tuple[float, ...], int]
"""A vector, and the draw on whose samples it is valued."""


class Valuation:
    """The objective of the search: the mean value over instances of the points of a family.

    No value depends on another: they are the same wherever they are computed. played: sequences so far. An instance
    with releases is one sequence, the given one, and costs its host-hours in per cent of those of best fit. choice:
    instances of the last choice, by default the same.
    """

    def __init__(
        self, instances: Sequence[Instance], family: str, samples: Samples, choice: Sequence[Instance] = ()
    ) -> None:
        for instance in (*instances, *choice):
            if not instance.requests:
                raise BadInput("instance", instance.name, "it has no requests: there is nothing to learn from")
            if instance.releases and not instance.requests[-1].at_s > 0.0:
                raise BadInput("instance", instance.name, "its requests come at once: give their times, or no releases")
        self.played = 0
        self._family, self._samples = family, samples
        self._base = [_with_hours(one) for one in instances]
        self._choice = [_with_hours(one) for one in choice] or self._base
        self._drawn: tuple[int, list[list[_Sequences]]] = (SELECTION - 1, [])

    def __call__(
        self, points: Floats, draw: int, run: Callable[[Sequence[Point]], Iterable[float]] | None = None
    ) -> Floats:
        """Return the value of each point, (n,); run: calls `value` for each of them, in this process or in others."""
        items = [(tuple(point), draw) for point in points.tolist()]
        each = len(self._samples.shuffles(draw))
        bases = self._choice if draw == SELECTION else self._base
        self.played += len(items) * sum(1 if self._in_order(hours) else each for _, _, hours in bases)
        return np.array(list(map(self.value, items) if run is None else run(items)))

    def value(self, point: Point) -> float:
        """Return the value of one point."""
        theta, draw = point
        return float(np.mean([value_of(cost, self._samples.rho) for cost in self.costs(np.array(theta), draw)]))

    def costs(self, theta: Floats, draw: int) -> list[Floats]:
        """Return the costs of a vector in each sequence of a draw, by instance."""
        policy = Policy("point", self._family, tuple(theta.tolist()))
        return [self._costs(parts, policy) for parts in self._of_draw(draw)]

    def _costs(self, parts: Sequence[_Sequences], policy: Policy) -> Floats:
        found = [
            _ended(part.instance, policy, part.arrays, part.best_fit_hours)
            if part.best_fit_hours
            else engine.play_orders(part.instance, policy, part.orders, part.arrays)
            for part in parts
        ]
        hosts, rejected = np.concatenate(found).astype(np.float64).T
        cost: Floats = hosts + PRICE_OF_REJECTION * rejected
        return cost

    def _of_draw(self, draw: int) -> list[list[_Sequences]]:
        """Return the sequences of a draw by instance; those of the newest draw stay in memory."""
        if self._drawn[0] != draw:
            self._drawn = (
                draw,
                [
                    self._sequences(instance, arrays, hours, draw)
                    for instance, arrays, hours in (self._choice if draw == SELECTION else self._base)
                ],
            )
        return self._drawn[1]

    def _in_order(self, hours: float) -> bool:
        """Whether the given order is the one sequence of an instance; hours: of best fit where containers end."""
        return self._samples.orders == NOMINAL or hours > 0.0

    def _sequences(self, instance: Instance, arrays: Arrays, hours: float, draw: int) -> list[_Sequences]:
        requests = len(instance.requests)
        if self._in_order(hours):
            return [_Sequences(instance, np.arange(requests)[None, :], arrays, hours)]
        shuffles = self._samples.shuffles(draw)
        filled = shuffles[: round(self._samples.filled * len(shuffles))]
        whole = [shuffle_order(requests, k) for k in shuffles[len(filled) :]]
        found = [_Sequences(instance, np.array(whole), arrays)] if whole else []
        for k in filled:
            share = float(np.random.default_rng((k, 1)).uniform(*FILLED))
            begun = taken_over(shuffled(instance, k), share)
            found.append(_Sequences(begun, np.arange(len(begun.requests))[None, :], engine.arrays_of(begun)))
        return found


def _with_hours(instance: Instance) -> tuple[Instance, Arrays, float]:
    """Return an instance, its arrays, and the host-hours of best fit, 0 where nothing ends."""
    arrays = engine.arrays_of(instance)
    return instance, arrays, float(_ended(instance, BF, arrays)[0, 0]) if instance.releases else 0.0


def _ended(instance: Instance, policy: Policy, arrays: Arrays, hours: float = 100.0) -> Floats:
    """Return host-hours in per cent of `hours`, and rejected containers, [1, 2], after the warm-up of WARM_UP."""
    last = instance.requests[-1].at_s
    found = engine.play(instance, policy, arrays=arrays, measured_from_s=WARM_UP * last, until_s=last)
    return np.array([[100.0 * found.host_hours / hours, found.rejected]])


# First population.


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
        # A convex potential prefers hosts that are nearly full, a concave one nearly empty hosts.
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
        # The largest expectation of large requests in the family, so that its reserve lasts.
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


# Methods.


class Method:
    """Proposes points, takes their values, and holds its best points (n, D) with their values (n,)."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._low, self._high = box(plan.family)
        self.points, self.values = np.empty((0, self._low.size)), np.empty(0)

    def ask(self, iteration: int) -> Floats:
        """Return the population of an iteration, (population, D)."""
        raise NotImplementedError

    def tell(self, points: Floats, values: Floats) -> None:
        """Take the values of a population; the best points of all populations stay, of equal ones the first."""
        all_points, all_values = np.vstack([self.points, points]), np.concatenate([self.values, values])
        order = np.argsort(all_values, kind="stable")[: self._plan.population]
        self.points, self.values = all_points[order], all_values[order]

    def renew(self, values: Floats) -> None:
        """Replace the values of the best points by those on fresh samples: the former flatter the best."""
        self.values = values.copy()


class Swarm(Method):
    """Particle swarm: every particle is drawn to its own best point and to the best of all (§4)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._all = range(plan.population)
        self._x = first(plan)
        self._v = np.array([generator(plan, 0, k).uniform(-SPEED, SPEED, self._low.size) for k in self._all]) / 4.0
        self.points, self.values = self._x.copy(), np.full(plan.population, np.inf)

    def ask(self, iteration: int) -> Floats:
        """Move every particle; the first positions are the first population."""
        if iteration == 0:
            return self._x.copy()
        inertia = np.interp(iteration, (1, max(2, self._plan.iterations - 1)), INERTIA)
        best = self.points[int(np.argmin(self.values))]
        for k in self._all:
            xi = generator(self._plan, iteration, k).random((2, self._low.size))
            drawn = OWN * xi[0] * (self.points[k] - self._x[k]) + GLOBAL * xi[1] * (best - self._x[k])
            self._v[k] = np.clip(inertia * self._v[k] + drawn, -SPEED, SPEED)
        self._x = self._x + self._v
        outside = (self._x < self._low) | (self._x > self._high)
        self._x, self._v = np.clip(self._x, self._low, self._high), np.where(outside, 0.0, self._v)
        if (np.ptp(self._x, axis=0) < NARROW * (self._high - self._low)).all():
            worst = np.argsort(-self.values, kind="stable")[: max(1, int(REDRAWN * self._plan.population))]
            for k in worst.tolist():
                self._x[k] = generator(self._plan, iteration, self._plan.population + k).uniform(self._low, self._high)
                self._v[k], self.values[k] = 0.0, np.inf
        return self._x.copy()

    def tell(self, points: Floats, values: Floats) -> None:
        """Take the values that are better than those of a particle's best point."""
        better = values < self.values
        self.points[better], self.values[better] = points[better], values[better]


class RandomSearch(Method):
    """Points drawn uniformly, the named policies first."""

    def ask(self, iteration: int) -> Floats:
        """Draw a population."""
        return uniform(self._plan, iteration) if iteration else first(self._plan)


class CrossEntropy(Method):
    """Points drawn from a normal distribution by coordinate, fitted to the best quarter of the last population."""

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
        first_time = not len(self.values)
        super().tell(points, values)
        elite = points[np.argsort(values, kind="stable")[: max(2, int(ELITE * len(points)))]]
        weight = 1.0 if first_time else SMOOTHING
        least = LEAST_SPREAD * (self._high - self._low)
        self._centre = weight * elite.mean(axis=0) + (1.0 - weight) * self._centre
        self._spread = np.maximum(weight * elite.std(axis=0) + (1.0 - weight) * self._spread, least)


class Evolution(Method):
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

        super().tell(points, values)
        if self._cma is None:
            # An edge of the box would leave CMA-ES half of its normal distribution.
            inside = self._low + 0.1 * (self._high - self._low), self._high - 0.1 * (self._high - self._low)
            self._cma = CMA(
                mean=np.clip(self.points[0], *inside),
                sigma=STEP_SIZE,
                bounds=np.stack([self._low, self._high], axis=1),
                seed=self._plan.seed,
                population_size=self._plan.population,
            )
            return
        # Finite values: only their order counts.
        ranked = np.where(np.isinf(values), np.finfo(np.float64).max, values)
        self._cma.tell(list(zip(points, ranked.tolist(), strict=True)))


METHODS: Mapping[str, Callable[[Plan], Method]] = {
    PSO: Swarm,
    CMAES: Evolution,
    CROSS_ENTROPY: CrossEntropy,
    RANDOM: RandomSearch,
}
"""By name."""


# Search.

Objective = Callable[[Floats, int], Floats]
"""Values (n,) of points (n, D), lower is better, on the samples of a draw (from 0; SELECTION for the last choice)."""


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
class Result:
    """The best vector; value: on the samples of the last choice. steps: one an iteration."""

    theta: Floats
    value: float
    steps: tuple[Step, ...]
    evaluations: int
    """Points that were valued, with repetitions."""


@dataclass(slots=True)
class History:
    """The values of a search so far, in the order of the calls."""

    values: list[Floats] = field(default_factory=list)

    def as_state(self) -> dict[str, Any]:
        """Return it as arrays for a checkpoint."""
        flat = np.concatenate([np.empty(0), *self.values])
        return {"values": flat, "lengths": np.array([len(one) for one in self.values], dtype=np.int64)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> History:
        """Return the history of a checkpoint."""
        ends = np.cumsum(state["lengths"])[:-1]
        return cls([part.copy() for part in np.split(state["values"], ends)] if len(state["lengths"]) else [])


def search(
    plan: Plan,
    objective: Objective,
    *,
    history: History | None = None,
    on_step: Callable[[Step, History], None] | None = None,
) -> Result:
    """Return the best vector of a family that a method finds.

    history: the values of an interrupted search with this plan, which are not computed again. on_step is called after
    every iteration that was not replayed. All methods use equally many values: `population` an iteration, and as many
    at each refresh.
    """
    history = history if history is not None else History()
    known = list(history.values)
    calls = 0

    def valued(points: Floats, draw: int) -> Floats:
        nonlocal calls
        calls += 1
        if calls <= len(known):
            return known[calls - 1]
        values = np.asarray(objective(points, draw), dtype=np.float64)
        # nan loses against every number.
        values = np.where(np.isnan(values), np.inf, values)
        history.values.append(values)
        return values

    method = METHODS[plan.method](plan)
    low, high = box(plan.family)
    steps: list[Step] = []
    draw, idle, best = 0, 0, math.inf
    for iteration in range(plan.iterations):
        if iteration and iteration % plan.refresh == 0:
            draw += 1
            method.renew(valued(method.points, draw))
            best = float(method.values.min())
        points = method.ask(iteration)
        values = valued(points, draw)
        method.tell(points, values)
        at = int(np.argmin(method.values))
        value = float(method.values[at])
        idle = 0 if value < best - GAIN else idle + 1
        best = min(best, value)
        width = float(((points.max(axis=0) - points.min(axis=0)) / (high - low)).max())
        steps.append(Step(iteration, method.points[at].copy(), value, float(values.mean()), width))
        if on_step is not None and calls > len(known):
            on_step(steps[-1], history)
        if idle >= plan.patience:
            break
    finalists = method.points[np.argsort(method.values, kind="stable")[: plan.finalists]]
    values = valued(finalists, SELECTION)
    chosen = int(np.argmin(values))
    return Result(finalists[chosen], float(values[chosen]), tuple(steps), sum(len(one) for one in history.values))
