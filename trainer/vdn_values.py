"""The networks of C2MARL: one value for the cluster and one per subscriber, added up, and what they are taught (§4).

Section numbers are those of the oversubscription specification.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from domain.observations.oversubscribe import cluster_names, local_names
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

    def joint(self, cluster: Tensor, local: Tensor, actions: Tensor, mask: Tensor) -> Tensor:
        """Return Q(s, a), (B,); mask: 1.0 where a subscriber has requests, (B, N)."""
        chosen = self.sides_of(local).gather(2, actions[:, :, None])[:, :, 0]
        return self.value(cluster) + (mask * chosen).sum(dim=1)


@torch.no_grad()
def targets(
    online: ValueDecomposition, target: ValueDecomposition, rows: Transitions, price: float, bound: float, gamma: float
) -> Tensor:
    """Return r + lambda (c_bar - C) + gamma y, (B,): the online network picks the next rates, the target rates them.

    Subscribers without requests in the next hour are left out of y (§10.4).
    """
    best = online.sides_of(rows.local_next).argmax(dim=2)
    ahead = target.joint(rows.cluster_next, rows.local_next, best, rows.mask_next)
    return rows.reward + price * (bound - rows.cost) + gamma * (1.0 - rows.done) * ahead


@torch.no_grad()
def own_targets(
    online: ValueDecomposition, target: ValueDecomposition, rows: Transitions, price: float, gamma: float
) -> Tensor:
    """Return each subscriber's own reward, less the price of what its VMs answer for, and its next value, (B, N)."""
    best = online.sides_of(rows.local_next).argmax(dim=2, keepdim=True)
    ahead = rows.mask_next * target.sides_of(rows.local_next).gather(2, best)[:, :, 0]
    return rows.own_reward - price * rows.own_cost + gamma * (1.0 - rows.done)[:, None] * ahead


def own_loss_of(online: ValueDecomposition, rows: Transitions, wanted: Tensor, own: Tensor) -> Tensor:
    """Return the loss with a target for each subscriber's part; the cluster's learns the rest of the joint value.

    Subscribers without requests have no part in it.
    """
    chosen = online.sides_of(rows.local).gather(2, rows.actions[:, :, None])[:, :, 0]
    rest = online.value(rows.cluster) + (rows.mask * chosen.detach()).sum(dim=1)
    return ((rest - wanted) ** 2).mean() + (rows.mask * (chosen - own) ** 2).sum(dim=1).mean()


def loss_of(online: ValueDecomposition, rows: Transitions, wanted: Tensor) -> Tensor:
    """Return the mean squared error of the joint value."""
    return ((online.joint(rows.cluster, rows.local, rows.actions, rows.mask) - wanted) ** 2).mean()


def network_of(config: VdnConfig, scenario: Scenario) -> ValueDecomposition:
    """Return a configuration's network for a scenario, with the weights that its seed begins with."""
    extended = config.observation == "obs-o-ext"
    sizes = (len(cluster_names(scenario.subscribers, extended)), len(local_names(extended)), scenario.subscribers)
    return ValueDecomposition(*sizes, len(scenario.actions), config.hidden, config.shared, config.seed)
