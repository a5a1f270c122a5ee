"""The importance of a model's inputs: what an episode costs more without one of them (specification §12.5).

What counts is the cost of the episode, not a change of the network's answers. Inputs of a recurrent network are
shuffled over time: those of an undisturbed episode are recorded, and the policy sees, minute by minute, the recorded
values of one input in another order, and everything else as it is. Inputs of a scorer are held at their mean instead,
which is a change of its first layer alone, so that episodes are played at the speed of its training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agent.models.card import ScorerCard
from agent.models.file import load_model
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import STATES
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import Weights
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.lessons import Lesson
from trainer.autoscaling.policies import AnySimulation, SimulatedPolicy, begin
from trainer.autoscaling.scorer import ANNOUNCED, FLEETS, INPUTS, THE_RULE, Selection
from trainer.autoscaling.scorer_runs import read_model
from trainer.kit.intervals import Interval, mean_interval

Floats = NDArray[np.float32]

GAIN_SHARE = 0.1
"""Inputs of a scorer that together lose less than this share of what it saves beside the rule are near zero."""
NEAR_ZERO_SHARE = 0.01
"""An input whose shuffling adds less than this share of the episode's cost, or nothing for sure, is near zero."""

AT_LARGE = 12
"""Fleets at large that a scorer's inputs are tried on too."""
STEP = 4
"""Inputs of least importance that are left out together at a time, one run after another."""
KEPT_MINUTES = 500
"""Of an episode, from which the means of a scorer's inputs are taken."""

OnProgress = Callable[[int, int], None]
"""Called with the episodes done and of all."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What an episode costs more without an input, or without several at once, dollars in the mean."""

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
    smaller model. gain: what a scorer saves beside the rule, None for a recurrent network.
    """

    model: str
    cost: float
    cases: int
    repeats: int
    effects: tuple[Effect, ...]
    near_zero: tuple[str, ...]
    together: Effect | None
    proposal: tuple[str, ...]
    gain: float | None = None

    @property
    def redundant(self) -> bool:
        """Whether the inputs near zero are so together, not only one by one."""
        if self.gain is not None:
            return self.together is not None and self.together.added.mean <= GAIN_SHARE * self.gain
        return self.together is not None and _near_zero(self.together.added, self.cost)

    def words(self) -> str:
        """Return what the figures say, in a sentence or two."""
        if self.gain is not None:
            return self._scorer_words(self.gain)
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
            f"replace one another. Leave them out one at a time; the smallest model to try has: {kept}."
        )

    def _scorer_words(self, gain: float) -> str:
        saves = f"it saves {gain:.3f} $ of {self.cost + gain:.2f} $ compared with the queue rule"
        if self.together is None:
            return f"Every input counts: {saves}, and without any one of them a tenth of that is lost."
        return (
            f"The {len(self.near_zero)} inputs of least effect, held at their means together, add "
            f"{self.together.added.mean:+.3f} $: {saves}. Try one without them: "
            f"trimtab train autoscaling --form scorer --set left_out={'+'.join(self.near_zero)}"
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
    from trainer.autoscaling.model_policies import ModelPolicy, read_network

    if not cases:
        raise BadInput("--importance", str(path), "give traces to measure it on")
    if isinstance(load_model(path).card, ScorerCard):
        return _of_scorer(path, cases, seed, on_progress)
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


def _of_scorer(path: Path, cases: Sequence[Case], seed: int, on_progress: OnProgress) -> Importance:
    """Return the importance of a scorer's inputs, on the cases beside the queue rule's usual setting, and at large.

    In one world prices, limits and boots never change, so that nothing is lost without them: AT_LARGE fleets at large
    and a third as many cases with announcements are played too. Cases count alike: costs are taken by those of the
    rule, times its mean cost on the cases given. Those that are near zero are the longest run of the least important
    inputs that together lose at most GAIN_SHARE of what the scorer saves: one by one they replace one another.
    """
    scorer = read_model(path)
    selection = Selection(preset("live-like"), AT_LARGE)
    lessons = [Lesson(case.config, case.trace, RuleSetting(), case.seed) for case in cases]
    lessons += [selection.lesson(group, k) for group, k in selection.cases if group in (ANNOUNCED, FLEETS)]
    worlds = [one.episodes() for one in lessons]
    seen = [place for place, name in enumerate(INPUTS) if name not in scorer.recipe.left_out]
    total, done = len(lessons) * (len(seen) + len(seen) // STEP), 0
    states, candidates, costs = [], [], []
    for one, world in zip(lessons, worlds, strict=True):
        found = world.play(
            one.seed,
            scorer.weights,
            margin=scorer.margin,
            idle_limit_min=scorer.idle_limit_min,
            branch_share=1.0,
            most=KEPT_MINUTES,
            steps=1,
            announcements=one.announcements,
        )
        there = np.arange(found.candidates.shape[1]) < found.counts[:, None]
        states.append(found.states)
        candidates.append(found.candidates[there])
        costs.append((found.cost, THE_RULE.cost(world, one.seed)))
    means = np.concatenate([np.concatenate(part).mean(axis=0) for part in (states, candidates)])
    base, rule = np.array(costs).T
    scale = float(rule[: len(cases)].mean())
    share = float((base / rule).mean())

    def effect(places: Sequence[int]) -> Effect:
        nonlocal done
        policy = scorer.policy._replace(weights=held(scorer.weights, places, means))
        added = np.empty(len(lessons))
        for place, (one, world) in enumerate(zip(lessons, worlds, strict=True)):
            cost = policy.cost(world, one.seed, one.announcements)
            added[place] = scale * (cost - base[place]) / rule[place]
            done += 1
            on_progress(done, total)
        return Effect(tuple(INPUTS[k] for k in places), mean_interval(added, seed=seed))

    effects = {place: effect([place]) for place in seen}
    order = sorted(seen, key=lambda place: effects[place].added.mean)
    gain = scale * (1.0 - share)
    runs = [effect(order[:count]) for count in range(STEP, len(order) + 1, STEP)]
    small = [run for run in runs if run.added.mean <= GAIN_SHARE * max(gain, 0.0)]
    together = small[-1] if small else None
    without = () if together is None else together.inputs
    return Importance(
        model=load_model(path).name,
        cost=scale * share,
        cases=len(lessons),
        repeats=1,
        effects=tuple(effects.values()),
        near_zero=without,
        together=together,
        proposal=tuple(INPUTS[place] for place in seen if INPUTS[place] not in without),
        gain=gain,
    )


def held(weights: tuple[Weights, ...], places: Sequence[int], values: NDArray[np.float64]) -> tuple[Weights, ...]:
    """Return the weights of a scorer that takes some inputs for these values, whatever they are [S + C]."""
    first, bias, second, second_bias, last, inward, across, gates = weights
    first, bias = _held(first, bias, places, values)
    inward, gates = _held(inward, gates, [place for place in places if place < STATES], values)
    return first, bias, second, second_bias, last, inward, across, gates


def _held(
    weights: Weights, bias: Weights, places: Sequence[int], values: NDArray[np.float64]
) -> tuple[Weights, Weights]:
    """Return a layer of each network [N, inputs, outputs] and its bias with some inputs held."""
    added = np.einsum("k,nkh->nh", values[list(places)].astype(np.float32), weights[:, list(places)])
    changed = weights.copy()
    changed[:, list(places)] = 0.0
    return changed, (bias + added).astype(np.float32)


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
