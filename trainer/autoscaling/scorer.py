"""A scorer of whole-fleet targets, trained from the exact branches of `simulator.autoscaling.branching`, in one file.

From top to bottom: settings, samples, network and fit, the trained scorer, loop, margin, one's own loads. Lessons
come from `trainer.autoscaling.lessons`; `trainer.autoscaling.scorer_runs` has the directory of a run and its model.

Each round plays episodes under the scorer so far, with exploration, and branches their minutes: every candidate's cost
is known exactly, for the trace's own future. The scorer learns the expected gain over the queue rule's choice; it
averages over futures because it sees none. A second network learns how large the gain is, for people to read.

With `cells`, each network has an LSTM that sees the state of every minute. It is trained through time, over stretches
of WINDOW minutes: the memory continues from one to the next, gradients do not.
"""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATE_FEATURES, CANDIDATES, STATE_FEATURES, STATES
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace
from simulator.autoscaling.branching import (
    BRANCH_STEPS,
    NO_WEIGHTS,
    BranchedEpisodes,
    Branches,
    Weights,
    without_memory,
)
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.suite import boot_twice_as_long, dearer_type
from trainer.autoscaling.lessons import (
    LOADS,
    Lesson,
    Loads,
    Map,
    OwnLessons,
    Source,
    announced,
    changing_lessons,
    fleet_lessons,
    general_lessons,
)
from trainer.autoscaling.tasks import FAMILIES, SELECTION_SEED, TRAINING_SEED, load_of
from trainer.kit.checkpoint import plain, weights_hash
from trainer.kit.device import CPU, DEVICES, device_of
from trainer.kit.files import code_version, replace_file
from trainer.kit.intervals import compare
from trainer.kit.progress import CURVE_FILE, Curve, Lines, Listeners, Progress, log_of, read_curve
from trainer.kit.runs import on_screen

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Ensemble = tuple[Weights, ...]
"""Weights of networks as `simulator.autoscaling.branching.score` takes them, stacked along the first axis."""

INPUTS = (*STATE_FEATURES, *CANDIDATE_FEATURES)
"""Names of a network's inputs: of the state, then of a candidate."""
PART = 10
"""Lessons that are played, stored and learnt from together."""
NEVER = -1e9
"""Logit of a candidate that does not exist."""
GAIN_CLIP = 5.0
"""Per cent of an episode's cost: more than that, of one decision, is luck of this trace."""
WORTH_CLIP = 5.0
"""Gain units, for the same reason."""
WINDOW = 128
"""Minutes that gradients of an LSTM go back."""
TOGETHER = 32
"""Episodes that an LSTM is trained on at once."""
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


# Settings.


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a scorer is trained. Raises BadInput."""

    rounds: tuple[int, ...] = (500, 500, 500)  # episodes of each round of data aggregation
    explore: tuple[float, ...] = (0.15, 0.05, 0.05)  # share of random decisions in each round
    branch_share: float = 1.0  # of the minutes with more than one candidate
    most: int = 120  # branched minutes of an episode
    branch_steps: int = BRANCH_STEPS  # under the rule after a candidate's own step
    hidden: int = 64  # units of each of the two layers
    networks: int = 7  # of the ensemble
    groups: int = 1  # of networks and parts of the lessons: a network learns from those of its group, so votes differ
    epochs: float = 6.0  # passes over the samples of a fit, in one cycle of the learning rate
    batch: int = 1024  # minutes
    rate: float = 2e-3  # greatest learning rate of Adam
    entropy: float = 0.002  # weight of the entropy
    margin: float = 0.0  # logits by which a candidate must beat the rule's choice in training (see `choose_margin`)
    idle_limit_min: float = 8.0  # minutes for which VMs beyond the minimum may idle before the rule decides
    selection: int = 180  # fleets at large that the margin is chosen on
    left_out: tuple[str, ...] = ()  # names of inputs that the networks do not see
    cells: int = 0  # of each voting network's LSTM; 0: none
    device: str = CPU  # of the fits, or cuda

    def __post_init__(self) -> None:
        for name in ("rounds", "explore", "left_out"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.rounds or min(self.rounds) < 1:
            raise BadInput(
                "rounds", "+".join(map(str, self.rounds)), "give the episodes of each round, such as 300+300"
            )
        if sum(self.rounds) > LESSONS_APART:
            raise BadInput("rounds", sum(self.rounds), f"give at most {LESSONS_APART} episodes in all")
        if len(self.explore) != len(self.rounds):
            raise BadInput("explore", len(self.explore), f"give a share for each of the {len(self.rounds)} rounds")
        for name, shares in (("explore", self.explore), ("branch_share", (self.branch_share,))):
            if not all(0.0 <= share <= 1.0 for share in shares):
                raise BadInput(name, getattr(self, name), "give shares in 0..1")
        for name in ("most", "branch_steps", "hidden", "networks", "groups", "epochs", "batch", "rate", "selection"):
            if not getattr(self, name) > 0:
                raise BadInput(name, getattr(self, name), "give a number above 0")
        for name in ("entropy", "margin", "idle_limit_min", "cells"):
            if not getattr(self, name) >= 0:
                raise BadInput(name, getattr(self, name), "give a number of 0 or more")
        if self.networks >= GAINS_SEED:
            raise BadInput("networks", self.networks, f"give fewer than {GAINS_SEED}")
        if self.device not in DEVICES:
            raise BadInput("device", self.device, f"choose one of {', '.join(DEVICES)}")
        unknown = [name for name in self.left_out if name not in INPUTS]
        if unknown or len(set(self.left_out)) == len(INPUTS):
            raise BadInput("left_out", "+".join(unknown or self.left_out), f"name some of {', '.join(INPUTS)}")

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Which of the INPUTS the networks see [S + C]."""
        return np.array([name not in self.left_out for name in INPUTS])


GENERAL = Recipe(rounds=(2500, 2500, 2500), networks=15, groups=5)
"""Of the scorer for fleets at large."""
FINE = Recipe(rounds=(120, 120), explore=(0.1, 0.05), rate=5e-4, epochs=4.0, batch=512)
"""Fine-tuning: fewer lessons, and small steps, so that little changes where own loads have no samples."""
ALONE = Recipe(rounds=(150, 150, 150), explore=(0.15, 0.05, 0.05))
"""From nothing, for one world."""
AVERAGES = (
    *(name for name in STATE_FEATURES if name.endswith(("_10", "_30", "_120", "_480"))),
    *("since_arrival", "idle_minutes"),
)
"""Inputs that remember more than three minutes."""
LSTM = Recipe(rounds=(400, 300, 300), branch_share=0.4, most=180, networks=4, cells=16, left_out=AVERAGES, selection=90)
"""With a memory that is trained through time in place of AVERAGES; its lessons change from one load to another."""


# Samples.


@dataclass(frozen=True, slots=True)
class Samples:
    """B branched minutes of M candidates at most: states [B, S], candidates [B, M, C], gains and worths [B, M].

    there: which of the M candidates exist [B, M]; all else is 0 elsewhere. gains: over the rule's choice, in per cent
    of the cost of the rule's episode. worths: the same gains in units of
    `domain.observations.autoscaling_scorer.gain_unit`. Both are clipped. steps: of the simulator, that all this took.
    minutes: states of all minutes of the episodes one after the other [T, S], none for a recipe without `cells`. first:
    the first minute of each episode. at: the minute of each sample [B].
    """

    states: Floats
    candidates: Floats
    there: NDArray[np.bool_]
    gains: Floats
    worths: Floats
    steps: int
    minutes: Floats
    first: Ints
    at: Ints

    def tensors(self) -> tuple[Tensor, ...]:
        """Return states, candidates, there, gains and worths; BadInput without a minute."""
        if not len(self.states):
            raise BadInput("lessons", 0, "no minute has a choice: give loads with jobs that wait, or more episodes")
        return tuple(map(torch.from_numpy, (self.states, self.candidates, self.there, self.gains, self.worths)))


def samples_of(found: Branches, reference: Branches) -> Samples:
    """Return the samples of an episode; reference: the rule's episode."""
    rows = len(found.counts) if reference.cost > 0.0 else 0
    counts = found.counts[:rows]
    most = int(counts.max(initial=0))
    there = np.arange(most) < counts[:, None]
    dollars = found.costs[:rows, :1] - found.costs[:rows, :most]

    def clipped(gains: Doubles, limit: float) -> Floats:
        return np.where(there, np.clip(gains, -limit, limit), 0.0).astype(np.float32)

    return Samples(
        found.states[:rows].astype(np.float32),
        (found.candidates[:rows, :most] * there[..., None]).astype(np.float32),
        there,
        clipped(100.0 * dollars / reference.cost, GAIN_CLIP) if rows else np.zeros((0, most), dtype=np.float32),
        clipped(dollars / found.units[:rows, None], WORTH_CLIP),
        found.steps + reference.steps,
        found.minutes.astype(np.float32) if rows else np.zeros((0, STATES), dtype=np.float32),
        np.zeros(min(rows, 1), dtype=np.int64),
        found.at[:rows],
    )


def join(parts: Sequence[Samples]) -> Samples:
    """Return the samples of several parts, M as of the longest."""
    most = max(part.there.shape[1] for part in parts)

    def padded(name: str) -> NDArray[Any]:
        return np.concatenate(
            [
                np.pad(rows, [(0, 0), (0, most - rows.shape[1]), *[(0, 0)] * (rows.ndim - 2)])
                for rows in (getattr(part, name) for part in parts)
            ]
        )

    columns = {name: padded(name) for name in ("candidates", "there", "gains", "worths")}
    columns |= {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("states", "minutes")}
    begins = np.cumsum([0, *(len(part.minutes) for part in parts)])
    for name in ("first", "at"):
        columns[name] = np.concatenate(
            [getattr(part, name) + begun for part, begun in zip(parts, begins, strict=False)]
        )
    return Samples(**columns, steps=sum(part.steps for part in parts))


def play_lessons(lessons: Iterable[Lesson], recipe: Recipe, weights: Ensemble, explore: float) -> Samples:
    """Play and branch one episode per lesson, and return their samples."""
    found = []
    for lesson in lessons:
        episodes = lesson.episodes()
        reference = episodes.play(lesson.seed)
        played = episodes.play(
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
            through_time=recipe.cells > 0,
        )
        found.append(samples_of(played, reference))
    return join(found)


# Network and fit.


TORCH_ORDER = (0, 2, 3, 1)
"""Where torch's gates (input, forget, candidate, output) are among those of `branching.score`."""


class Network(nn.Module):
    """Scores pairs of state and candidate: two layers of `hidden` units, one logit, and an LSTM of `cells` if any."""

    def __init__(self, hidden: int, generator: torch.Generator, cells: int = 0) -> None:
        """Draw the weights."""
        super().__init__()
        self.first, self.second = nn.Linear(STATES + CANDIDATES + cells, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1, bias=False)
        for layer in (self.first, self.second, self.last):
            _draw(layer, layer.in_features, generator)
        self.memory: nn.LSTM | None = nn.LSTM(STATES, cells) if cells else None
        if self.memory is not None:
            _draw(self.memory, cells, generator)
            gates = dict(self.memory.named_parameters())
            with torch.no_grad():
                # One vector of biases: the other stays empty. Forget gates begin open.
                gates["bias_hh_l0"].zero_().requires_grad_(False)
                gates["bias_ih_l0"][cells : 2 * cells] += 1.0

    def forward(self, states: Tensor, candidates: Tensor, there: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the logits [B, M] of states [B, S] and candidates [B, M, C]; very low where not `there` [B, M].

        hidden: of the LSTM after these minutes [B, K].
        """
        weight = self.first.weight
        shared = states @ weight[:, :STATES].T + self.first.bias
        if hidden is not None:
            shared = shared + hidden @ weight[:, STATES + CANDIDATES :].T
        # Most rows have a few candidates, and M is of the longest: only the pairs that exist are computed.
        row, place = there.nonzero(as_tuple=True)
        one = torch.relu(shared[row] + candidates[row, place] @ weight[:, STATES : STATES + CANDIDATES].T)
        found = self.last(torch.relu(self.second(one)))[:, 0]
        return torch.full(there.shape, NEVER, device=there.device).index_put((row, place), found)

    def weights(self) -> Ensemble:
        """Return the weights as an ensemble of one."""
        layers = (self.first.weight.T, self.first.bias, self.second.weight.T, self.second.bias, self.last.weight[0])
        found = tuple(np.ascontiguousarray(layer.detach()[None].cpu().numpy()) for layer in layers)
        if self.memory is None:
            return (*found, *without_memory(1))
        own, order = dict(self.memory.named_parameters()), np.argsort(TORCH_ORDER).tolist()
        gates = (own["weight_ih_l0"].T, own["weight_hh_l0"].T, own["bias_ih_l0"])
        return (*found, *(_reordered(gate.detach()[None].cpu().numpy(), order) for gate in gates))


def _draw(layer: nn.Module, inputs: int, generator: torch.Generator) -> None:
    bound = 1.0 / math.sqrt(inputs)
    for weight in layer.parameters():
        nn.init.uniform_(weight, -bound, bound, generator=generator)


def _reordered(weights: Floats, order: Sequence[int]) -> Floats:
    """Return weights [..., 4 K] with their gates in another order."""
    parts = np.split(weights, 4, axis=-1)
    return np.ascontiguousarray(np.concatenate([parts[at] for at in order], axis=-1))


def network_of(ensemble: Ensemble, number: int) -> Network:
    """Return one network of an ensemble."""
    first, first_bias, second, second_bias, last, *gates = (np.array(part[number]) for part in ensemble)
    network = Network(first.shape[1], torch.Generator(), gates[1].shape[0])
    layers = {"first.weight": first.T, "first.bias": first_bias, "second.weight": second.T, "second.bias": second_bias}
    layers["last.weight"] = last[None, :]
    if network.memory is not None:
        inward, across, bias = (_reordered(gate, TORCH_ORDER) for gate in gates)
        layers |= {"memory.weight_ih_l0": inward.T, "memory.weight_hh_l0": across.T, "memory.bias_ih_l0": bias}
        layers["memory.bias_hh_l0"] = np.zeros_like(bias)
    network.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in layers.items()})
    return network


def ensemble_of(parts: Sequence[Ensemble]) -> Ensemble:
    """Return the networks of several ensembles as one."""
    return tuple(np.concatenate(layers) for layers in zip(*parts, strict=True))


Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Recipe], Tensor]
"""Of the logits, which candidates there are, gains and worths of a batch of minutes, each [B, M]."""


def expected_gain(logits: Tensor, there: Tensor, gains: Tensor, worths: Tensor, recipe: Recipe) -> Tensor:
    """Return the loss of the networks that vote: minus the expected gain under the softmax, and a little entropy."""
    shares = torch.log_softmax(logits, dim=1)
    chance = shares.exp()
    gain = (chance * gains).sum(dim=1).mean()
    spread = -(chance * shares.clamp(min=-30.0)).sum(dim=1).mean()
    return -gain - recipe.entropy * spread


def error_of_worth(logits: Tensor, there: Tensor, gains: Tensor, worths: Tensor, recipe: Recipe) -> Tensor:
    """Return the loss of the network whose output, less that of the rule's choice, is the worth of a candidate.

    It is Huber's: single futures are far from the mean.
    """
    apart = torch.where(there, logits - logits[:, :1], logits.new_zeros(()))
    # The rule's own choice is 0 by definition.
    return nn.functional.huber_loss(apart, worths, reduction="sum") / (there.sum() - there.shape[0]).clamp(min=1)


def fit(samples: Samples, recipe: Recipe, seed: int, loss_of: Loss, start: Network | None = None) -> Network:
    """Return a network with the least loss; start: weights to begin with instead of drawn ones.

    Weights and batches are drawn in this process, so a seed draws the same on every device.
    """
    device = device_of(recipe.device)
    generator = torch.Generator().manual_seed(seed)
    network = Network(recipe.hidden, generator, recipe.cells)
    if start is not None:
        network.load_state_dict(start.state_dict())
    states, candidates, there, gains, worths = samples.tensors()
    visible = torch.from_numpy(recipe.visible)
    with torch.no_grad():
        # An input whose weights begin at 0, and which is always 0, keeps them.
        network.first.weight[:, : len(INPUTS)][:, ~visible] = 0.0
        if network.memory is not None:
            dict(network.memory.named_parameters())["weight_ih_l0"][:, ~visible[:STATES]] = 0.0
    states, candidates = states * visible[:STATES], candidates * visible[STATES:]
    minutes = torch.from_numpy(samples.minutes) * visible[:STATES]
    if recipe.cells:
        batches = list(_stretches(samples, recipe, generator))
    else:
        rows = states.shape[0]
        steps = max(int(recipe.epochs * rows / recipe.batch), 1)
        batches = [Stretch(torch.randint(rows, (recipe.batch,), generator=generator)) for _ in range(steps)]
    steps = sum(len(stretch.samples) > 0 for stretch in batches)
    network.to(device)
    states, candidates, there, gains, worths, minutes = (
        part.to(device) for part in (states, candidates, there, gains, worths, minutes)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=recipe.rate, total_steps=steps)
    carried: tuple[Tensor, Tensor] | None = None
    for stretch in (one.on(device) for one in batches):
        batch, hidden = stretch.samples, None
        if network.memory is not None and stretch.minutes is not None:
            seen, carried = network.memory(minutes[stretch.minutes], None if stretch.begins else carried)
            carried = (carried[0].detach(), carried[1].detach())
            if not len(batch):
                continue
            hidden = seen.flatten(0, 1)[stretch.at]
        logits = network(states[batch], candidates[batch], there[batch], hidden)
        loss = stretch.weight * loss_of(logits, there[batch], gains[batch], worths[batch], recipe)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return network


@dataclass(frozen=True, slots=True)
class Stretch:
    """The input of one step of a fit: samples [B].

    Of an LSTM: minutes [L, TOGETHER] of episodes, the last one again where an episode is over; the place of each sample
    in them, flat [B]; whether episodes begin; and a weight, so that each sample counts alike.
    """

    samples: Tensor
    minutes: Tensor | None = None
    at: Tensor | None = None
    begins: bool = True
    weight: float = 1.0

    def on(self, device: torch.device) -> Stretch:
        """Return the input on a device."""
        samples, minutes, at = (None if x is None else x.to(device) for x in (self.samples, self.minutes, self.at))
        assert samples is not None
        return Stretch(samples, minutes, at, self.begins, self.weight)


def _stretches(samples: Samples, recipe: Recipe, generator: torch.Generator) -> Iterator[Stretch]:
    """Yield `epochs` passes over the episodes, TOGETHER of them at once, WINDOW minutes at a time.

    Episodes of about the same length go together.
    """
    first, at = samples.first, samples.at
    length = np.diff(first, append=len(samples.minutes))
    episode = np.searchsorted(first, at, side="right") - 1
    begins = np.searchsorted(episode, np.arange(len(first) + 1))
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    usual = len(at) * WINDOW * TOGETHER / max(int(length.sum()), 1)
    for _ in range(max(round(recipe.epochs), 1)):
        order = np.argsort(length * rng.uniform(0.8, 1.25, size=length.size))
        groups = [order[k : k + TOGETHER] for k in range(0, len(order), TOGETHER)]
        for number in rng.permutation(len(groups)):
            group = groups[number]
            longest = int(length[group].max())
            rows = np.concatenate([np.arange(begins[one], begins[one + 1]) for one in group])
            column = np.repeat(np.arange(len(group)), begins[group + 1] - begins[group])
            minute = at[rows] - first[group][column]
            for start in range(0, longest, WINDOW):
                span = np.arange(start, min(start + WINDOW, longest))
                inside = (minute >= start) & (minute < start + WINDOW)
                yield Stretch(
                    torch.from_numpy(rows[inside]),
                    torch.from_numpy(first[group] + np.minimum(span[:, None], length[group] - 1)),
                    torch.from_numpy((minute[inside] - start) * len(group) + column[inside]),
                    start == 0,
                    float(inside.sum()) / usual,
                )


def fit_seed(samples: Samples, recipe: Recipe, seed: int, start: Scorer | None) -> Ensemble:
    """Return the network of one of a training's hundred seeds: it votes, or (GAINS_SEED) estimates gains.

    start: the networks to continue from; None for drawn weights.
    """
    number = seed % 100
    if number == GAINS_SEED:
        recipe = replace(recipe, cells=0)
    loss, old = (error_of_worth, None) if number == GAINS_SEED else (expected_gain, None)
    if start is not None and number == GAINS_SEED:
        old = network_of(start.gains, 0)
    elif start is not None:
        old = network_of(start.weights, number % start.weights[0].shape[0])
    return fit(samples, recipe, seed, loss, old).weights()


# The trained scorer.


class Policy(NamedTuple):
    """A policy of the simulator; the queue rule alone without weights. margin, idle_limit_min: see `Recipe`."""

    weights: Ensemble = NO_WEIGHTS
    margin: float = 0.0
    idle_limit_min: float = math.inf

    def cost(self, episodes: BranchedEpisodes, seed: int, announcements: Doubles | None = None) -> float:
        """Return the dollars of an episode."""
        return episodes.play(
            seed, self.weights, margin=self.margin, idle_limit_min=self.idle_limit_min, announcements=announcements
        ).cost


THE_RULE = Policy()


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    """A trained scorer.

    weights: of the networks that vote. gains: of one network whose output of a candidate less that of the rule's choice
    is the expected gain in units of `domain.observations.autoscaling_scorer.gain_unit`. margin, idle_limit_min: see
    `Recipe`; the margin is the chosen one. low, high: of each state feature in training [S], the USUAL
    quantiles. least, greatest: its bounds. figures: measured values by name; the same for the same recipe and seed.
    """

    weights: Ensemble
    gains: Ensemble
    margin: float
    idle_limit_min: float
    low: Floats
    high: Floats
    least: Floats
    greatest: Floats
    recipe: Recipe
    seed: int
    figures: Mapping[str, float]

    @property
    def policy(self) -> Policy:
        """The policy of the simulator."""
        return Policy(self.weights, self.margin, self.idle_limit_min)

    @property
    def digest(self) -> str:
        """The SHA-256 of all weights."""
        parts = {"votes": self.weights, "gains": self.gains}
        return weights_hash({f"{name}{at}": layer for name, layers in parts.items() for at, layer in enumerate(layers)})


def ratios(lessons: Sequence[Lesson], policy: Policy) -> Doubles:
    """Return the costs of a policy and of the rule, [E, 2], in the worlds of these lessons.

    The policy sees the announcements, the rule never does.
    """
    costs = []
    for lesson in lessons:
        episodes = lesson.episodes()
        costs.append((policy.cost(episodes, lesson.seed, lesson.announcements), THE_RULE.cost(episodes, lesson.seed)))
    return np.array(costs)


# Loop.

SOURCES = (
    *("domain/announcements.py", "domain/observations/autoscaling_scorer.py", "domain/rules/autoscaling.py"),
    *("domain/workload.py", "domain/units.py", "simulator/autoscaling", "simulator/workloads"),
    *(f"trainer/autoscaling/{name}.py" for name in ("evaluation/suite", "lessons", "scorer", "tasks")),
)
"""Program text that decides weights: a run of another version is not gone on with."""
FIT = 0.15
"""Duration of fitting one network per lesson learnt from, in times of playing a lesson; only for the time left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of a run.

    lessons: a function of a module or a partial of one. facts: where they come from, as JSON data. conclude: chooses
    the margin and adds figures once the weights are fitted. start: the networks to continue from.
    """

    recipe: Recipe
    seed: int
    lessons: Source
    facts: Mapping[str, Any]
    conclude: Callable[[Scorer, Map], Scorer]
    start: Scorer | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        whole = {"form": "scorer", "recipe": asdict(self.recipe), "seed": self.seed, "lessons": dict(self.facts)}
        data: dict[str, Any] = plain(whole)
        return data | {"code": code_version(SOURCES)}


@dataclass(frozen=True, slots=True)
class Part:
    """Lessons of a run that are played together, from one policy, and the file of their samples."""

    path: Path
    lessons: Source
    first: int
    count: int
    recipe: Recipe
    weights: Ensemble
    explore: float

    def play(self) -> Samples:
        """Play the lessons."""
        return play_lessons(self.lessons(self.first, self.count), self.recipe, self.weights, self.explore)


class Meter:
    """Counts the work done, and reports it to the listeners with the time left.

    The unit is the time of a lesson; a network takes FIT of it per lesson learnt from. stored: lessons that were read
    from files.
    """

    def __init__(self, plan: Plan, directory: Path, show: str) -> None:
        recipe = plan.recipe
        fits = [FIT * sum(recipe.rounds[: number + 1]) / recipe.groups for number in range(len(recipe.rounds))]
        self._fits = iter([*fits[:-1], *[fits[-1]] * (recipe.networks + 1)])
        self._total = sum(recipe.rounds) + sum(fits) + recipe.networks * fits[-1] + 2.0 * recipe.selection
        self._done = 0.0
        self._row = self._lessons = self._minutes = self._steps = 0
        self._began = time.monotonic()
        curve = directory / CURVE_FILE
        rows = read_curve(curve) if curve.exists() else []
        self.stored, self.cpu_s, self._earlier_s = 0, 0.0, float(rows[-1]["wall_s"]) if rows else 0.0
        about = (f"scorer, seed {plan.seed}", {"queue rule": 1.0}, HELD_OUT)
        log = Lines(*about, log_of(directory, resumed=self._earlier_s > 0.0))
        self.listeners = Listeners([Curve(directory), log, *on_screen(show, *about)])
        self.listeners.phase("compiling the simulator, and playing the first lessons")

    @property
    def wall_s(self) -> float:
        """Seconds of the run so far, those before it was stopped included."""
        return self._earlier_s + time.monotonic() - self._began

    def add_part(self, part: Part, minutes: int, steps: int) -> None:
        """Add a part of a round, played now or read from a file."""
        self._lessons += part.count
        self._minutes += minutes
        self._steps += steps
        self._report(float(part.count))

    def add_network(self) -> None:
        """Add a network."""
        self._report(next(self._fits))

    def end_round(self, line: str) -> None:
        """Report a round."""
        self._report(0.0, line)

    def conclude(self, answers: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield the answers, and add each: most of the rest of the run."""
        units = 0.9 * (self._total - self._done) / max(count, 1)
        for answer in answers:
            self._report(units)
            yield answer

    def finish(self, scorer: Scorer) -> None:
        """Report the end."""
        ratio = scorer.figures.get(HELD_OUT)
        self._done = self._total
        self._report(0.0, f"margin {scorer.margin:g}", ratio)

    def _report(self, units: float, line: str = "", ratio: float | None = None) -> None:
        self._done += units
        share = min(self._done / self._total, 1.0)
        if line and self.stored < self._done < self._total:
            left_s = (time.monotonic() - self._began) * (self._total - self._done) / (self._done - self.stored)
            line = f"{line}, about {f'{left_s:.0f} s' if left_s < 90.0 else f'{left_s / 60.0:.0f} min'} left"
        self._row += 1
        figures = {"lessons": float(self._lessons), "branched_minutes": float(self._minutes), "share": share}
        self.listeners(
            Progress(
                update=self._row,
                steps=self._steps,
                total_steps=max(round(self._steps / share), 1) if share > 0.0 else 1,
                wall_s=self.wall_s,
                cpu_s=self.cpu_s,
                figures=figures if ratio is None else {**figures, HELD_OUT: ratio},
                best_cost=ratio,
                note=line,
            )
        )


def train(plan: Plan, folder: Path, spread: Map, meter: Meter) -> Scorer:
    """Train an ensemble; samples in the folder are not played again."""
    recipe, start = plan.recipe, plan.start
    weights = NO_WEIGHTS if start is None else start.weights
    networks: list[Ensemble] = []
    paths: list[Path] = []
    states: list[Floats] = []
    played = steps = 0
    for number, (episodes, explore) in enumerate(zip(recipe.rounds, recipe.explore, strict=True)):
        begun = plan.seed * LESSONS_APART
        ends = played + episodes
        parts = [
            Part(folder / f"{at:06d}.npz", plan.lessons, begun + at, min(PART, ends - at), recipe, weights, explore)
            for at in range(played, ends, PART)
        ]
        for part, samples in samples_in(parts, spread, meter):
            states.append(samples.states)
            steps += samples.steps
            meter.add_part(part, len(samples.states), samples.steps)
        paths += [part.path for part in parts]
        played = ends
        last = number == len(recipe.rounds) - 1
        seeds = [plan.seed * 100 + k for k in ((*range(recipe.networks), GAINS_SEED) if last else (0,))]
        networks = []
        for network in spread(_fit_files, [(group_of(paths, recipe, seed), recipe, seed, start) for seed in seeds]):
            networks.append(network)
            meter.add_network()
        weights = networks[0]
        meter.end_round(f"round {number + 1} of {len(recipe.rounds)}: {sum(map(len, states))} branched minutes")
    rows = np.concatenate(states)
    low, high = np.quantile(rows, USUAL, axis=0).astype(np.float32)
    # An input that is left out has no range.
    visible, most = recipe.visible[:STATES], np.float32(EVERYTHING)
    return Scorer(
        weights=ensemble_of(networks[:-1]),
        gains=networks[-1],
        margin=recipe.margin,
        idle_limit_min=recipe.idle_limit_min,
        low=np.where(visible, low, -most),
        high=np.where(visible, high, most),
        least=np.where(visible, rows.min(axis=0), -most),
        greatest=np.where(visible, rows.max(axis=0), most),
        recipe=recipe,
        seed=plan.seed,
        figures={"branched_minutes": float(len(rows)), "simulator_steps": float(steps)},
    )


def group_of(paths: Sequence[Path], recipe: Recipe, seed: int) -> tuple[Path, ...]:
    """Return the parts of the lessons that the network of a training's seed learns from (`Recipe.groups`).

    With fewer parts than groups there are only as many groups.
    """
    groups = max(min(recipe.groups, len(paths)), 1)
    return tuple(paths[seed % 100 % groups :: groups])


def _fit_files(item: tuple[tuple[Path, ...], Recipe, int, Scorer | None]) -> Ensemble:
    paths, recipe, seed, start = item
    parts = []
    for path in paths:
        found = read_samples(path)
        if found is None:
            raise BadInput("samples", str(path), "it was removed meanwhile: run it again with --resume")
        parts.append(found[0])
    return fit_seed(join(parts), recipe, seed, start)


def samples_in(parts: Sequence[Part], spread: Map, meter: Meter) -> Iterator[tuple[Part, Samples]]:
    """Yield the samples of each part, from its file where it has been played, else played and written to it."""
    stored = {part.path: found for part in parts if (found := read_samples(part.path)) is not None}
    answers = iter(spread(Part.play, [part for part in parts if part.path not in stored]))
    for part in parts:
        if part.path in stored:
            samples, cpu_s = stored.pop(part.path)
            meter.cpu_s += cpu_s
            meter.stored += part.count
        else:
            before_s = meter.cpu_s
            samples = next(answers)
            write_samples(part.path, samples, meter.cpu_s - before_s)
        yield part, samples


_COLUMNS = ("states", "candidates", "there", "gains", "worths", "minutes", "first", "at")


def write_samples(path: Path, samples: Samples, cpu_s: float) -> None:
    """Write samples, whole or not at all, with the seconds of a processor that they took."""
    buffer = io.BytesIO()
    arrays = {name: getattr(samples, name) for name in _COLUMNS}
    np.savez_compressed(buffer, allow_pickle=False, counts=np.array([samples.steps, cpu_s]), **arrays)
    replace_file(path, buffer.getvalue())


def read_samples(path: Path) -> tuple[Samples, float] | None:
    """Return samples and their seconds of a processor; None where they are absent or damaged, to be played again."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            columns = {name: stored[name] for name in _COLUMNS}
            steps, cpu_s = stored["counts"].tolist()
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        path.unlink(missing_ok=True)
        return None
    return Samples(**columns, steps=int(steps)), cpu_s


# Margin.

MARGINS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Margins to choose from, in logits."""
WORST = 1.005
"""The greatest cost of a group of the selection, in times the rule's."""
SLACK = 0.002
"""Means of the selection that lie no further apart are as good as each other."""
ANNOUNCED, BOOTS, PRICE, FLEETS = "announced", "boots", "price", "fleets"
"""Groups of the selection in addition to the families of loads."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases that a margin is chosen on, whose seeds neither training nor reports use.

    Groups: `count` fleets at large, a third as many traces of each family of loads in `world`, and of the first family
    with boots twice as long (BOOTS), the dearest type half as dear again (PRICE), and announcements of which half are
    late, wrong or missing, a sixth each (ANNOUNCED).
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
        world, seed = self.world, SELECTION_SEED + number
        if group == BOOTS:
            world = boot_twice_as_long(world)
        if group == PRICE:
            world = dearer_type(world, int(np.argmax([kind.price_per_hour for kind in world.types])))
        family = group if group in LOADS else FAMILIES[0]
        lesson = Lesson(world, load_of(family, seed, world.max_cores), RuleSetting(), seed)
        if group == ANNOUNCED:
            rng = np.random.default_rng([seed, 79])
            return replace(lesson, announcements=announced(lesson.trace, rng, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0))
        return lesson


def _shares(item: tuple[Selection, str, int, Policy]) -> list[float]:
    """Return the costs of a case at each of MARGINS, in times the rule's."""
    selection, group, number, policy = item
    lesson = selection.lesson(group, number)
    episodes = lesson.episodes()
    rule = THE_RULE.cost(episodes, lesson.seed)
    each = (policy._replace(margin=margin) for margin in MARGINS)
    return [one.cost(episodes, lesson.seed, lesson.announcements) / rule for one in each]


def choose_margin(scorer: Scorer, spread: Map = map, *, world: SimulationConfig) -> Scorer:
    """Return it with the margin that costs least on the selection, on the mean of its groups.

    A margin with a group above WORST is out; the greatest is taken when all are. Of the others the greatest whose mean
    is within SLACK of the least: groups are too few to separate these, and a larger margin risks less elsewhere.
    Figures: the mean of the groups (HELD_OUT), and that of each.
    """
    selection = Selection(world, scorer.recipe.selection)
    items = [(selection, group, k, scorer.policy) for group, k in selection.cases]
    by_group: dict[str, list[list[float]]] = {}
    for (group, _), shares in zip(selection.cases, spread(_shares, items), strict=True):
        by_group.setdefault(group, []).append(shares)
    # Costs of fleets differ by orders of magnitude: the mean of their ratios, not the ratio of sums.
    means = {group: np.mean(rows, axis=0) for group, rows in by_group.items()}
    table = np.array(list(means.values()))
    allowed = [at for at in range(len(MARGINS)) if table[:, at].max() <= WORST]
    least = min((table[:, at].mean() for at in allowed), default=0.0)
    best = max((at for at in allowed if table[:, at].mean() <= least + SLACK), default=len(MARGINS) - 1)
    figures = {f"selection/{group}": float(row[best]) for group, row in means.items()}
    figures |= {HELD_OUT: float(table[:, best].mean()), "selection/worst": float(table[:, best].max())}
    return replace(scorer, margin=MARGINS[best], figures={**scorer.figures, **figures})


def general_plan(recipe: Recipe, seed: int) -> Plan:
    """Return the plan of a scorer for fleets at large, at home in the `live-like` world; with cells, loads change."""
    world = preset("live-like")
    facts = {"kind": f"fleets at large and live-like{', changing loads' if recipe.cells else ''}"}
    lessons = partial(changing_lessons if recipe.cells else general_lessons, world=world)
    return Plan(recipe, seed, lessons, facts, partial(choose_margin, world=world))


# One's own loads. The rule for their use is fixed here, before anything is measured: mean gain above 0, and surer than
# SURE by a paired t-test over windows, each with its costs side by side.

SURE = 0.9
"""How sure it must be that weights trained here cost less than those they are to replace."""
JUDGING_BOOTS = 3
"""Boot seeds that each window is judged on."""
MARGIN_SEED, JUDGING_SEED = 2_900_000_000, 2_800_000_000
"""Boot seeds of the choice of the margin and of judging."""


def costs_of(
    config: SimulationConfig,
    rule: RuleSetting,
    traces: Sequence[Trace],
    policies: Sequence[Policy],
    seed: int,
    boots: int,
    spread: Map,
) -> Doubles:
    """Return dollars [policies, windows], the mean over `boots` seeds from `seed` on."""
    lessons = [Lesson(config, trace, rule, seed + 1000 * k) for k, trace in enumerate(traces)]
    items = [(lesson, tuple(policies), boots) for lesson in lessons]
    return np.stack(list(spread(_window_costs, items)), axis=1)


def _window_costs(item: tuple[Lesson, Sequence[Policy], int]) -> Doubles:
    lesson, policies, boots = item
    episodes = lesson.episodes()
    rows = [[policy.cost(episodes, lesson.seed + boot) for policy in policies] for boot in range(boots)]
    return np.asarray(np.mean(rows, axis=0))


@dataclass(frozen=True, slots=True)
class Judgement:
    """Chooses the margin on windows that were learnt from, and judges on those left out whether the result is used.

    start: the scorer to replace; None for the queue rule.
    """

    config: SimulationConfig
    rule: RuleSetting
    loads: Loads
    start: Scorer | None

    def __call__(self, scorer: Scorer, spread: Map) -> Scorer:
        """Return the scorer to use from now on, with the figures of the comparison."""
        old, policies = self.start, [scorer.policy._replace(margin=margin) for margin in MARGINS]
        world = (self.config, self.rule)
        learnt = costs_of(*world, self.loads.learnt, [*policies, THE_RULE], MARGIN_SEED, 1, spread)
        shares = (learnt[:-1] / learnt[-1:]).mean(axis=1)
        margin = MARGINS[int(shares.argmin())] if shares.min() <= WORST else MARGINS[-1]
        compared = [scorer.policy._replace(margin=margin), THE_RULE if old is None else old.policy, THE_RULE]
        ours, theirs, rule = costs_of(*world, self.loads.left_out, compared, JUDGING_SEED, JUDGING_BOOTS, spread)
        found = compare(ours, theirs)
        used = found.relative.mean < 0.0 and found.probability_lower >= SURE
        before, after = float(theirs.sum() / rule.sum()), float(ours.sum() / rule.sum())
        own = {
            "own/gain": -found.relative.mean,
            "own/gain_low": -found.relative.high,
            "own/gain_high": -found.relative.low,
            "own/sure": found.probability_lower,
            "own/used": float(used),
            "own/ratio_before": before,
            "own/ratio_after": after,
            "own/windows_learnt": float(len(self.loads.learnt)),
            "own/windows_left_out": float(len(self.loads.left_out)),
            "own/horizon_s": float(self.rule.horizon_s),
            "own/idle_s": float(self.rule.idle_s),
            "own/job_core_s": float(self.rule.job_core_s),
            HELD_OUT: after if used or old is None else before,
            "own/simulator_steps": scorer.figures["simulator_steps"],
        }
        if old is None:
            return replace(scorer, margin=margin, figures={**scorer.figures, **own})
        if not used:
            return replace(old, figures={**old.figures, **own})
        return replace(
            scorer,
            margin=margin,
            low=np.minimum(scorer.low, old.low),
            high=np.maximum(scorer.high, old.high),
            least=np.minimum(scorer.least, old.least),
            greatest=np.maximum(scorer.greatest, old.greatest),
            figures={**old.figures, **own},
        )


def own_plan(
    config: SimulationConfig, loads: Loads, rule: RuleSetting, recipe: Recipe, seed: int, start: Scorer | None
) -> Plan:
    """Return the plan of a training on one's own loads; rule: see `rule_for_loads`. start: None for a new one."""
    if start is not None:
        networks, _, hidden = start.weights[0].shape
        cells = start.recipe.cells
        recipe = replace(recipe, hidden=hidden, networks=networks, cells=cells, left_out=start.recipe.left_out)
        recipe = replace(recipe, idle_limit_min=start.idle_limit_min, margin=start.margin)
    facts = {
        "kind": "own loads",
        "world": plain(config),
        "rule": rule.name,
        "loads": loads.plain,
        "start": None if start is None else start.digest,
    }
    return Plan(recipe, seed, OwnLessons(config, rule, loads), facts, Judgement(config, rule, loads, start), start)
