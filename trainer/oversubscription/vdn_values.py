"""The networks of C2MARL: one value for the cluster and one per subscriber, added up, and what they are taught (§4).

Whose hot hours are they? A rate shows in the chances of later hours, days after it was given, among those of everybody
else. Here each chance goes back to the subscriber and hour whose VMs bring it about (§12.1, §12.3). Section numbers are
those of the oversubscription specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from domain.observations.oversubscription import cluster_names, local_names
from domain.rules.oversubscription.usage import Moments
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.scenario import Scenario
from simulator.oversubscription.weekly import Placement
from trainer.oversubscription.configuration import VdnConfig

KEPT = ("cluster", "local", "mask", "actions", "reward", "cost", "own_reward", "own_cost")


@dataclass(frozen=True, slots=True)
class Transitions:
    """Rows of what happened: reward and cost are kept apart, as lambda moves."""

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
    """The last episodes whole, each hour with what was seen before and after it."""

    def __init__(self, episodes: int, hours: int, cluster: int, local: tuple[int, int]) -> None:
        rows = (episodes, hours + 1)
        self.cluster, self.local = np.zeros((*rows, cluster), np.float32), np.zeros((*rows, *local), np.float32)
        self.mask = np.zeros((*rows, local[0]), np.float32)
        self.actions = np.zeros((episodes, hours, local[0]), np.int64)
        self.reward, self.cost = (np.zeros((episodes, hours), np.float32) for _ in range(2))
        self.own_reward, self.own_cost = (np.zeros((episodes, hours, local[0]), np.float32) for _ in range(2))
        self.filled = self.at = 0

    def sample(self, count: int, draws: np.random.Generator, bootstrap: bool) -> Transitions:
        """Return so many transitions drawn with replacement."""
        hours = self.reward.shape[1]
        e, t = draws.integers(self.filled, size=count), draws.integers(hours, size=count)
        done = np.zeros(count, np.float32) if bootstrap else (t == hours - 1).astype(np.float32)
        arrays = (
            *(self.cluster[e, t], self.local[e, t], self.mask[e, t], self.actions[e, t], self.reward[e, t]),
            *(self.cost[e, t], self.cluster[e, t + 1], self.local[e, t + 1], self.mask[e, t + 1], done),
            *(self.own_reward[e, t], self.own_cost[e, t]),
        )
        return Transitions(*(torch.from_numpy(array) for array in arrays))

    def state(self) -> dict[str, Any]:
        """Return what is kept."""
        return {name: getattr(self, name)[: self.filled] for name in KEPT} | {"at": self.at, "filled": self.filled}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with what was kept."""
        self.at, self.filled = state["at"], state["filled"]
        for name in KEPT:
            getattr(self, name)[: self.filled] = state[name]


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
        self, cluster: int, local: int, subscribers: int, actions: int, hidden: tuple[int, ...], shared: bool, seed: int
    ) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.subscribers, self.shared = subscribers, shared
        self.cluster = _stack(1, [cluster, *hidden, 1], draws)
        inputs = local + subscribers if shared else local
        self.sides = _stack(1 if shared else subscribers, [inputs, *hidden, actions], draws)

    def value(self, cluster: Tensor) -> Tensor:
        """Return Q_c for (B, features), (B,)."""
        value: Tensor = self.cluster(cluster[None])[0, :, 0]
        return value

    def sides_of(self, local: Tensor) -> Tensor:
        """Return every subscriber's Q_n for (B, N, features), (B, N, actions)."""
        if not self.shared:
            parts: Tensor = self.sides(local.transpose(0, 1))
            return parts.transpose(0, 1)
        count = local.shape[0]
        identity = torch.eye(self.subscribers).expand(count, -1, -1)
        rows = torch.cat([local, identity], dim=2).reshape(1, count * self.subscribers, -1)
        together: Tensor = self.sides(rows)
        return together.reshape(count, self.subscribers, -1)


class Targets(NamedTuple):
    """What a value is drawn to: the joint one (B,), and with credit each subscriber's part of it (B, N)."""

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

    own: each subscriber's part has its own target, and only the cluster's part learns what is left of the joint value.
    """
    chosen = online.sides_of(rows.local).gather(2, rows.actions[:, :, None])[:, :, 0]
    parts = rows.mask * (chosen.detach() if own else chosen)
    loss = ((online.value(rows.cluster) + parts.sum(dim=1) - wanted.joint) ** 2).mean()
    return loss + (rows.mask * (chosen - wanted.own) ** 2).sum(dim=1).mean() if own else loss


def network_of(config: VdnConfig, scenario: Scenario) -> ValueDecomposition:
    """Return a configuration's network for a scenario, with the weights that its seed begins with."""
    extended = config.observation == "obs-o-ext"
    sizes = (len(cluster_names(scenario.subscribers, extended)), len(local_names(extended)), scenario.subscribers)
    return ValueDecomposition(*sizes, len(scenario.actions), config.hidden, config.shared, config.seed)


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


Floats = NDArray[np.float64]
LEAST = 1e-9


def saved_by(placed: Placement) -> Floats:
    """Return the cores that each subscriber's placements of an hour save, (hours, N)."""
    return _by_decision(placed, (1.0 - placed.rate) * placed.week.cores)


def answered_for(placed: Placement, moments: Moments) -> Floats:
    """Return the hours of hot machines that each subscriber's placements of an hour answer for, (hours, N).

    A VM answers for its use of a hot machine, at what a core more would add to the machine's chance, less what its
    reservation keeps out: the machine's average use of as many reserved cores. To first order this is the change of
    the chances by a core of that VM in place of the machine's usual mix, so that all VMs of a machine come to 0
    together, and a higher rate takes away what the VMs that found no room there would have brought.
    """
    mean = moments.mean[:, np.arange(placed.scenario.hours) % HOURS_PER_DAY]
    load = held(placed, placed.week.cores)
    used = np.einsum("knt,nt->kt", load, mean)
    reserved = held(placed, placed.week.cores * placed.rate).sum(axis=1)
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
    used = np.einsum("knt,nt->kt", held(placed, placed.week.cores), moments.mean[:, of_day])
    squares = np.einsum("knt,nt->kt", held(placed, placed.week.cores**2), moments.variance[:, of_day])
    sigma = np.sqrt(np.maximum(squares, LEAST))
    z = np.maximum((placed.scenario.threshold - used) / sigma, 0.0)
    slope: Floats = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (used / sigma + 0.5 * z)
    return slope


def held(placed: Placement, weights: Floats) -> Floats:
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
