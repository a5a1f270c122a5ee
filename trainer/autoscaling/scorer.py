"""Trains a scorer of whole-fleet targets from the exact branches of `simulator.autoscaling.branching`.

Each round plays episodes under the scorer so far, with exploration, and branches their minutes: every candidate's cost
is known exactly, for the trace's own future. The scorer learns the expected gain over the queue rule's choice; it
averages over futures because it sees none. A second network learns how large the gain is, for people to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATE_FEATURES, CANDIDATES, STATE_FEATURES, STATES
from domain.workload import Trace
from simulator.autoscaling.branching import BRANCH_STEPS, NO_WEIGHTS, BranchedEpisodes, Branches, RuleSetting, Weights
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.announcing import announced, announced_in_part
from trainer.autoscaling.evaluation.suite import boot_twice_as_long, dearer_type
from trainer.autoscaling.fleets import HORIZONS_S, fleet_of, tuned
from trainer.autoscaling.tasks import BAGS, FAMILIES, SELECTION_SEED, TRAINING_SEED, load_of

Floats = NDArray[np.float32]
Rows = NDArray[np.float64]

INPUTS = (*STATE_FEATURES, *CANDIDATE_FEATURES)
"""Names of a network's inputs: of the state, then of a candidate."""
PART = 10
"""Lessons that are played, kept and learnt from together."""
NEVER = -1e9
"""Logit of a candidate that does not exist."""
SHIFTED = 0.35
"""Share of lessons with longer boots, and of those with another price."""
ANNOUNCED_SHARE = 0.35
"""Share of lessons in which coming work is announced; the others teach to do without."""
GAIN_CLIP = 5.0
"""Per cent of an episode's cost: more than that, of one decision, is luck of this trace."""
WORTH_CLIP = 5.0
"""Gain units, for the same reason."""
GAINS_SEED = 99
"""Of the hundred seeds of a training, the one of the network of gains."""
LESSONS_APART, MOST_SEED = 10_000, 390
"""Lessons that each seed of a training has for itself, and the greatest seed, whose lessons nothing else uses."""
EVERYTHING = 1e30
"""The range of an input that is left out, either way."""
HELD_OUT = "held_out/ratio"
"""The figure that a training is watched by: cost, times the queue rule's, where nothing was learnt."""
USUAL = (0.001, 0.999)
"""Quantiles of a feature in training between which it is usual."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode to learn from: a world, its load, the rule's setting there, and the seed of its boots.

    announcements: coming work that is known, rows of `domain.announcements.rows_of`; None where none is announced.
    """

    config: SimulationConfig
    trace: Trace
    rule: RuleSetting
    seed: int
    announcements: Rows | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a scorer is trained.

    rounds: episodes per round of data aggregation. explore: share of random decisions per round. branch_share: of the
    minutes with more than one candidate. most: branched minutes per episode. branch_steps: under the rule after a
    candidate's own step. hidden: units of the two layers.
    networks: of the ensemble. groups: parts of the lessons (PART) take turns in so many groups, and so do networks;
    each learns from one, so that votes differ where lessons do not settle them. epochs, batch, rate, entropy: of the
    fit, one cycle of the learning rate.
    margin: logits by which a candidate must beat the rule's choice in training (see `with_margin`). idle_limit_min:
    minutes for which VMs beyond the minimum may idle before the rule decides. selection: fleets at large that the
    margin is chosen on. left_out: names of inputs that the networks do not see. Raises BadInput.
    """

    rounds: tuple[int, ...] = (500, 500, 500)
    explore: tuple[float, ...] = (0.15, 0.05, 0.05)
    branch_share: float = 1.0
    most: int = 120
    branch_steps: int = BRANCH_STEPS
    hidden: int = 64
    networks: int = 7
    groups: int = 1
    epochs: float = 6.0
    batch: int = 1024
    rate: float = 2e-3
    entropy: float = 0.002
    margin: float = 0.0
    idle_limit_min: float = 8.0
    selection: int = 180
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", tuple(self.rounds))
        object.__setattr__(self, "explore", tuple(self.explore))
        object.__setattr__(self, "left_out", tuple(self.left_out))
        if not self.rounds or min(self.rounds) < 1:
            raise BadInput(
                "rounds", "+".join(map(str, self.rounds)), "give the episodes of each round, such as 300+300"
            )
        if sum(self.rounds) > LESSONS_APART:
            raise BadInput("rounds", sum(self.rounds), f"give at most {LESSONS_APART} episodes in all")
        if len(self.explore) != len(self.rounds):
            raise BadInput("explore", len(self.explore), f"give a share for each of the {len(self.rounds)} rounds")
        for name in ("explore", "branch_share"):
            shares = getattr(self, name)
            if not all(0.0 <= share <= 1.0 for share in (shares if name == "explore" else (shares,))):
                raise BadInput(name, shares, "give shares in 0..1")
        for name in ("most", "branch_steps", "hidden", "networks", "groups", "epochs", "batch", "rate", "selection"):
            if not getattr(self, name) > 0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        for name in ("entropy", "margin", "idle_limit_min"):
            if not getattr(self, name) >= 0:
                raise BadInput(name, getattr(self, name), "give a number of 0 or more")
        if self.networks >= GAINS_SEED:
            raise BadInput("networks", self.networks, f"give fewer than {GAINS_SEED}")
        unknown = [name for name in self.left_out if name not in INPUTS]
        if unknown or len(set(self.left_out)) == len(INPUTS):
            raise BadInput("left_out", "+".join(unknown or self.left_out), f"name some of {', '.join(INPUTS)}")

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which of the INPUTS the networks see [S + C]."""
        return np.array([name not in self.left_out for name in INPUTS])


LOADS = (*FAMILIES, BAGS)
LOAD_SHARES = (0.36, 0.1, 0.1, 0.1, 0.17, 0.17)
"""Chance of each family of loads in a lesson."""


GENERAL = Recipe(rounds=(2500, 2500, 2500), networks=15, groups=5)
"""Of the scorer for fleets at large."""


def suite_lessons(first: int, count: int, world: SimulationConfig) -> Iterator[Lesson]:
    """Yield lessons of a world with loads of every kind, boots up to 2.4 times as long and one price up or down.

    first, count: which of the seeds from TRAINING_SEED on.
    """
    for seed in range(TRAINING_SEED + first, TRAINING_SEED + first + count):
        rng = np.random.default_rng([seed, 77])
        family, config = str(rng.choice(np.array(LOADS), p=LOAD_SHARES)), world
        if rng.random() < SHIFTED:
            config = config.boots_scaled(rng.uniform(1.0, 2.4))
        if rng.random() < SHIFTED:
            config = dearer_type(config, int(rng.integers(len(config.types))), rng.uniform(0.75, 1.7))
        trace = load_of(family, seed, config.max_cores)
        yield Lesson(config, trace, RuleSetting(), seed, announced_in_part(trace, seed, ANNOUNCED_SHARE))


def fleet_lessons(first: int, count: int) -> Iterator[Lesson]:
    """Yield lessons of fleets at large, each with the queue rule tuned for it."""
    for seed in range(TRAINING_SEED + first, TRAINING_SEED + first + count):
        fleet = fleet_of(seed)
        trace, rule = fleet.trace(0), tuned(fleet, 1, HORIZONS_S[1::2])
        yield Lesson(fleet.config, trace, rule, seed, announced_in_part(trace, seed, ANNOUNCED_SHARE))


def general_lessons(first: int, count: int, world: SimulationConfig) -> Iterator[Lesson]:
    """Yield lessons of one world, and every fourth of fleets at large.

    With every second one of fleets at large the scorer costs more on the selection, where only those gain.
    """
    for number in range(first, first + count):
        yield from suite_lessons(number, 1, world) if number % 4 else fleet_lessons(number, 1)


@dataclass(slots=True)
class Samples:
    """B branched minutes, an entry per episode: states [B, S], candidates [B, M, C], gains and worths [B, M].

    gains: over the rule's choice, in per cent of what the rule's episode costs. worths: the same gains in units of
    `domain.observations.autoscaling_scorer.gain_unit`. Both are clipped, and nan where there is no candidate.
    steps: of the simulator, that all this took.
    """

    states: list[Floats] = field(default_factory=list)
    candidates: list[Floats] = field(default_factory=list)
    gains: list[Floats] = field(default_factory=list)
    worths: list[Floats] = field(default_factory=list)
    steps: int = 0

    @property
    def minutes(self) -> int:
        """Branched minutes."""
        return sum(map(len, self.states))

    def add(self, found: Branches, reference: float) -> None:
        """Add what an episode teaches; reference: dollars that the rule's episode costs."""
        self.steps += found.steps
        if not found.counts.size or reference <= 0.0:
            return
        most = int(found.counts.max())
        there = np.arange(most) < found.counts[:, None]
        dollars = found.costs[:, :1] - found.costs[:, :most]

        def clipped(gains: NDArray[np.float64], clip: float) -> Floats:
            kept: Floats = np.where(there, np.clip(gains, -clip, clip), np.nan).astype(np.float32)
            return kept

        self.states.append(found.states.astype(np.float32))
        self.candidates.append((found.candidates[:, :most] * there[..., None]).astype(np.float32))
        self.gains.append(clipped(100.0 * dollars / reference, GAIN_CLIP))
        self.worths.append(clipped(dollars / found.units[:, None], WORTH_CLIP))

    def extend(self, more: Samples) -> None:
        """Add those of other episodes."""
        for name in ("states", "candidates", "gains", "worths"):
            getattr(self, name).extend(getattr(more, name))
        self.steps += more.steps

    def joined(self) -> Table:
        """Return the arrays of all episodes, M as long as the longest; BadInput without any."""
        if not self.states:
            raise BadInput("lessons", 0, "no minute has a choice: give loads with jobs that wait, or more episodes")
        most = max(part.shape[1] for part in self.candidates)

        def padded(parts: Sequence[Floats], fill: float) -> Floats:
            rows = []
            for part in parts:
                missing = [(0, 0), (0, most - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]
                rows.append(np.pad(part, missing, constant_values=fill))
            return np.concatenate(rows)

        gains, worths = padded(self.gains, np.nan), padded(self.worths, np.nan)
        there = ~np.isnan(gains)
        states, candidates = np.concatenate(self.states), padded(self.candidates, 0.0)
        return Table(states, candidates, there, np.nan_to_num(gains), np.nan_to_num(worths))


class Table(NamedTuple):
    """Samples of all episodes as arrays; there: which of the M candidates exist [B, M]. Gains are 0 elsewhere."""

    states: Floats
    candidates: Floats
    there: NDArray[np.bool_]
    gains: Floats
    worths: Floats


class Scorer(nn.Module):
    """Scores pairs of state and candidate: two layers of `hidden` units, one logit."""

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        """Draw the weights."""
        super().__init__()
        self.first, self.second = nn.Linear(STATES + CANDIDATES, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1, bias=False)
        for layer in (self.first, self.second, self.last):
            bound = 1.0 / math.sqrt(layer.in_features)
            for weight in layer.parameters():
                nn.init.uniform_(weight, -bound, bound, generator=generator)

    def forward(self, states: Tensor, candidates: Tensor, there: Tensor) -> Tensor:
        """Return the logits [B, M] of states [B, S] and candidates [B, M, C]; very low where not `there` [B, M]."""
        weight = self.first.weight
        shared = states @ weight[:, :STATES].T + self.first.bias
        # Most rows have a few candidates, and M is of the longest: only the pairs that exist are computed.
        row, place = there.nonzero(as_tuple=True)
        one = torch.relu(shared[row] + candidates[row, place] @ weight[:, STATES:].T)
        found = self.last(torch.relu(self.second(one)))[:, 0]
        return torch.full(there.shape, NEVER).index_put((row, place), found)


def gather(
    lessons: Iterable[Lesson], recipe: Recipe, weights: tuple[Weights, ...], explore: float, samples: Samples
) -> None:
    """Play and branch one episode per lesson, and add what it teaches to `samples`."""
    for lesson in lessons:
        episodes = BranchedEpisodes(lesson.config, lesson.trace, lesson.rule)
        reference = episodes.play(lesson.seed)
        found = episodes.play(
            lesson.seed,
            weights,
            margin=recipe.margin,
            idle_limit_min=recipe.idle_limit_min,
            explore=explore,
            branch_share=recipe.branch_share,
            most=recipe.most,
            steps=recipe.branch_steps,
            draw=lesson.seed + 1,
            announcements=lesson.announcements,
        )
        samples.add(found, reference.cost)
        samples.steps += reference.steps


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of the logits, of which candidates there are, and of the gains and worths of a batch of minutes."""


def fit(table: Table, recipe: Recipe, seed: int, start: Scorer | None = None) -> Scorer:
    """Return a scorer that maximises the expected gain under its softmax, and a little entropy.

    start: weights to begin with instead of drawn ones.
    """
    return _fitted(table, recipe, seed, start, expected_gain(recipe))


def expected_gain(recipe: Recipe) -> Loss:
    """Return the loss of the networks that vote: minus the expected gain under the softmax, and a little entropy."""

    def loss(logits: Tensor, there: Tensor, gains: Tensor, worths: Tensor) -> Tensor:
        shares = torch.log_softmax(logits, dim=1)
        chance = shares.exp()
        gain = (chance * gains).sum(dim=1).mean()
        spread = -(chance * shares.clamp(min=-30.0)).sum(dim=1).mean()
        return -gain - recipe.entropy * spread

    return loss


def fit_gains(table: Table, recipe: Recipe, seed: int, start: Scorer | None = None) -> Scorer:
    """Return a network whose output of a candidate, less that of the rule's choice, is the worth of taking it.

    The loss is Huber's: single futures are far from the mean.
    """

    def loss(logits: Tensor, there: Tensor, gains: Tensor, worths: Tensor) -> Tensor:
        apart = torch.where(there, logits - logits[:, :1], torch.zeros(()))
        # The rule's own choice is 0 by definition.
        return nn.functional.huber_loss(apart, worths, reduction="sum") / (there.sum() - there.shape[0]).clamp(min=1)

    return _fitted(table, recipe, seed, start, loss)


def _fitted(table: Table, recipe: Recipe, seed: int, start: Scorer | None, loss_of: Loss) -> Scorer:
    generator = torch.Generator().manual_seed(seed)
    scorer = Scorer(recipe.hidden, generator)
    if start is not None:
        scorer.load_state_dict(start.state_dict())
    states, candidates, there, gains, worths = (torch.from_numpy(part) for part in table)
    seen = torch.from_numpy(recipe.seen)
    with torch.no_grad():
        # An input whose weights begin at 0, and which is always 0, keeps them.
        scorer.first.weight[:, ~seen] = 0.0
    states, candidates = states * seen[:STATES], candidates * seen[STATES:]
    rows = states.shape[0]
    steps = max(int(recipe.epochs * rows / recipe.batch), 1)
    optimiser = torch.optim.Adam(scorer.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=recipe.rate, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(rows, (recipe.batch,), generator=generator)
        logits = scorer(states[chosen], candidates[chosen], there[chosen])
        loss = loss_of(logits, there[chosen], gains[chosen], worths[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return scorer


def weights_of(scorers: Sequence[Scorer]) -> tuple[Weights, ...]:
    """Return the weights of an ensemble as `simulator.autoscaling.branching.score` takes them."""

    def stacked(read: Callable[[Scorer], Tensor]) -> Weights:
        found: Weights = np.ascontiguousarray(torch.stack([read(scorer).detach() for scorer in scorers]).numpy())
        return found

    return (
        stacked(lambda scorer: scorer.first.weight.T),
        stacked(lambda scorer: scorer.first.bias),
        stacked(lambda scorer: scorer.second.weight.T),
        stacked(lambda scorer: scorer.second.bias),
        stacked(lambda scorer: scorer.last.weight[0]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A trained scorer with what is known of it.

    weights: of the networks that vote, as `simulator.autoscaling.branching.score` takes them. gains: of one network of
    the same layout, whose output of a candidate less that of the rule's choice is the expected gain in units of
    `domain.observations.autoscaling_scorer.gain_unit`. margin, idle_limit_min: see `Recipe`; the margin is the one that
    was chosen. low, high: of each state feature in training [S], the USUAL quantiles. least, greatest: its bounds.
    figures: what was measured, by name; the same for the same recipe and seed.
    """

    weights: tuple[Weights, ...]
    gains: tuple[Weights, ...]
    margin: float
    idle_limit_min: float
    low: Floats
    high: Floats
    least: Floats
    greatest: Floats
    recipe: Recipe
    seed: int
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lessons:
    """Some of the lessons that a source yields: `count` from number `first` on."""

    source: Callable[[int, int], Iterable[Lesson]]
    first: int
    count: int

    def __iter__(self) -> Iterator[Lesson]:
        return iter(self.source(self.first, self.count))

    def parts(self) -> list[Lessons]:
        """Return them in parts of PART lessons."""
        ends = range(0, self.count, PART)
        return [Lessons(self.source, self.first + at, min(PART, self.count - at)) for at in ends]


class Workshop:
    """Gathers samples and fits networks to them, here and in memory."""

    def __init__(self) -> None:
        self.samples = Samples()
        self._parts: list[Samples] = []

    def gather(self, lessons: Lessons, recipe: Recipe, weights: tuple[Weights, ...], explore: float) -> None:
        """Add what these lessons teach to the samples."""
        for some in lessons.parts():
            part = Samples()
            gather(some, recipe, weights, explore, part)
            self._parts.append(part)
            self.samples.extend(part)

    def fit(self, recipe: Recipe, seeds: Sequence[int], start: Trained | None) -> list[tuple[Weights, ...]]:
        """Return the weights of a network per seed, see `network_of`."""
        return [network_of(own_parts(self._parts, recipe, seed), recipe, seed, start) for seed in seeds]


Part = TypeVar("Part")


def own_parts(parts: Sequence[Part], recipe: Recipe, seed: int) -> Sequence[Part]:
    """Return the parts of the lessons that the network of a training's seed learns from (`Recipe.groups`).

    With fewer parts than groups there are only as many groups.
    """
    groups = max(min(recipe.groups, len(parts)), 1)
    return parts[seed % 100 % groups :: groups]


def network_of(parts: Iterable[Samples], recipe: Recipe, seed: int, start: Trained | None) -> tuple[Weights, ...]:
    """Return the weights that a training's seed leads to: of a voter, or of the network of gains (GAINS_SEED).

    start: what each network goes on from; drawn weights where it is None.
    """
    samples = Samples()
    for part in parts:
        samples.extend(part)
    table = samples.joined()
    number = seed % 100
    made, old = fit, None
    if number == GAINS_SEED:
        made, old = fit_gains, None if start is None else scorer_of(start.gains, 0)
    elif start is not None:
        old = scorer_of(start.weights, number % start.weights[0].shape[0])
    return weights_of([made(table, recipe, seed, old)])


def scorer_of(weights: tuple[Weights, ...], number: int) -> Scorer:
    """Return one network of an ensemble."""
    first, first_bias, second, second_bias, last = (torch.from_numpy(np.array(part[number])) for part in weights)
    scorer = Scorer(first.shape[1], torch.Generator())
    layers = {"first.weight": first.T, "first.bias": first_bias, "second.weight": second.T, "second.bias": second_bias}
    scorer.load_state_dict({**layers, "last.weight": last[None, :]})
    return scorer


def joined(parts: Sequence[tuple[Weights, ...]]) -> tuple[Weights, ...]:
    """Return the weights of several networks as those of one ensemble."""
    return tuple(np.concatenate(layers) for layers in zip(*parts, strict=True))


def check_seed(seed: int) -> None:
    """Raise BadInput for a seed of a training above MOST_SEED."""
    if not 0 <= seed <= MOST_SEED:
        raise BadInput("seed", seed, f"give a whole number in 0..{MOST_SEED}: other lessons are kept for reports")


def train(
    lessons: Callable[[int, int], Iterable[Lesson]],
    recipe: Recipe,
    seed: int,
    report: Callable[[str], None] = lambda line: None,
    workshop: Workshop | None = None,
    start: Trained | None = None,
) -> Trained:
    """Train an ensemble; lessons: of a round, the first seed and how many. BadInput for a seed above MOST_SEED.

    start: what its networks go on from, and what plays the first round.
    """
    check_seed(seed)
    shop = workshop or Workshop()
    weights, begun = NO_WEIGHTS if start is None else start.weights, seed * LESSONS_APART
    networks: list[tuple[Weights, ...]] = []
    for number, (episodes, explore) in enumerate(zip(recipe.rounds, recipe.explore, strict=True)):
        shop.gather(Lessons(lessons, begun, episodes), recipe, weights, explore)
        begun += episodes
        last = number == len(recipe.rounds) - 1
        fitted = (*range(recipe.networks), GAINS_SEED) if last else (0,)
        networks = shop.fit(recipe, [seed * 100 + k for k in fitted], start)
        weights = networks[0]
        report(f"round {number + 1} of {len(recipe.rounds)}: {shop.samples.minutes} branched minutes")
    states = np.concatenate(shop.samples.states)
    low, high = np.quantile(states, USUAL, axis=0).astype(np.float32)
    # What is not seen cannot be far from what was.
    seen, most = recipe.seen[:STATES], np.float32(EVERYTHING)
    return Trained(
        weights=joined(networks[:-1]),
        gains=networks[-1],
        margin=recipe.margin,
        idle_limit_min=recipe.idle_limit_min,
        low=np.where(seen, low, -most),
        high=np.where(seen, high, most),
        least=np.where(seen, states.min(axis=0), -most),
        greatest=np.where(seen, states.max(axis=0), most),
        recipe=recipe,
        seed=seed,
        figures={"branched_minutes": float(len(states)), "simulator_steps": float(shop.samples.steps)},
    )


def ratios(
    lessons: Sequence[Lesson], weights: tuple[Weights, ...], margin: float, idle_limit_min: float
) -> NDArray[np.float64]:
    """Return the costs of the scorer and of the rule, [E, 2], in the worlds of these lessons.

    The scorer sees what is announced, the rule never does.
    """
    costs = []
    for lesson in lessons:
        episodes = BranchedEpisodes(lesson.config, lesson.trace, lesson.rule)
        learned = _cost(episodes, lesson, weights, margin, idle_limit_min)
        costs.append((learned, episodes.play(lesson.seed).cost))
    return np.array(costs)


def _cost(
    episodes: BranchedEpisodes, lesson: Lesson, weights: tuple[Weights, ...], margin: float, idle_limit_min: float
) -> float:
    given: dict[str, Any] = {"margin": margin, "idle_limit_min": idle_limit_min}
    return episodes.play(lesson.seed, weights, announcements=lesson.announcements, **given).cost


MARGINS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Margins that are tried, in logits."""
WORST = 1.005
"""What no group of the selection may cost, beside the rule."""
SLACK = 0.002
"""Means of the selection that lie no further apart are as good as each other."""


def announced_by_half(lesson: Lesson) -> Lesson:
    """Return the lesson with announcements of which half are late, wrong or missing, a sixth each."""
    rng = np.random.default_rng([lesson.seed, 79])
    return replace(lesson, announcements=announced(lesson.trace, rng, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0))


ANNOUNCED, BOOTS, PRICE, FLEETS = "announced", "boots", "price", "fleets"
"""Groups of the selection beside the families of loads."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases that a margin is chosen on, whose seeds neither training nor reports use.

    Groups: `count` fleets at large, a third as many traces of each family of loads in `world`, and of the first family
    with boots twice as long (BOOTS), the dearest type half as dear again (PRICE), and half its announcements damaged.
    """

    world: SimulationConfig
    count: int

    @property
    def cases(self) -> list[tuple[str, int]]:
        """The group and the number in it of each case."""
        groups = [(group, self.count // 3) for group in (*LOADS, BOOTS, PRICE, ANNOUNCED)]
        return [(group, k) for group, cases in (*groups, (FLEETS, self.count)) for k in range(cases)]

    def lesson(self, group: str, number: int) -> Lesson:
        """Return a case."""
        if group == FLEETS:
            (found,) = fleet_lessons(SELECTION_SEED - TRAINING_SEED + number, 1)
            return replace(found, announcements=None)
        if group == ANNOUNCED:
            return announced_by_half(self.lesson(FAMILIES[0], number))
        world, seed = self.world, SELECTION_SEED + number
        if group == BOOTS:
            world = boot_twice_as_long(world)
        if group == PRICE:
            world = dearer_type(world, int(np.argmax([kind.price_per_hour for kind in world.types])))
        family = group if group in LOADS else FAMILIES[0]
        return Lesson(world, load_of(family, seed, world.max_cores), RuleSetting(), seed)


def _shares(item: tuple[Selection, str, int, tuple[Weights, ...], float]) -> list[float]:
    """Return the costs of a case at each of MARGINS, in times the rule's."""
    selection, group, number, weights, idle_limit_min = item
    lesson = selection.lesson(group, number)
    episodes = BranchedEpisodes(lesson.config, lesson.trace, lesson.rule)
    rule = episodes.play(lesson.seed).cost
    return [_cost(episodes, lesson, weights, margin, idle_limit_min) / rule for margin in MARGINS]


Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Yields a function's answers in the order of the items, maybe from several processes."""


def with_margin(trained: Trained, world: SimulationConfig, spread: Map = map) -> Trained:
    """Return it with the margin that costs least on the selection, on the mean of its groups.

    A margin with a group above WORST is out; the greatest is taken when all are. Of the others the greatest whose mean
    is within SLACK of the least: groups are too few to tell these apart, and a larger margin risks less elsewhere.
    Figures: the mean of the groups (HELD_OUT), and that of each.
    """
    selection = Selection(world, trained.recipe.selection)
    items = [(selection, group, k, trained.weights, trained.idle_limit_min) for group, k in selection.cases]
    by_group: dict[str, list[list[float]]] = {}
    for (group, _), shares in zip(selection.cases, spread(_shares, items), strict=True):
        by_group.setdefault(group, []).append(shares)
    # Fleets differ by orders of magnitude in what they cost: the mean of their ratios, not the ratio of sums.
    means = {group: np.mean(rows, axis=0) for group, rows in by_group.items()}
    table = np.array(list(means.values()))
    allowed = [at for at in range(len(MARGINS)) if table[:, at].max() <= WORST]
    least = min((table[:, at].mean() for at in allowed), default=0.0)
    best = max((at for at in allowed if table[:, at].mean() <= least + SLACK), default=len(MARGINS) - 1)
    figures = {f"selection/{group}": float(row[best]) for group, row in means.items()}
    figures |= {HELD_OUT: float(table[:, best].mean()), "selection/worst": float(table[:, best].max())}
    return replace(trained, margin=MARGINS[best], figures={**trained.figures, **figures})
