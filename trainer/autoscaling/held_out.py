"""Plays held-out episodes with a network that is being trained, to tell which of its weights are best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.rollout import Bools, Doubles, Ints, Worlds, choose
from trainer.autoscaling.tasks import SELECTION_SEED


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Cost of held-out episodes by most probable and by drawn actions, see `Judge.score`; mean steps of the former."""

    greedy: float
    sampled: float
    greedy_steps: float


@dataclass(frozen=True, slots=True)
class Judge:
    """The same `episodes` held-out episodes each time, greedy and sampled, over `traces` traces in turn.

    worlds: twice as many copies. most_steps: an episode that is not over by then counts with its cost so far. par,
    families [traces]: what each trace costs under a rule, dollars, and what it is an example of; none for neither.
    step_price: dollars that a step of an episode costs besides, where run time has a price.
    """

    worlds: Worlds
    traces: int
    episodes: int
    heads: int
    masked: bool
    most_steps: int
    par: Sequence[float] = ()
    families: Sequence[str] = ()
    step_price: float = 0.0

    def score(self, costs: Doubles) -> float:
        """Return the mean cost, dollars; where there is a par, how costs relate to it instead.

        That is the mean over families of their mean ratio, and half as much as the worst family lies above 1 on top: a
        policy that is cheap on the whole and dear on one kind of load is not what is wanted.
        """
        if not self.par:
            return float(costs.mean())
        which = np.arange(costs.size) % self.traces
        ratios = costs / np.asarray(self.par)[which]
        families = np.asarray(self.families or ("",) * self.traces)[which]
        means = [float(ratios[families == family].mean()) for family in dict.fromkeys(families.tolist())]
        return float(np.mean(means)) + 0.5 * max(max(means) - 1.0, 0.0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Features and logits that a network needs."""
        return self.worlds.n_features, self.worlds.n_actions

    def play(self, network: PolicyValueNetwork) -> HeldOut:
        """Play with the network's present weights."""
        which = np.tile(np.arange(self.episodes), 2)
        greedy = np.arange(which.size) < self.episodes
        costs, lengths = play(
            self.worlds,
            network,
            SELECTION_SEED + which,
            which % self.traces,
            greedy,
            heads=self.heads,
            masked=self.masked,
            most_steps=self.most_steps,
            rng=np.random.default_rng(SELECTION_SEED),
        )
        costs += self.step_price * lengths
        return HeldOut(self.score(costs[greedy]), self.score(costs[~greedy]), float(lengths[greedy].mean()))


def play(
    worlds: Worlds,
    network: PolicyValueNetwork,
    seeds: Ints,
    traces: Ints,
    greedy: Bools,
    *,
    heads: int,
    masked: bool,
    most_steps: int,
    rng: np.random.Generator,
) -> tuple[Doubles, Ints]:
    """Play one episode per copy and return the cost (dollars) and the length (steps) of each.

    greedy [B]: take the most probable action, else draw one. An episode that has not ended after `most_steps` counts
    with its cost so far.
    """
    batch, choices = seeds.size, worlds.n_actions // heads
    actor = network.actor(batch)
    device = network.value.weight.device
    actions, lengths = np.zeros((batch, heads), dtype=np.int64), np.zeros(batch, dtype=np.int64)
    log_probs, values = np.zeros((2, batch), dtype=np.float32)
    running = np.ones(batch, dtype=np.bool_)
    masks = np.ones((batch, heads, choices), dtype=np.bool_)
    observations = worlds.reset(seeds, traces)
    for _ in range(most_steps):
        answer = actor.step(torch.from_numpy(observations).to(device)).cpu().numpy()
        if masked:
            masks = worlds.masks().reshape(batch, heads, choices)
        choose(answer, masks, rng.random((batch, heads)), greedy, actions, log_probs, values)
        observations, _, terminated, truncated = worlds.step(actions[:, 0] if heads == 1 else actions)
        lengths += running
        running &= ~(terminated | truncated)
        if not running.any():
            break
    return worlds.rent + worlds.penalty, lengths
