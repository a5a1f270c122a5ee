"""Permutation importance: what an episode costs more when one input is shuffled over time (specification §12.5).

The inputs of an undisturbed episode are recorded; in the shuffled one the policy sees, minute by minute, that input's
recorded values in another order, and everything else as it is. What counts is the cost of the episode, not a change of
the network's answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.kit.intervals import Interval, mean_interval

Floats = NDArray[np.float32]

NEAR_ZERO_SHARE = 0.01
"""An input whose shuffling adds less than this share of the episode's cost, or nothing for sure, is near zero."""

OnProgress = Callable[[int, int], None]
"""Called with the episodes done and of all."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What shuffling an input (or several at once) adds to the mean cost of an episode, dollars."""

    inputs: tuple[str, ...]
    added: Interval

    @property
    def name(self) -> str:
        """The input, or how many."""
        return self.inputs[0] if len(self.inputs) == 1 else f"these {len(self.inputs)} together"


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of every input of a model.

    model: SHA-256 of its file. cost: mean cost of the undisturbed episodes. near_zero: inputs that a smaller model may
    do without; together: what shuffling all of those at once adds, None when there is none. proposal: the inputs of the
    smaller model.
    """

    model: str
    cost: float
    cases: int
    repeats: int
    effects: tuple[Effect, ...]
    near_zero: tuple[str, ...]
    together: Effect | None
    proposal: tuple[str, ...]

    @property
    def redundant(self) -> bool:
        """Whether the inputs near zero are so together, not only one by one."""
        return self.together is not None and _near_zero(self.together.added, self.cost)

    def words(self) -> str:
        """Return what the figures say, in a sentence or two."""
        if not self.near_zero:
            return f"Every input counts: none is near zero at a mean cost of {self.cost:.2f} $."
        added = 0.0 if self.together is None else self.together.added.mean
        if not self.proposal:
            return f"No input counts by itself; all shuffled at once add {added:+.2f} $ to {self.cost:.2f} $."
        names, kept = ", ".join(self.near_zero), ", ".join(self.proposal)
        if self.redundant:
            return f"Near zero: {names}; shuffled together they add {added:+.2f} $. Try a model with only: {kept}."
        return (
            f"Near zero one by one: {names}; but shuffled together they add {added:+.2f} $ to {self.cost:.2f} $: they "
            f"stand in for one another. Leave them out one at a time; the smallest model to try has: {kept}."
        )

    def lines(self) -> list[tuple[object, ...]]:
        """Return a row per input, the most important first."""
        every = sorted(self.effects, key=lambda effect: -effect.added.mean)
        return [
            (e.name, f"{e.added.mean:+.3f} $", f"{e.added.low:+.3f} to {e.added.high:+.3f}")
            for e in [*every, *([self.together] if self.together else [])]
        ]

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self) | {"redundant": self.redundant}


def importance_of(
    path: Path,
    cases: Sequence[Case],
    *,
    repeats: int = 20,
    seed: int = 0,
    on_progress: OnProgress = lambda done, of: None,
) -> Importance:
    """Measure a model file on these cases.

    The interval is that of the mean over the cases, from the `repeats` shuffles. Raises BadInput when the model does
    not fit a case's fleet, or without a case.
    """
    from trainer.autoscaling.policies.model import ModelPolicy, read_network

    if not cases:
        raise BadInput("--importance", str(path), "give traces to measure it on")
    network = read_network(path)
    policy = ModelPolicy(network)
    names = network.model.card.features
    records = [_recorded(policy, case) for case in cases]
    # The last round, of all inputs near zero together, may turn out not to be needed.
    total = len(cases) * repeats * (len(names) + 1)
    done = 0

    def effect(positions: Sequence[int]) -> Effect:
        nonlocal done
        added = np.empty((repeats, len(cases)))
        for repeat, place in itertools.product(range(repeats), range(len(cases))):
            cost, seen = records[place]
            alter = _shuffled(seen, positions, np.random.default_rng((seed, repeat, place)))
            added[repeat, place] = _cost(policy, cases[place], alter) - cost
            done += 1
            on_progress(done, total)
        return Effect(tuple(names[k] for k in positions), mean_interval(added.mean(axis=1), seed=seed))

    effects = tuple(effect([k]) for k in range(len(names)))
    cost = float(np.mean([cost for cost, _ in records]))
    low = [k for k, e in enumerate(effects) if _near_zero(e.added, cost)]
    together = effect(low) if low else None
    on_progress(total, total)
    return Importance(
        model=network.model.name,
        cost=cost,
        cases=len(cases),
        repeats=repeats,
        effects=effects,
        near_zero=tuple(names[k] for k in low),
        together=together,
        proposal=tuple(name for k, name in enumerate(names) if k not in low),
    )


def _near_zero(added: Interval, cost: float) -> bool:
    return added.low <= 0.0 or added.mean < NEAR_ZERO_SHARE * cost


class _Lens:
    """A simulation whose observations are altered on their way to the policy; all else is the simulation's own."""

    def __init__(self, simulation: AnySimulation, alter: Callable[[int, Floats], Floats]) -> None:
        self._simulation = simulation
        self._alter = alter

    def observe(self) -> Floats:
        """Return obs-7 as altered."""
        return self._alter(self._simulation.steps, self._simulation.observe())

    def observe_v2(self) -> Floats:
        """Return obs-v2 as altered."""
        return self._alter(self._simulation.steps, self._simulation.observe_v2())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)


def _cost(policy: SimulatedPolicy, case: Case, alter: Callable[[int, Floats], Floats]) -> float:
    simulation = begin(policy, case.config, case.trace, case.seed)
    lens = cast(AnySimulation, _Lens(simulation, alter))
    while not (simulation.finished or simulation.truncated):
        simulation.step_orders(policy.choose(lens))
    cost: float = simulation.measures().cost
    return cost


def _recorded(policy: SimulatedPolicy, case: Case) -> tuple[float, Floats]:
    """Run undisturbed; return the cost and what the policy saw, shape (steps, features)."""
    seen: list[Floats] = []

    def record(step: int, observation: Floats) -> Floats:
        seen.append(observation)
        return observation

    cost = _cost(policy, case, record)
    return cost, np.array(seen, dtype=np.float32)


def _shuffled(seen: Floats, positions: Sequence[int], rng: np.random.Generator) -> Callable[[int, Floats], Floats]:
    """Return what replaces inputs by recorded values in a random order, each input in its own.

    An episode that outlasts the recorded one goes through another order of the same values.
    """
    orders = {k: rng.permutation(len(seen)) for k in positions}

    def alter(step: int, observation: Floats) -> Floats:
        if step > 0 and step % len(seen) == 0:
            orders.update({k: rng.permutation(len(seen)) for k in positions})
        altered = observation.copy()
        for k, order in orders.items():
            altered[k] = seen[order[step % len(seen)], k]
        return altered

    return alter
