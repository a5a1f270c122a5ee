"""The networks of C2MARL: one value for the cluster and one per subscriber, added up, and what they are taught (§4).

Section numbers are those of the oversubscription specification.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from domain.observations.oversubscription import cluster_names, local_names
from simulator.oversubscription.scenario import Scenario
from trainer.oversubscription.configuration import VdnConfig
from trainer.oversubscription.replay import Transitions


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
        who = torch.eye(self.subscribers).expand(count, -1, -1)
        rows = torch.cat([local, who], dim=2).reshape(1, count * self.subscribers, -1)
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
