"""Which weights of a run are best: held-out episodes, the choice among checkpoints, and restarts after a collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np
from torch import Tensor

from simulator.autoscaling.batch import AutoscalingBatch
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.rollout import Bools, Doubles, Ints, MakeWorlds, Player
from trainer.autoscaling.tasks import SELECTION_SEED, Task
from trainer.kit.parallel import Crew


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Cost of the held-out episodes by most probable and by drawn actions (see `score`); mean steps of the former."""

    greedy: float
    sampled: float
    greedy_steps: float


class Selection:
    """Judges a policy on the same held-out episodes each time, and keeps the best weights.

    best_cost: None before the first evaluation. restarts: collapses so far. evaluated_at: steps at the last evaluation.
    """

    best_weights: dict[str, Tensor]

    def __init__(self, config: PPOConfig, task: Task, make_worlds: MakeWorlds) -> None:
        self._config, self._task = config, task
        # Half of the copies take the most probable actions, the others draw theirs.
        self._worlds = config.worlds(make_worlds, task.world, task.selection, 2 * config.selection_episodes)
        self.best_cost: float | None = None
        self.restarts = self.evaluated_at = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """Features and logits that a network needs."""
        return self._worlds.n_features, self._worlds.n_actions

    def due(self, steps: int) -> bool:
        """Return whether to evaluate after so many environment steps."""
        over = steps >= self._config.total_steps
        return over or steps - self.evaluated_at >= self._config.evaluate_every_steps

    def keep(self, network: PolicyValueNetwork, cost: float | None) -> None:
        """Keep the present weights as the best ones."""
        self.best_cost, self.best_weights = cost, network.copied_weights()

    def evaluate(self, network: PolicyValueNetwork) -> HeldOut:
        """Play the held-out episodes with the network's present weights."""
        config, episodes = self._config, self._config.selection_episodes
        which = np.tile(np.arange(episodes), 2)
        greedy = np.arange(which.size) < episodes
        costs, lengths = play(
            self._worlds,
            network,
            SELECTION_SEED + which,
            which % len(self._task.selection),
            greedy,
            heads=config.heads(self._task.world),
            masked=config.masked,
            most_steps=config.most_episode_steps,
            rng=np.random.default_rng(SELECTION_SEED),
        )
        costs += self._task.step_price(config.time_price_per_minute, self._task.world) * lengths
        par, families = self._task.par, self._task.families
        drawn, best = (score(costs[part], len(self._task.selection), par, families) for part in (~greedy, greedy))
        return HeldOut(best, drawn, float(lengths[greedy].mean()))

    def judge(self, network: PolicyValueNetwork, figures: dict[str, float], steps: int, crew: Crew) -> tuple[bool, str]:
        """Evaluate; keep the weights when they are best, load the best ones when the policy has collapsed.

        A policy has collapsed when it takes nearly one action only, or draws hardly any other, and costs more than
        `collapse_worse` times the best; or when it costs more than `collapse_lost` times the best in any case. Adds the
        held-out costs to `figures`; returns whether the weights are the best so far, and a note on a restart.
        """
        config = self._config
        self.evaluated_at = steps
        costs = astuple(self.evaluate(network)) if crew.leads else (0.0, 0.0, 0.0)
        found = HeldOut(*crew.as_leader(costs))
        figures |= {f"held_out/{name}": value for name, value in asdict(found).items()}
        if self.best_cost is None or found.greedy < self.best_cost:
            self.keep(network, found.greedy)
            return True, ""
        stuck = figures["policy/most_frequent_action"] > config.collapse_share
        stuck |= figures["policy/entropy"] < config.collapse_entropy
        lost = min(found.greedy, found.sampled) > config.collapse_lost * self.best_cost
        if not lost and not (stuck and found.greedy > config.collapse_worse * self.best_cost):
            return False, ""
        self.restarts += 1
        network.load_state_dict(self.best_weights)
        slower = f"rate x {config.collapse_rate**self.restarts:g}"
        return False, f"collapsed at cost {found.greedy:.2f}: back to the weights of {self.best_cost:.2f}, {slower}"


def score(costs: Doubles, traces: int, par: Sequence[float] = (), families: Sequence[str] = ()) -> float:
    """Return the mean cost, dollars; with a par, the mean ratio to it and a penalty for the worst family.

    costs [episodes], over `traces` traces in turn. par, families [traces]: what each trace costs under a rule, dollars,
    and what it is an example of. The ratio is the mean over families of their mean ratios. Half of what the worst
    family lies above 1 is added: a policy that is cheap on the whole and dear on one kind of load is not wanted.
    """
    if not par:
        return float(costs.mean())
    which = np.arange(costs.size) % traces
    ratios = costs / np.asarray(par)[which]
    kinds = np.asarray(families or ("",) * traces)[which]
    means = [float(ratios[kinds == kind].mean()) for kind in dict.fromkeys(kinds.tolist())]
    return float(np.mean(means)) + 0.5 * max(max(means) - 1.0, 0.0)


def play(
    worlds: AutoscalingBatch,
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
    batch = seeds.size
    player = Player(worlds, network, batch, heads, masked, rng)
    lengths, running = np.zeros(batch, dtype=np.int64), np.ones(batch, dtype=np.bool_)
    observations = worlds.reset(seeds, traces)
    for _ in range(most_steps):
        observations, _, terminated, truncated = worlds.step(player.choose(observations, greedy))
        lengths += running
        running &= ~(terminated | truncated)
        if not running.any():
            break
    return worlds.rent + worlds.penalty, lengths
