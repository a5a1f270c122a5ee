"""C2MARL: one value for the cluster, one per subscriber, added up; risk is priced by a dual variable (§4).

Each subscriber picks its own rate by its own part of the value, yet all parts are learnt together, from the cluster's
saved cores and hot hours. Section numbers are those of the oversubscription specification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domain.errors import BadInput
from domain.rules.oversubscription.risk import count_at_least
from simulator.oversubscription.batch import OversubscriptionBatch
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import sample
from trainer.kit.checkpoint import Checkpoint, Checkpoints, check_resumable, weights_hash
from trainer.kit.progress import Progress
from trainer.oversubscription.configuration import VdnConfig
from trainer.oversubscription.unseen import TRAINING, VALIDATION, arrivals_of, unseen_week
from trainer.oversubscription.vdn_values import (
    DUAL_STEPS,
    Replay,
    ValueDecomposition,
    answered_for,
    loss_of,
    network_of,
    published_bound,
    saved_by,
    targets,
)

Rates = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""From what every subscriber sees in each of several clusters, (B, N, features), to their rates, (B, N)."""
SAMPLED_WEEKS = 8
"""Of many weeks, the riskiest ones are played on fresh episodes; the others are below them by assessment."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy as evaluated: the worst week's risk by sampling and by assessment, and the share of cores reserved."""

    reserved: float
    sampled: float
    assessed: float
    feasible: bool

    def beats(self, other: Candidate | None) -> bool:
        """Say whether this one is kept: safe before unsafe, then by cores saved, unsafe ones by their risk."""
        if other is None or self.feasible != other.feasible:
            return other is None or self.feasible
        return self.reserved < other.reserved if self.feasible else self.assessed < other.assessed

    def figures(self) -> dict[str, float]:
        """Return what a learning curve shows of it."""
        return {
            "held_out/reserved": self.reserved,
            "held_out/c_hot_r": self.sampled,
            "held_out/c_hot_r_assessed": self.assessed,
            "held_out/feasible": float(self.feasible),
        }


def judged_candidate(
    rates: Rates, scenario: Scenario, config: VdnConfig, weeks: Sequence[Week], best: Candidate | None, seed: int
) -> Candidate:
    """Play a greedy policy on all of the weeks and judge it on fresh episodes from `seed` on, the riskiest week first.

    One that cannot become the best is not sampled, its risk is the assessed one; one that is not safe in a week is not
    sampled on the others.
    """
    count = len(weeks)
    batch = OversubscriptionBatch(scenario, weeks, count, start=config.start, observation=config.observation)
    batch.reset(np.zeros(count, np.int64), np.arange(count))
    chances = np.zeros((count, scenario.hours))
    for t in range(scenario.hours):
        chances[:, t] = batch.step_rates(rates(batch.local))[2]
    placements = [batch.placement(i) for i in range(count)]
    assessed = np.array(
        [
            1.0 if placed.rejects else count_at_least(own, scenario.violation_hours)
            for placed, own in zip(placements, chances, strict=True)
        ]
    )
    reserved, worst = 1.0 - float(np.mean([placed.s_cores or 0.0 for placed in placements])), float(assessed.max())
    allowed, sampled = 1.0 - config.alpha, worst
    hopeless = best is not None and best.feasible and reserved >= best.reserved
    if worst <= allowed and not hopeless:
        seeds, sampled = np.arange(seed, seed + config.evaluation_episodes), 0.0
        for i in np.argsort(-assessed, kind="stable")[:SAMPLED_WEEKS].tolist():
            sampled = max(sampled, sample(placements[i], usage_of("gauss", scenario, weeks[i]), seeds).c_hot_r)
            if sampled > allowed:
                break
    feasible = max(sampled, worst) <= allowed
    return Candidate(reserved, float(sampled), worst, bool(feasible))


Floats = NDArray[np.float64]
EXTENDABLE = ("episodes",)
HALF_LIFE, WINDOW = 10.0, 20
"""Episodes by which the estimate of the risk fades, and how many it looks back on (§10.11)."""


def epsilon_of(config: VdnConfig, episode: int) -> float:
    """Return the share of explored choices in an episode."""
    passed = min(episode / max(config.epsilon_share * config.episodes, 1.0), 1.0)
    return 1.0 - (1.0 - config.epsilon_last) * passed


def redrawn(config: VdnConfig, scenario: Scenario) -> tuple[list[Week], list[Week]]:
    """Return redrawn weeks to learn from, and others to be judged on; neither are those of calibration or report."""
    if not config.redrawn and not config.validation:
        return [], []
    arrivals = arrivals_of(scenario, config.weeks)
    return (
        [unseen_week(arrivals, i, TRAINING) for i in range(config.redrawn)],
        [unseen_week(arrivals, i, VALIDATION) for i in range(config.validation)],
    )


class Learner:
    """A run at one moment: networks, lambda, experience, and the best policy so far."""

    def __init__(self, config: VdnConfig, scenario: Scenario) -> None:
        self.config, self.scenario = config, scenario
        known = [scenario.week(name) for name in config.weeks]
        drawn, self.judged_on = redrawn(config, scenario)
        self.judged_on = [*known, *self.judged_on]
        self.batch = OversubscriptionBatch(
            *(scenario, [*known, *drawn], config.copies),
            start=config.start,
            usage=config.usage,
            cost=config.cost,
            observation=config.observation,
        )
        batch = self.batch
        self.online = network_of(config, scenario)
        self.target = deepcopy(self.online)
        self.optimiser = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate)
        kept = max(1, config.capacity // batch.hours, config.copies)
        self.replay = Replay(kept, batch.hours, batch.n_features, (batch.subscribers, batch.n_local))
        # One integer, a sequence of its own for each part (§14); the usage is seeded by episode.
        self.exploring, self.sampling, self.drawing = (np.random.default_rng((config.seed, i)) for i in (1, 2, 3))
        self.episode, self.price = 0, config.lambda_start
        self.recent: list[float] = []
        self.best: Candidate | None = None
        self.best_weights: dict[str, Tensor] = {}

    @property
    def policy(self) -> ValueDecomposition:
        """The network that is judged and kept."""
        return self.target if self.config.averaged else self.online

    def choose(self) -> NDArray[np.int64]:
        """Return the greedy levels for what every copy sees now, (B, N)."""
        with torch.no_grad():
            return self.policy.sides_of(torch.from_numpy(self.batch.local)).argmax(dim=2).numpy()

    def play(self) -> dict[str, float]:
        """Play an episode in every copy, keep it, and move lambda."""
        config, batch, replay = self.config, self.batch, self.replay
        slots = (replay.at + np.arange(config.copies)) % len(replay.reward)
        epsilon = np.full((config.copies, 1), epsilon_of(config, self.episode))
        epsilon[0] *= config.copies == 1
        seeds = np.arange(config.copies) + self.episode + (config.seed << 24)
        batch.reset(seeds, self.drawing.integers(len(batch.weeks), size=config.copies))
        hot, shape = np.zeros((config.copies, batch.hours)), (config.copies, batch.subscribers)
        for t in range(batch.hours):
            self._keep(slots, t)
            if t % config.exploration_h == 0:
                explored = self.exploring.random(shape) < epsilon
                levels = self.exploring.integers(len(batch.actions), size=shape)
            greedy = self.choose()
            if config.explore == "near":
                other = np.clip(greedy + 2 * (levels % 2) - 1, 0, len(batch.actions) - 1)
            else:
                other = levels
            actions = np.where(explored, other, greedy)
            _, reward, cost, _ = batch.step(actions)
            replay.actions[slots, t], replay.reward[slots, t], replay.cost[slots, t] = actions, reward, cost
            hot[:, t] = cost
        if config.credit == "own":
            self._give_credit(slots)
        self._keep(slots, batch.hours)
        replay.at = int((replay.at + config.copies) % len(replay.reward))
        replay.filled = min(replay.filled + config.copies, len(replay.reward))
        self.episode += config.copies
        figures = {"explored": float(epsilon[-1, 0]), "reward": float(replay.reward[slots].mean())}
        # What the published learning curves show: hot hours of a week and saved cores, of the greedy copy or the only.
        figures |= {"hot_hours": float(hot[0].sum()), "s_cores": self.batch.placement(0).s_cores or 0.0}
        return figures | self._move_lambda(hot)

    def _give_credit(self, slots: NDArray[np.int64]) -> None:
        """Keep each subscriber's part of an episode's reward, and the hot hours that its VMs answer for."""
        batch, replay = self.batch, self.replay
        for i, slot in enumerate(slots):
            placed = batch.placement(i)
            replay.own_reward[slot] = saved_by(placed) / self.scenario.hourly_cores
            replay.own_cost[slot] = answered_for(placed, batch.model.moments)

    def _keep(self, slots: NDArray[np.int64], t: int) -> None:
        self.replay.cluster[slots, t], self.replay.local[slots, t] = self.batch.obs, self.batch.local
        self.replay.mask[slots, t] = self.batch.mask

    def _move_lambda(self, hot: Floats) -> dict[str, float]:
        """Take in an episode's hot hours (or their chances) by copy, (B, hours); with several copies the greedy one."""
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
        follow = config.tau if config.target_update == "slow" else 1.0 - config.tau
        pairs = list(zip(self.target.parameters(), self.online.parameters(), strict=True))
        for _ in range(config.updates):
            rows = self.replay.sample(config.batch, self.sampling, config.bootstrap_truncation)
            wanted = targets(self.online, self.target, rows, self.price, bound, config.gamma)
            loss = loss_of(self.online, rows, wanted, own=config.credit == "own")
            self.optimiser.zero_grad()
            torch.autograd.backward(loss)
            self.optimiser.step()
            with torch.no_grad():
                for slow, fast in pairs:
                    slow.lerp_(fast, follow)
            total += float(loss.detach())
        return total / config.updates

    def evaluate(self) -> dict[str, float]:
        """Judge the greedy policy on fresh episodes and keep it when it is the best so far (§4)."""
        config = self.config
        seed = 1_000_000_007 + self.episode * config.evaluation_episodes
        found = judged_candidate(self.greedy_rates, self.scenario, config, self.judged_on, self.best, seed)
        if found.beats(self.best):
            self.best = found
            self.best_weights = {name: value.clone() for name, value in self.policy.state_dict().items()}
        return found.figures()

    def greedy_rates(self, local: NDArray[np.float32]) -> Floats:
        """Return the rates (B, N) for what every subscriber sees in each of several clusters, (B, N, features)."""
        with torch.no_grad():
            levels = self.policy.sides_of(torch.from_numpy(local)).argmax(dim=2)
        return np.array(self.batch.actions[levels.numpy()], dtype=np.float64)

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on."""
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
        """Go on from a state of the same configuration."""
        self.online.load_state_dict(state["weights"])
        self.target.load_state_dict(state["target"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.best_weights = dict(state["best_weights"])
        self.best = None if state["best"] is None else Candidate(**state["best"])
        self.replay.restore(state["replay"])
        for draws, kept in zip((self.exploring, self.sampling, self.drawing), state["draws"], strict=True):
            draws.bit_generator.state = kept
        self.episode, self.price, self.recent = state["episode"], state["lambda"], list(state["recent"])


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a run came to: the best policy's weights and how it was judged."""

    weights: Mapping[str, Tensor]
    best: Candidate
    episodes: int
    price: float
    weights_hash: str


def train(
    config: VdnConfig,
    *,
    scenario: Scenario | None = None,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Learnt:
    """Learn a policy, going on from the last checkpoint where there is one; raises BadInput.

    scenario: in place of the one that the configuration names. on_progress: called after every round.
    """
    torch.set_num_threads(1)
    learner = Learner(config, scenario_of(config.scenario) if scenario is None else scenario)
    before = checkpoints.last() if checkpoints is not None else None
    wall, cpu = 0.0, 0.0
    if before is not None and checkpoints is not None:
        check_resumable(before, config.plain(), checkpoints.directory, EXTENDABLE)
        learner.restore(before.state)
        wall, cpu = before.progress["wall_s"], before.progress["cpu_s"]
    began = time.perf_counter() - wall, time.process_time() - cpu
    while learner.episode < config.episodes:
        since = learner.episode // config.evaluate_every
        figures = learner.play()
        figures["loss"] = learner.learn()
        due = learner.episode // config.evaluate_every > since or learner.episode >= config.episodes
        held = learner.best
        if due:
            figures |= learner.evaluate()
        best = learner.best
        figures = {name: float(value) for name, value in figures.items()}
        progress = Progress(
            update=learner.episode,
            steps=learner.episode * learner.batch.hours,
            total_steps=config.episodes * learner.batch.hours,
            wall_s=time.perf_counter() - began[0],
            cpu_s=time.process_time() - began[1],
            figures=figures,
            best_cost=best.reserved if best is not None and best.feasible else None,
        )
        if due and checkpoints is not None:
            progress_data = {name: value for name, value in asdict(progress).items() if name != "figures"}
            checkpoints.save(Checkpoint(config.plain(), progress_data, learner.state()), best=best is not held)
        on_progress(progress)
    if learner.best is None:
        raise BadInput("episodes", config.episodes, "give enough episodes for one evaluation")
    return Learnt(
        learner.best_weights, learner.best, learner.episode, learner.price, weights_hash(learner.online.state_dict())
    )
