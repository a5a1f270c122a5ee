"""C2MARL: one value for the cluster, one per subscriber, added up; risk is priced by a dual variable (§4).

Each subscriber picks its own rate by its own part of the value, yet all parts are learnt together, from the saved cores
and hot hours of the cluster. From top to bottom: settings, networks, replay, loss, credit, price of risk, choice of the
best policy, learner, loop. Section numbers are those of the oversubscription specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from domain.errors import BadInput
from domain.observations.oversubscription import cluster_names, local_names
from domain.rules.oversubscription.risk import count_at_least
from domain.rules.oversubscription.usage import Moments
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.batch import OversubscriptionBatch
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Placement, sample
from trainer.kit.checkpoint import Checkpoint, Checkpoints, Clock, resume, weights_hash
from trainer.kit.progress import Progress
from trainer.oversubscription.unseen import TRAINING, VALIDATION, arrivals_of, unseen_week

Floats = NDArray[np.float64]
EXTENDABLE = ("episodes",)

# Settings.

CHOICES = {
    "dual": ("bound", "violations"),
    "dual_form": ("sum", "factor", "ratio"),
    "cost": ("sampled", "analytic"),
    "explore": ("any", "near"),
    "credit": ("cluster", "own"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a run; `preset` names two choices of them. Raises BadInput."""

    scenario: str = "internal_like"
    weeks: tuple[str, ...] = ("s0",)
    redrawn: int = 0  # generated weeks to learn from as well; each episode takes one of all weeks at random
    validation: int = 0  # further generated weeks, only to choose by: the best policy is safe on them too
    start: str = "cold"
    alpha: float = 0.95  # required share of weeks that keep the promise
    seed: int = 0
    episodes: int = 1_800
    copies: int = 1  # episodes played side by side before each round of updates; of several the first is greedy
    updates: int = 120  # gradient updates of a round
    batch: int = 10  # transitions of an update
    capacity: int = 360  # transitions in memory
    gamma: float = 0.9
    tau: float = 0.001  # share by which the target network follows after each update
    learning_rate: float = 5e-4
    learning_rate_last: float = 5e-4  # reached in a straight line by the last episode
    averaged: bool = False  # judge the slow target network, in which the noise of single updates fades
    dual_rate: float = 2.0
    dual: str = "bound"  # bound: hot hours against the published bound; violations: broken weeks against 1 - alpha
    aim: float = 0.0  # share of broken weeks that the price of `violations` steers to; 1 - alpha where 0
    dual_form: str = "sum"  # how the price moves, see DUAL_STEPS
    cost: str = "sampled"  # sampled: 1 in a hot hour; analytic: the chance of one (§12.3)
    credit: str = "cluster"  # cluster: all learn from all hot hours; own: from their own part, see `answered_for`
    usage: str = "gauss"  # gauss: fresh in every episode; replay: one log again and again, as published
    observation: str = "obs-o"  # or obs-o-ext
    hidden: tuple[int, ...] = (64, 64)
    lambda_start: float = 0.0
    lambda_max: float = 100.0
    epsilon_last: float = 0.05
    epsilon_share: float = 0.6  # of the episodes, over which exploration falls from 1 to `epsilon_last`
    exploration_h: int = 1  # hours that an explored rate stays: its effect on machines shows only then
    explore: str = "any"  # any level, or near: a neighbour of the greedy level
    evaluate_every: int = 25  # episodes
    evaluation_episodes: int = 300

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(known)}")
        for name in ("episodes", "copies", "updates", "batch", "capacity", "exploration_h", "evaluate_every"):
            if getattr(self, name) < 1:
                raise BadInput(name, getattr(self, name), "give a whole number, 1 or more")
        for name in ("alpha", "gamma", "tau"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise BadInput(name, getattr(self, name), "give a number between 0 and 1")
        if self.dual_form != "sum" and not self.lambda_start:
            raise BadInput("lambda_start", self.lambda_start, "give it more than 0: no factor moves a 0")
        if min(self.redrawn, self.validation) < 0 or not 0.0 <= self.aim < 1.0:
            raise BadInput("redrawn", self.redrawn, "give numbers of weeks of 0 or more, and an aim from 0 to below 1")
        if self.learning_rate <= 0.0 or self.dual_rate <= 0.0 or not 0.0 <= self.lambda_start <= self.lambda_max:
            raise BadInput("learning_rate", self.learning_rate, "give positive rates, and lambda_start in its range")

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration of JSON data."""
        lists = {name: tuple(data[name]) for name in ("weeks", "hidden") if name in data}
        return cls(**{**data, **lists})

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "robust": {
        "episodes": 800,
        "copies": 8,
        "updates": 60,
        "batch": 256,
        "capacity": 60_000,
        "tau": 0.005,
        "dual": "violations",
        "cost": "analytic",
        "credit": "own",
        "gamma": 0.5,
        "lambda_start": 3.0,
        "dual_form": "factor",
        "dual_rate": 0.08,
        "observation": "obs-o-ext",
        "explore": "near",
        "exploration_h": 24,
        "averaged": True,
        "learning_rate": 1e-3,
        "learning_rate_last": 5e-5,
        "epsilon_share": 0.35,
        "evaluate_every": 8,
    },
}


def preset(name: str, **changes: Any) -> Config:
    """Return a preset with changes; BadInput for an unknown name or field."""
    if name not in PRESETS:
        raise BadInput("preset", name, f"choose one of {', '.join(PRESETS)}")
    known = {field.name for field in fields(Config)}
    for change in changes:
        if change not in known:
            raise BadInput("setting", change, f"choose one of {', '.join(sorted(known))}")
    return Config(**{**PRESETS[name], **changes})


# Networks.


class Side(nn.Module):
    """A linear layer for each subscriber: (N, batch, inputs) to (N, batch, outputs)."""

    def __init__(self, subscribers: int, inputs: int, outputs: int, draws: torch.Generator) -> None:
        super().__init__()
        bound = inputs**-0.5
        shape = (subscribers, inputs, outputs)
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=draws))
        self.bias = nn.Parameter(torch.empty(subscribers, 1, outputs).uniform_(-bound, bound, generator=draws))

    def forward(self, rows: Tensor) -> Tensor:
        """Return each subscriber's outputs."""
        return torch.baddbmm(self.bias, rows, self.weight)


def _stack(subscribers: int, sizes: list[int], draws: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Side(subscribers, inputs, outputs, draws), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ValueDecomposition(nn.Module):
    """Q(s, a) = Q_c(s_c) + the sum over subscribers with requests of Q_n(o_n)[a_n]."""

    def __init__(
        self, cluster: int, local: int, subscribers: int, actions: int, hidden: tuple[int, ...], seed: int
    ) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.cluster = _stack(1, [cluster, *hidden, 1], draws)
        self.sides = _stack(subscribers, [local, *hidden, actions], draws)

    def value(self, cluster: Tensor) -> Tensor:
        """Return Q_c for (B, features), (B,)."""
        value: Tensor = self.cluster(cluster[None])[0, :, 0]
        return value

    def sides_of(self, local: Tensor) -> Tensor:
        """Return every subscriber's Q_n for (B, N, features), (B, N, actions)."""
        parts: Tensor = self.sides(local.transpose(0, 1))
        return parts.transpose(0, 1)


def network_of(config: Config, scenario: Scenario) -> ValueDecomposition:
    """Return a configuration's network for a scenario, with the weights that its seed begins with."""
    extended = config.observation == "obs-o-ext"
    sizes = (len(cluster_names(scenario.subscribers, extended)), len(local_names(extended)), scenario.subscribers)
    return ValueDecomposition(*sizes, len(scenario.actions), config.hidden, config.seed)


# Replay.

COLUMNS = ("cluster", "local", "mask", "actions", "reward", "cost", "own_reward", "own_cost")


@dataclass(frozen=True, slots=True)
class Transitions:
    """Transitions (B, ...); reward and cost are apart, as lambda moves."""

    cluster: Tensor
    local: Tensor
    mask: Tensor
    actions: Tensor
    reward: Tensor
    cost: Tensor
    cluster_next: Tensor
    local_next: Tensor
    mask_next: Tensor
    done: Tensor
    own_reward: Tensor
    own_cost: Tensor
    """Each subscriber's part of the reward, and the hot hours its VMs answer for, (B, N); 0 without credit."""


class Replay:
    """The last episodes whole, each hour with the observations before and after it."""

    def __init__(self, episodes: int, hours: int, cluster: int, local: tuple[int, int]) -> None:
        rows = (episodes, hours + 1)
        self.cluster, self.local = np.zeros((*rows, cluster), np.float32), np.zeros((*rows, *local), np.float32)
        self.mask = np.zeros((*rows, local[0]), np.float32)
        self.actions = np.zeros((episodes, hours, local[0]), np.int64)
        self.reward, self.cost = (np.zeros((episodes, hours), np.float32) for _ in range(2))
        self.own_reward, self.own_cost = (np.zeros((episodes, hours, local[0]), np.float32) for _ in range(2))
        self.filled = self.at = 0

    def sample(self, count: int, draws: np.random.Generator) -> Transitions:
        """Return transitions drawn with replacement."""
        hours = self.reward.shape[1]
        e, t = draws.integers(self.filled, size=count), draws.integers(hours, size=count)
        done = (t == hours - 1).astype(np.float32)
        arrays = (
            *(self.cluster[e, t], self.local[e, t], self.mask[e, t], self.actions[e, t], self.reward[e, t]),
            *(self.cost[e, t], self.cluster[e, t + 1], self.local[e, t + 1], self.mask[e, t + 1], done),
            *(self.own_reward[e, t], self.own_cost[e, t]),
        )
        return Transitions(*(torch.from_numpy(array) for array in arrays))

    def state(self) -> dict[str, Any]:
        """Return the content for a checkpoint."""
        return {name: getattr(self, name)[: self.filled] for name in COLUMNS} | {"at": self.at, "filled": self.filled}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the content of a checkpoint."""
        self.at, self.filled = state["at"], state["filled"]
        for name in COLUMNS:
            getattr(self, name)[: self.filled] = state[name]


# Loss.


class Targets(NamedTuple):
    """Targets of the joint value (B,), and with credit of each subscriber's part of it (B, N)."""

    joint: Tensor
    own: Tensor


@torch.no_grad()
def targets(
    online: ValueDecomposition, target: ValueDecomposition, rows: Transitions, price: float, bound: float, gamma: float
) -> Targets:
    """Return r + lambda (c_bar - C) + gamma y: the online network picks the next rates, the target rates them.

    Subscribers without requests in the next hour are left out of y (§10.4). The own targets have a subscriber's part of
    the reward, the hot hours its VMs answer for and its part of y in place of the cluster's.
    """
    best = online.sides_of(rows.local_next).argmax(dim=2, keepdim=True)
    ahead = rows.mask_next * target.sides_of(rows.local_next).gather(2, best)[:, :, 0]
    on = gamma * (1.0 - rows.done)
    joint = rows.reward + price * (bound - rows.cost) + on * (target.value(rows.cluster_next) + ahead.sum(dim=1))
    return Targets(joint, rows.own_reward - price * rows.own_cost + on[:, None] * ahead)


def loss_of(online: ValueDecomposition, rows: Transitions, wanted: Targets, *, own: bool = False) -> Tensor:
    """Return the mean squared error of the joint value.

    own: each subscriber's part has its own target, and only the cluster's part learns the remainder of the joint value.
    """
    chosen = online.sides_of(rows.local).gather(2, rows.actions[:, :, None])[:, :, 0]
    parts = rows.mask * (chosen.detach() if own else chosen)
    loss = ((online.value(rows.cluster) + parts.sum(dim=1) - wanted.joint) ** 2).mean()
    return loss + (rows.mask * (chosen - wanted.own) ** 2).sum(dim=1).mean() if own else loss


# Credit: to which subscriber and hour a chance of a hot hour belongs.

LEAST = 1e-9


def saved_by(placed: Placement) -> Floats:
    """Return the cores that each subscriber's placements of an hour save, (hours, N)."""
    return _by_decision(placed, (1.0 - placed.rate) * placed.week.cores)


def answered_for(placed: Placement, moments: Moments) -> Floats:
    """Return the hours of hot machines that each subscriber's placements of an hour answer for, (hours, N).

    A VM answers for its use of a hot machine, at the growth of its chance by one more core, less the machine's
    average use of as many cores as the VM reserves. To first order this is the change of the chances by a core of that
    VM in place of the machine's usual mix, so that the VMs of a machine add up to 0, and a higher rate takes away the
    use of the VMs that found no room there.
    """
    mean = moments.mean[:, np.arange(placed.scenario.hours) % HOURS_PER_DAY]
    load = load_of(placed, placed.week.cores)
    used = np.einsum("knt,nt->kt", load, mean)
    reserved = load_of(placed, placed.week.cores * placed.rate).sum(axis=1)
    slope = slopes(placed, moments)
    by_use = np.divide(slope, used, out=np.zeros_like(slope), where=used > LEAST)
    by_room = np.divide(slope, reserved, out=np.zeros_like(slope), where=reserved > LEAST)
    machine, subscriber, first, last = _stays(placed)
    cost = np.zeros(len(placed.machine))
    there = placed.machine >= 0
    for price, who, weights in (
        (by_use[:, None, :] * mean[None], (machine, subscriber), placed.week.cores),
        (by_room, (machine,), placed.week.cores * placed.rate),
    ):
        so_far = np.concatenate([np.zeros((*price.shape[:-1], 1)), price.cumsum(axis=-1)], axis=-1)
        sign = 1.0 if len(who) == 2 else -1.0
        cost[there] += sign * weights[there] * (so_far[(*who, last)] - so_far[(*who, first)])
    return _by_decision(placed, cost)


def slopes(placed: Placement, moments: Moments) -> Floats:
    """Return by how much each machine's chance to be hot grows with its load, per share of it, (opened, hours).

    By the normal tail: the mean grows by that share, the standard deviation by half of it. A machine that is hot
    anyway counts as at the threshold: its chance hardly moves, yet it is the one to relieve.
    """
    of_day = np.arange(placed.scenario.hours) % HOURS_PER_DAY
    used = np.einsum("knt,nt->kt", load_of(placed, placed.week.cores), moments.mean[:, of_day])
    squares = np.einsum("knt,nt->kt", load_of(placed, placed.week.cores**2), moments.variance[:, of_day])
    sigma = np.sqrt(np.maximum(squares, LEAST))
    z = np.maximum((placed.scenario.threshold - used) / sigma, 0.0)
    slope: Floats = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (used / sigma + 0.5 * z)
    return slope


def load_of(placed: Placement, weights: Floats) -> Floats:
    """Return the sums of the weights of the VMs there, by machine, subscriber and hour, (opened, N, hours)."""
    machine, subscriber, first, last = _stays(placed)
    there, hours = placed.machine >= 0, placed.scenario.hours
    change = np.zeros((placed.opened, placed.scenario.subscribers, hours + 1))
    np.add.at(change, (machine, subscriber, first), weights[there])
    np.add.at(change, (machine, subscriber, last), -weights[there])
    sums: Floats = change.cumsum(axis=2)[..., :hours]
    return sums


def _stays(placed: Placement) -> tuple[NDArray[np.int64], ...]:
    """Return machine, subscriber, first hour and hour of departure of each VM that found a machine."""
    week, there, hours = placed.week, placed.machine >= 0, placed.scenario.hours
    return (
        placed.machine[there],
        week.subscriber[there],
        np.clip(week.arrival[there], 0, hours),
        np.clip(week.departure[there], 0, hours),
    )


def _by_decision(placed: Placement, values: Floats) -> Floats:
    """Add up the values of requests that found a machine, by hour and subscriber; VMs of a warm start are left out."""
    week, out = placed.week, np.zeros((placed.scenario.hours, placed.scenario.subscribers))
    asked = np.flatnonzero(placed.machine >= 0)
    asked = asked[asked >= week.warm]
    np.add.at(out, (week.arrival[asked], week.subscriber[asked]), values[asked])
    return out


# Price of risk.

HALF_LIFE, WINDOW = 10.0, 20
"""Episodes by which the estimate of the risk fades, and how many it looks back on (§10.11)."""


def published_bound(alpha: float, limit: int, hours: int) -> float:
    """Return c_bar: Markov's bound on the hot hours of a week, per hour; 0.00125 for alpha 0.95 (§4)."""
    return (1.0 - alpha) * limit / hours


def dual_step(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step: it rises while more is measured than allowed, and stays in [0, highest]."""
    return min(max(price + rate * (measured - allowed), 0.0), highest)


def dual_factor(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step by a factor of at most exp(rate), up or down, by the excess as a share of its range.

    Added up, an excess of up to 1 - allowed drives lambda in few episodes to where steps of at most `allowed` take
    hundreds to bring it back from.
    """
    room = 1.0 - allowed if measured > allowed else allowed
    return min(price * math.exp(rate * (measured - allowed) / room), highest)


def dual_ratio(price: float, rate: float, measured: float, allowed: float, highest: float) -> float:
    """Return lambda after a step by a factor of at most exp(rate), by how many times too much is measured.

    Twice as much as allowed moves it up as far as half as much moves it down; everything moves it by the whole factor.
    """
    times = max(measured, allowed**2) / allowed
    return min(price * math.exp(rate * math.log(times) / -math.log(allowed)), highest)


DUAL_STEPS = {"sum": dual_step, "factor": dual_factor, "ratio": dual_ratio}
"""By the rate times the excess; by a factor, equally fast up and down, so that the price comes back from any height
that it reached while the networks were young; likewise, but by how many times too much is measured, so that a small
excess counts as much as a small reserve."""


# Choice of the best policy.

Policy = Callable[[NDArray[np.float32]], Floats]
"""From the observations of every subscriber in several clusters, (B, N, features), to their rates, (B, N)."""
SAMPLED_WEEKS = 8
"""Weeks that are played on fresh episodes: those of the highest assessed risk."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy as evaluated: share of cores reserved, and the risk of the worst week, sampled and assessed."""

    reserved: float
    sampled: float
    assessed: float
    feasible: bool

    def beats(self, other: Candidate | None) -> bool:
        """Return whether this one is better: safe before unsafe, then by cores saved, unsafe ones by their risk."""
        if other is None or self.feasible != other.feasible:
            return other is None or self.feasible
        return self.reserved < other.reserved if self.feasible else self.assessed < other.assessed

    def figures(self) -> dict[str, float]:
        """Return its figures for a learning curve."""
        return {
            "held_out/reserved": self.reserved,
            "held_out/c_hot_r": self.sampled,
            "held_out/c_hot_r_assessed": self.assessed,
            "held_out/feasible": float(self.feasible),
        }


def candidate_of(
    policy: Policy, scenario: Scenario, config: Config, weeks: Sequence[Week], best: Candidate | None, seed: int
) -> Candidate:
    """Play a greedy policy on all of the weeks and judge it on fresh episodes from `seed` on, the riskiest week first.

    One that cannot become the best is not sampled, its risk is the assessed one; one that is not safe in a week is not
    sampled on the others.
    """
    count, allowed = len(weeks), 1.0 - config.alpha
    batch = OversubscriptionBatch(scenario, weeks, count, start=config.start, observation=config.observation)
    batch.reset(np.zeros(count, np.int64), np.arange(count))
    chances = np.zeros((count, scenario.hours))
    for t in range(scenario.hours):
        chances[:, t] = batch.step_rates(policy(batch.local))[2]
    placements = [batch.placement(i) for i in range(count)]
    tails = [count_at_least(by_hour, scenario.violation_hours) for by_hour in chances]
    assessed = np.array([1.0 if placed.rejects else tail for placed, tail in zip(placements, tails, strict=True)])
    reserved, worst = 1.0 - float(np.mean([placed.s_cores or 0.0 for placed in placements])), float(assessed.max())
    hopeless = best is not None and best.feasible and reserved >= best.reserved
    sampled = worst
    if worst <= allowed and not hopeless:
        seeds, sampled = np.arange(seed, seed + config.evaluation_episodes), 0.0
        for i in np.argsort(-assessed, kind="stable")[:SAMPLED_WEEKS].tolist():
            sampled = max(sampled, sample(placements[i], usage_of("gauss", scenario, weeks[i]), seeds).c_hot_r)
            if sampled > allowed:
                break
    return Candidate(reserved, float(sampled), worst, bool(max(sampled, worst) <= allowed))


# Learner.


def epsilon_of(config: Config, episode: int) -> float:
    """Return the share of explored choices in an episode."""
    passed = min(episode / max(config.epsilon_share * config.episodes, 1.0), 1.0)
    return 1.0 - (1.0 - config.epsilon_last) * passed


def weeks_of(config: Config, scenario: Scenario) -> tuple[list[Week], list[Week]]:
    """Return the weeks to learn from and those to choose by: the named ones, each with redrawn ones of a stream."""
    known = [scenario.week(name) for name in config.weeks]
    if not config.redrawn and not config.validation:
        return known, known
    arrivals = arrivals_of(scenario, config.weeks)
    fresh = (
        [unseen_week(arrivals, i, stream) for i in range(count)]
        for count, stream in ((config.redrawn, TRAINING), (config.validation, VALIDATION))
    )
    training, validation = fresh
    return [*known, *training], [*known, *validation]


class Learner:
    """A run at one moment: networks, lambda, experience, and the best policy so far."""

    def __init__(self, config: Config, scenario: Scenario) -> None:
        self.config, self.scenario = config, scenario
        self.weeks, self.choice = weeks_of(config, scenario)
        self.batch = OversubscriptionBatch(
            *(scenario, self.weeks, config.copies),
            start=config.start,
            usage=config.usage,
            cost=config.cost,
            observation=config.observation,
        )
        batch = self.batch
        self.online = network_of(config, scenario)
        self.target = deepcopy(self.online)
        self.optimiser = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate)
        room = max(1, config.capacity // batch.hours, config.copies)
        self.replay = Replay(room, batch.hours, batch.n_features, (batch.subscribers, batch.n_local))
        # A generator for each part (§14), so that no draw of one moves another; the usage is seeded by episode.
        self.exploring, self.sampling, self.drawing = (np.random.default_rng((config.seed, i)) for i in (1, 2, 3))
        self.episode, self.price = 0, config.lambda_start
        self.recent: list[float] = []
        self.best: Candidate | None = None
        self.best_weights: dict[str, Tensor] = {}

    @property
    def policy(self) -> ValueDecomposition:
        """The network that is evaluated and exported."""
        return self.target if self.config.averaged else self.online

    def greedy_levels(self, local: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the greedy levels (B, N) for the observations of every subscriber (B, N, features)."""
        with torch.no_grad():
            return self.policy.sides_of(torch.from_numpy(local)).argmax(dim=2).numpy()

    def greedy_rates(self, local: NDArray[np.float32]) -> Floats:
        """Return the greedy rates (B, N) for the observations of every subscriber (B, N, features)."""
        return np.array(self.batch.actions[self.greedy_levels(local)], dtype=np.float64)

    def play(self) -> dict[str, float]:
        """Play an episode in every copy into the replay memory, move lambda, and return the figures."""
        config, batch, replay = self.config, self.batch, self.replay
        slots = (replay.at + np.arange(config.copies)) % len(replay.reward)
        epsilon = np.full((config.copies, 1), epsilon_of(config, self.episode))
        epsilon[0] *= config.copies == 1
        seeds = np.arange(config.copies) + self.episode + (config.seed << 24)
        batch.reset(seeds, self.drawing.integers(len(batch.weeks), size=config.copies))
        hot, shape = np.zeros((config.copies, batch.hours)), (config.copies, batch.subscribers)
        for t in range(batch.hours):
            self._observe(slots, t)
            if t % config.exploration_h == 0:
                explored = self.exploring.random(shape) < epsilon
                levels = self.exploring.integers(len(batch.actions), size=shape)
            greedy = self.greedy_levels(batch.local)
            near = np.clip(greedy + 2 * (levels % 2) - 1, 0, len(batch.actions) - 1)
            actions = np.where(explored, near if config.explore == "near" else levels, greedy)
            _, reward, cost, _ = batch.step(actions)
            replay.actions[slots, t], replay.reward[slots, t], replay.cost[slots, t] = actions, reward, cost
            hot[:, t] = cost
        if config.credit == "own":
            self._give_credit(slots)
        self._observe(slots, batch.hours)
        replay.at = int((replay.at + config.copies) % len(replay.reward))
        replay.filled = min(replay.filled + config.copies, len(replay.reward))
        self.episode += config.copies
        figures = {"explored": float(epsilon[-1, 0]), "reward": float(replay.reward[slots].mean())}
        # As in the published learning curves: hot hours of a week and saved cores, of the greedy copy or the only.
        figures |= {"hot_hours": float(hot[0].sum()), "s_cores": self.batch.placement(0).s_cores or 0.0}
        return figures | self._move_lambda(hot)

    def _give_credit(self, slots: NDArray[np.int64]) -> None:
        """Store each subscriber's part of the reward of an episode, and the hot hours that its VMs answer for."""
        batch, replay = self.batch, self.replay
        for i, slot in enumerate(slots):
            placed = batch.placement(i)
            replay.own_reward[slot] = saved_by(placed) / self.scenario.hourly_cores
            replay.own_cost[slot] = answered_for(placed, batch.model.moments)

    def _observe(self, slots: NDArray[np.int64], t: int) -> None:
        self.replay.cluster[slots, t], self.replay.local[slots, t] = self.batch.obs, self.batch.local
        self.replay.mask[slots, t] = self.batch.mask

    def _move_lambda(self, hot: Floats) -> dict[str, float]:
        """Move the price by the hot hours (or their chances) of an episode by copy, (B, hours): those of the first."""
        config, limit = self.config, self.scenario.violation_hours
        allowed, measured = config.aim or 1.0 - config.alpha, count_at_least(hot[0], limit)
        if config.dual == "bound":
            allowed, measured = published_bound(config.alpha, limit, self.scenario.hours), float(hot[0].mean())
        self.recent = [*self.recent, measured][-WINDOW:]
        fading = 0.5 ** (np.arange(len(self.recent))[::-1] / HALF_LIFE)
        estimate = float(fading @ np.array(self.recent) / fading.sum())
        self.price = DUAL_STEPS[config.dual_form](self.price, config.dual_rate, estimate, allowed, config.lambda_max)
        return {"lambda": self.price, "risk/estimate": estimate, "risk/allowed": allowed}

    def learn(self) -> float:
        """Make the round's gradient updates and return their mean loss."""
        config, total = self.config, 0.0
        bound = published_bound(config.alpha, self.scenario.violation_hours, self.scenario.hours)
        done = min(self.episode / config.episodes, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = config.learning_rate + (config.learning_rate_last - config.learning_rate) * done
        pairs = list(zip(self.target.parameters(), self.online.parameters(), strict=True))
        for _ in range(config.updates):
            rows = self.replay.sample(config.batch, self.sampling)
            wanted = targets(self.online, self.target, rows, self.price, bound, config.gamma)
            loss = loss_of(self.online, rows, wanted, own=config.credit == "own")
            self.optimiser.zero_grad()
            torch.autograd.backward(loss)
            self.optimiser.step()
            with torch.no_grad():
                for slow, fast in pairs:
                    slow.lerp_(fast, config.tau)
            total += float(loss.detach())
        return total / config.updates

    def evaluate(self) -> dict[str, float]:
        """Evaluate the greedy policy on fresh episodes; its weights are the best ones if it beats the former (§4)."""
        config = self.config
        seed = 1_000_000_007 + self.episode * config.evaluation_episodes
        found = candidate_of(self.greedy_rates, self.scenario, config, self.choice, self.best, seed)
        if found.beats(self.best):
            self.best = found
            self.best_weights = {name: value.clone() for name, value in self.policy.state_dict().items()}
        return found.figures()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "weights": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "best_weights": self.best_weights,
            "best": None if self.best is None else asdict(self.best),
            "replay": self.replay.state(),
            "draws": [draws.bit_generator.state for draws in (self.exploring, self.sampling, self.drawing)],
            "episode": self.episode,
            "lambda": self.price,
            "recent": self.recent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state of the same configuration."""
        self.online.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.best_weights = dict(state["best_weights"])
        self.best = None if state["best"] is None else Candidate(**state["best"])
        self.replay.restore(state["replay"])
        for draws, saved in zip((self.exploring, self.sampling, self.drawing), state["draws"], strict=True):
            draws.bit_generator.state = saved
        self.episode, self.price, self.recent = state["episode"], state["lambda"], list(state["recent"])


# Loop.


@dataclass(frozen=True, slots=True)
class Result:
    """The best weights of a run with their evaluation; episodes, price and hash are those of the end."""

    weights: Mapping[str, Tensor]
    best: Candidate
    episodes: int
    price: float
    weights_hash: str


def train(
    config: Config,
    *,
    scenario: Scenario | None = None,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Result:
    """Learn a policy from the start or from the last checkpoint; raises BadInput.

    scenario: in place of that of the configuration. on_progress: called after every round.
    """
    torch.set_num_threads(1)
    learner = Learner(config, scenario_of(config.scenario) if scenario is None else scenario)
    clock = Clock(resume(checkpoints, config.plain(), learner.restore, EXTENDABLE))
    while learner.episode < config.episodes:
        since, before = learner.episode // config.evaluate_every, learner.best
        figures = learner.play() | {"loss": learner.learn()}
        due = learner.episode // config.evaluate_every > since or learner.episode >= config.episodes
        if due:
            figures |= learner.evaluate()
        best = learner.best
        progress = {
            "update": learner.episode,
            "steps": learner.episode * learner.batch.hours,
            "total_steps": config.episodes * learner.batch.hours,
            **clock.spent(),
            "best_cost": best.reserved if best is not None and best.feasible else None,
        }
        if due and checkpoints is not None:
            checkpoints.save(Checkpoint(config.plain(), progress, learner.state()), best=best is not before)
        on_progress(Progress(**progress, figures={name: float(value) for name, value in figures.items()}))
    if learner.best is None:
        raise BadInput("episodes", config.episodes, "give enough episodes for one evaluation")
    last = weights_hash(learner.online.state_dict())
    return Result(learner.best_weights, learner.best, learner.episode, learner.price, last)
