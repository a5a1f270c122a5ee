"""Training of a deferral policy: rounds of imitation, then PPO with a pull towards what imitation came to (§5, §10.4).

One update is a round of imitation, or an iteration of PPO or REINFORCE. Everything that a run needs to go on is in its
state: resumed, it goes on bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domain.errors import BadInput
from domain.rules.deferral.choosing import Decoding
from simulator.deferral.scenarios import CALIBRATION_SEEDS, TRAINING_SEED, Episode, episode
from simulator.deferral.world import World
from trainer.deferral.acting import judge, mean_total, see, starts_of
from trainer.deferral.configuration import Config
from trainer.deferral.imitation import ORDER_SHARE, Outlook, facts, loss_of, outlook_of, play_round
from trainer.deferral.networks import (
    TASKS,
    Answer,
    Inputs,
    Network,
    PointerPolicy,
    SetPolicy,
    SlotPolicy,
    set_deviation,
    widened,
)
from trainer.kit.checkpoint import Checkpoint, Checkpoints, check_resumable, weights_hash
from trainer.kit.ppo import RewardScale, advantages, clipped_loss, divergence
from trainer.kit.progress import Progress

Floats = NDArray[np.float64]
EXTENDABLE = ("iterations",)
FIRST_SEED = TRAINING_SEED + len(CALIBRATION_SEEDS)
SEEDS_PER_RUN = 1_000_000
"""Room for the episodes of one run, so that no two seeds of a run share one."""
CREF_EPISODES = 40


@cache
def mean_capacity(scenarios: tuple[str, ...]) -> float:
    """Return the mean capacity of training episodes, cores: Cref (§3)."""
    return float(np.mean([episode(name, seed).capacity.mean() for name in scenarios for seed in CALIBRATION_SEEDS]))


def network_of(config: Config) -> Network:
    """Return the untrained network of a method, drawn from torch's generator."""
    if config.method == "mlp":
        return SlotPolicy(config.deviation)
    if config.method == "pointer":
        return PointerPolicy()
    return SetPolicy(
        low=config.method in ("full", "aux-low"),
        high=config.method in ("full", "aux-high"),
        scale_low=config.scale_low,
        scale_high=config.scale_high,
        end_to_end=config.end_to_end,
        deviation=config.deviation,
        # After imitation the errors of the value, which are far larger, must not undo what the encoder has learnt.
        shared=config.rounds == 0,
    )


class Batch(NamedTuple):
    """Experience of T steps in E environments, by environment and then by step, so [E T] states."""

    inputs: Inputs
    scores: Tensor
    log_probs: Tensor
    values: Tensor
    following: Tensor
    """[E T, 4]: the next step; nan after an episode's end."""
    present: Tensor
    rewards: Floats
    """[T, E]: what the steps are credited with, and whether the episode ended with the step."""
    dones: Floats
    last_values: Floats
    """[E]: of the states after the last step, 0 after an end."""
    earned: float = 0.0
    """Mean of what a step earned, core-steps."""


def rewards_to_go(rewards: Floats, dones: Floats, gamma: float) -> Floats:
    """Return the discounted sums of the rewards still to come, [T, E]."""
    found, ahead = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        ahead = rewards[t] + gamma * (1.0 - dones[t]) * ahead
        found[t] = ahead
    return found


def judged(network: Network, inputs: Inputs, scores: Tensor, kind: Decoding) -> tuple[Tensor, Tensor, Answer]:
    """Return the log-probability [B] and the entropy [B] of scores, and the network's answer (§4)."""
    if isinstance(network, PointerPolicy):
        _, log_prob, entropy, answer = network.points(inputs, scores)
        return log_prob, entropy, answer
    answer = network(inputs)
    current = inputs.current.to(answer.value.dtype)
    spread = answer.deviation.log()
    each = -0.5 * ((scores - answer.mean(kind)) / answer.deviation).square() - spread - 0.5 * math.log(2.0 * math.pi)
    entropy = (spread + 0.5 * math.log(2.0 * math.pi * math.e)) * current
    return (each * current).sum(-1), entropy.sum(-1), answer


def distance(answer: Answer, anchor: Answer, current: Tensor, kind: Decoding) -> Tensor:
    """Return the mean KL divergence of the anchor's Gaussian scores from the answer's, summed over a state's jobs."""
    ratio = anchor.deviation / answer.deviation
    moved = (anchor.mean(kind) - answer.mean(kind)) / answer.deviation
    each = 0.5 * (ratio.square() + moved.square() - 1.0) - ratio.log()
    return (each * current).sum(-1).mean()


class Learner:
    """A run at one moment; `update` is one round of imitation or one iteration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # An order of starts has no values for a knapsack.
        self.kind: Decoding = "prefix" if config.method == "pointer" else config.decoding
        self.cref = mean_capacity(config.scenarios)
        torch.manual_seed(config.seed)
        self.network = network_of(config)
        self.rng = np.random.default_rng([config.seed, 1])
        self.draws = torch.Generator().manual_seed(config.seed + 1)
        self.updates, self.steps = 0, 0
        self.standardised = False
        self.anchor: dict[str, Tensor] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.best_total = -math.inf
        self.optimiser = self._optimiser()
        self.scale = RewardScale(np.zeros(config.environments))
        self.played = [0] * config.environments
        self.worlds: list[World] = []
        self.outlooks: list[Outlook] = []

    def _optimiser(self) -> torch.optim.Adam:
        groups: dict[str, list[Tensor]] = {"policy": [], "value": [], "predictor": []}
        for name, parameter in self.network.named_parameters():
            groups[name.split(".")[0] if name.split(".")[0] in groups else "policy"].append(parameter)
        return torch.optim.Adam([{"params": found, "lr": 1e-3} for found in groups.values()], foreach=False)

    # Imitation.

    def imitate(self) -> dict[str, float]:
        """Play a round, label it, learn from it; return its figures by name."""
        config = self.config
        left = 1.0 - self.updates / config.rounds
        lesson = play_round(
            self.network if self.updates else None,
            self._episodes(self.updates * config.environments, config.environments),
            self.cref,
            self.rng,
            kind=config.labels,
            draws=config.price_draws,
            noise=config.price_noise * self.cref,
        )
        self._standardise(lesson.following)
        self._rates(config.imitation_rate * (0.05 + 0.95 * left), config.imitation_rate * left, left)
        names = ("loss/worth", "loss/order", "loss/auxiliary")
        sums, count = np.zeros(len(names)), 0
        for _ in range(config.passes):
            for chosen in self._parts(len(lesson.worth)):
                part = lesson.rows(chosen)
                answer: Answer = self.network(part.inputs)
                worth, order = loss_of(answer, part)
                beside = self._foretelling(answer, part.following)
                self._descend(worth + ORDER_SHARE * order + beside)
                sums, count = sums + np.array([worth.item(), order.item(), beside.item()]), count + 1
        self.steps += len(lesson.worth)
        figures = dict(zip(names, (sums / count).tolist(), strict=True))
        return figures | self._foretold(lesson.inputs, lesson.following, lesson_present(lesson.inputs, self.cref))

    # PPO and REINFORCE.

    def iterate(self) -> dict[str, float]:
        """Collect experience and learn from it; return the figures of this iteration by name."""
        config, done = self.config, self.updates - self.config.rounds
        if done == 0:
            self._begin()
        left = 1.0 - done / max(config.iterations, 1)
        falling = 0.1 + 0.9 * left
        frozen = done < config.value_iterations
        batch = self._collect(config.steps)
        self._standardise(batch.following)
        self.scale.add(batch.rewards, batch.dones, config.gamma)
        rewards = batch.rewards / self.scale.deviation
        plain = config.method == "reinforce"
        if plain:
            gained = rewards_to_go(rewards, batch.dones, config.gamma)
            gained = gained - gained.mean()
        else:
            values = batch.values.double().numpy().reshape(rewards.shape[::-1]).T
            gained = advantages(rewards, values, batch.dones, batch.last_values, config.gamma, config.gae_lambda)
        flat = torch.from_numpy(gained.T.reshape(-1).astype(np.float32))
        targets = flat + batch.values
        ahead = (flat - flat.mean()) / (flat.std() + 1e-8)
        self._rates(
            *(0.0 if frozen else config.policy_rate * falling, config.value_rate * falling),
            0.0 if config.rounds else falling,
        )
        names = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/anchor", "loss/auxiliary")
        sums, count = np.zeros(len(names)), 0
        anchor = self._anchored()
        for _ in range(1 if plain else config.epochs):
            for chosen in self._parts(len(flat)):
                inputs = batch.inputs.rows(chosen)
                scores = batch.scores[chosen, : inputs.mask.shape[1]]
                log_prob, entropy, answer = judged(self.network, inputs, scores, self.kind)
                log_ratio = log_prob - batch.log_probs[chosen]
                if plain:
                    policy = -(ahead[chosen] * log_prob).mean()
                else:
                    policy = clipped_loss(ahead[chosen], log_ratio, config.clip)
                value = 0.5 * (answer.value - targets[chosen]).square().mean() * (not plain)
                pull = torch.zeros(())
                if anchor is not None:
                    with torch.no_grad():
                        before = anchor(inputs)
                    pull = distance(answer, before, inputs.current.to(answer.value.dtype), self.kind)
                beside = self._foretelling(answer, batch.following[chosen])
                # What the policy goes by since imitation must not drift under it, nor may what the predictor would
                # learn use up the norm of the gradient.
                learnt = 0.0 if config.rounds else beside
                self._descend(policy + value - config.entropy * entropy.mean() + config.kl * pull + learnt)
                parts = (policy, value, entropy.mean(), divergence(log_ratio), pull, beside)
                sums, count = sums + np.array([float(torch.as_tensor(p).detach()) for p in parts]), count + 1
        self.steps += len(flat)
        figures = dict(zip(names, (sums / count).tolist(), strict=True))
        figures["episodes/reward_per_step"] = batch.earned
        return figures | self._foretold(batch.inputs, batch.following, batch.present)

    def _begin(self) -> None:
        """Enter PPO: with the best of the imitation, a small deviation, and environments of its own."""
        config = self.config
        if config.rounds:
            self.network.load_state_dict(self.best_weights)
            if isinstance(self.network, SetPolicy):
                set_deviation(self.network.deviation, config.deviation)
            self.anchor = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.optimiser = self._optimiser()
        for place in range(config.environments):
            self._enter(place)

    def _enter(self, place: int) -> World:
        """Begin the next episode of an environment."""
        made = self._next(place)
        self.worlds[place : place + 1] = [World(made)]
        if self.config.credit == "prices":
            self.outlooks[place : place + 1] = [outlook_of(made)]
        return self.worlds[place]

    def _collect(self, steps: int) -> Batch:
        config = self.config
        moments: list[tuple[Inputs, Tensor, Tensor, Tensor]] = []
        rewards, dones, earned = (np.zeros((steps, config.environments)) for _ in range(3))
        present = np.zeros((steps + 1, config.environments, len(TASKS)))
        for t in range(steps):
            seen = see(self.worlds, self.cref)
            present[t] = [facts(world) for world in self.worlds]
            scores, log_prob, answer = self._draw(seen.inputs)
            worth = answer.worth if config.waits else None
            moments.append((seen.inputs, scores, log_prob, answer.value))
            for place, chosen in enumerate(starts_of(seen, scores, self.kind, worth)):
                earned[t, place] = rewards[t, place] = self.worlds[place].step(chosen)
                if config.credit == "prices":
                    rewards[t, place] = -self.outlooks[place].lost(seen.views[place], chosen)
                if self.worlds[place].done:
                    dones[t, place] = 1.0
                    self._enter(place)
        present[steps] = [facts(world) for world in self.worlds]
        with torch.no_grad():
            last = self.network(see(self.worlds, self.cref).inputs).value.double().numpy()
        following = np.where(dones[..., None] > 0.0, np.nan, present[1:])
        rows = max(inputs.mask.shape[1] for inputs, *_ in moments)

        def by_place(tensors: list[Tensor]) -> Tensor:
            alike = [widened(tensor, rows) if tensor.dim() > 1 else tensor for tensor in tensors]
            return torch.stack(alike, dim=1).flatten(0, 1)

        windows = torch.stack([inputs.window for inputs, *_ in moments], dim=1).flatten(0, 1)
        tokens, masks = (by_place([getattr(inputs, name) for inputs, *_ in moments]) for name in ("tokens", "mask"))
        _, *drawn = (list(column) for column in zip(*moments, strict=True))
        scores, log_probs, values = (by_place(column) for column in drawn)
        after, before = (
            torch.from_numpy(np.swapaxes(array, 0, 1).reshape(-1, len(TASKS)).astype(np.float32))
            for array in (following, present[:-1])
        )
        inputs = Inputs(tokens, masks, windows)
        last = last * (1.0 - dones[-1])
        return Batch(inputs, scores, log_probs, values, after, before, rewards, dones, last, float(earned.mean()))

    def _draw(self, inputs: Inputs) -> tuple[Tensor, Tensor, Answer]:
        with torch.no_grad():
            if isinstance(self.network, PointerPolicy):
                scores, log_prob, _, answer = self.network.points(inputs, generator=self.draws)
                return scores, log_prob, answer
            answer = self.network(inputs)
            mean = answer.mean(self.kind)
            scores = mean + answer.deviation * torch.randn(mean.shape, generator=self.draws)
            return scores, judged(self.network, inputs, scores, self.kind)[0], answer

    def _anchored(self) -> Network | None:
        if self.anchor is None or not self.config.kl:
            return None
        network = deepcopy(self.network)
        network.load_state_dict(self.anchor)
        return network.requires_grad_(False)

    # Both.

    def judge(self) -> dict[str, float]:
        """Judge the deterministic policy on the calibration seeds, and keep it when it is the best so far."""
        config = self.config
        chosen = _calibration(config.scenarios, config.evaluation_episodes)
        total = mean_total(judge(self.network, self.cref, chosen, self.kind, waits=config.waits))
        offered = float(np.mean([made.jobs.revenue.sum() for made in chosen]))
        if total > self.best_total:
            self.best_total = total
            self.best_weights = {name: value.clone() for name, value in self.network.state_dict().items()}
        return {"held_out/total": total, LOST: offered - total, "best": offered - self.best_total}

    def _episodes(self, first: int, count: int) -> list[Episode]:
        names, at = self.config.scenarios, FIRST_SEED + SEEDS_PER_RUN * self.config.seed
        return [episode(names[number % len(names)], at + number) for number in range(first, first + count)]

    def _next(self, place: int) -> Episode:
        config = self.config
        number = (config.rounds + self.played[place]) * config.environments + place
        self.played[place] += 1
        return self._episodes(number, 1)[0]

    def _standardise(self, following: Tensor) -> None:
        """Take the scales of the predictor's targets from the first experience."""
        if not self.standardised:
            known = following[~following.isnan().any(dim=1)]
            predictor = self.network.predictor
            predictor.centre.copy_(known.mean(dim=0))
            predictor.spread.copy_(known.std(dim=0).clamp(min=1.0))
            self.standardised = True

    def _foretelling(self, answer: Answer, following: Tensor) -> Tensor:
        known = ~following.isnan().any(dim=1)
        predictor = self.network.predictor
        wanted = (following[known] - predictor.centre) / predictor.spread
        errors: Tensor = (answer.foretold[known] - wanted).square().sum(dim=0) / max(int(known.sum()), 1)
        return errors.sum()

    def _foretold(self, inputs: Inputs, following: Tensor, present: Tensor) -> dict[str, float]:
        """Return R² of each auxiliary task, and of persistence, that the next step is as this one."""
        known = ~following.isnan().any(dim=1)
        predictor = self.network.predictor
        with torch.no_grad():
            found = predictor(inputs.window[known])[2] * predictor.spread + predictor.centre
        wanted = following[known]
        around = (wanted - wanted.mean(dim=0)).square().sum(dim=0)
        figures: dict[str, float] = {}
        for words, guess in (("auxiliary", found), ("persistence", present[known])):
            # Of what never changed, nothing can be explained.
            share = torch.where(around > 1e-6, 1.0 - (wanted - guess).square().sum(dim=0) / around, 0.0)
            figures |= {f"{words}/{task}": value for task, value in zip(TASKS, share.tolist(), strict=True)}
        return figures

    def _rates(self, policy: float, value: float, falling: float) -> None:
        rates = (policy, value, self.config.auxiliary_rate * falling)
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate

    def _parts(self, count: int) -> tuple[Tensor, ...]:
        order = torch.from_numpy(self.rng.permutation(count))
        return torch.split(order, self.config.minibatch)

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.gradient_norm)
        self.optimiser.step()

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "weights": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "anchor": self.anchor,
            "best_weights": self.best_weights,
            "best_total": self.best_total,
            "draws": self.draws.get_state(),
            "rng": self.rng.bit_generator.state,
            "counts": [self.updates, self.steps, int(self.standardised)],
            "scale": asdict(self.scale),
            "played": list(self.played),
            "starts": [world.start for world in self.worlds],
            "times": [world.t for world in self.worlds],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same configuration."""
        self.network.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.anchor, self.best_weights = state["anchor"], dict(state["best_weights"])
        self.best_total = state["best_total"]
        self.draws.set_state(state["draws"])
        self.rng.bit_generator.state = state["rng"]
        self.updates, self.steps, known = state["counts"]
        self.standardised = bool(known)
        self.scale = RewardScale(**state["scale"])
        self.worlds, self.outlooks = [], []
        for place, (start, until) in enumerate(zip(state["starts"], state["times"], strict=True)):
            self.played[place] = state["played"][place] - 1
            world = self._enter(place)
            while world.t < until:
                world.step(np.flatnonzero(start[world.view().cur.job] == world.t))


LOST = "held_out/lost"
"""Core-steps that were offered less the total: what is lower for a better policy."""


def lesson_present(inputs: Inputs, cref: float) -> Tensor:
    """Return what the predictor's tasks are in the present step, [B, 4], as the windows say it."""
    last = inputs.window[:, -1]
    return torch.stack([last[:, 0] * cref, last[:, 3] * 8.0, last[:, 4] * 6.0, last[:, 7] * cref * 10.0], dim=1)


@cache
def _calibration(scenarios: tuple[str, ...], count: int) -> tuple[Episode, ...]:
    return tuple(episode(scenarios[k % len(scenarios)], seed) for k, seed in enumerate(CALIBRATION_SEEDS[:count]))


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a run came to: the best weights, their mean total on the calibration seeds, and its last figures."""

    weights: Mapping[str, Tensor]
    best_total: float
    updates: int
    figures: Mapping[str, float]
    complete: bool


def train(
    config: Config,
    *,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    cpu_minutes: float | None = None,
) -> Learnt:
    """Learn a policy, going on from the last checkpoint where there is one; raises BadInput.

    cpu_minutes: end after the update in which so many were spent, over all resumptions. on_progress: called after every
    update.
    """
    torch.set_num_threads(1)
    learner = Learner(config)
    before = checkpoints.last() if checkpoints is not None else None
    wall, cpu = 0.0, 0.0
    figures: dict[str, float] = {}
    if before is not None and checkpoints is not None:
        check_resumable(before, config.plain(), checkpoints.directory, EXTENDABLE)
        learner.restore(before.state)
        wall, cpu = before.progress["wall_s"], before.progress["cpu_s"]
        figures = dict(before.progress["figures"])
    began = time.perf_counter() - wall, time.process_time() - cpu
    limit = math.inf if cpu_minutes is None else 60.0 * cpu_minutes
    spent = cpu >= limit  # not by the clock: a run that has just begun makes one update, however busy the process is
    while learner.updates < config.updates and not spent:
        imitating = learner.updates < config.rounds
        figures = learner.imitate() if imitating else learner.iterate()
        learner.updates += 1
        last = learner.updates in (config.rounds, config.updates)
        held = learner.best_total
        spent = time.process_time() - began[1] >= limit
        if last or spent or learner.updates % config.evaluate_every == 0:
            figures |= learner.judge()
        at = {
            "update": learner.updates,
            "steps": learner.steps,
            "total_steps": config.updates * config.steps * config.environments,
            "wall_s": time.perf_counter() - began[0],
            "cpu_s": time.process_time() - began[1],
        }
        if checkpoints is not None:
            progress = {**at, "figures": figures}
            checkpoints.save(Checkpoint(config.plain(), progress, learner.state()), best=learner.best_total > held)
        best = figures.pop("best", None)
        on_progress(Progress(**at, figures=figures, best_cost=best))  # type: ignore[arg-type]
    if not learner.best_weights:
        raise BadInput("cpu_minutes", cpu_minutes, "give enough for one update")
    return Learnt(learner.best_weights, learner.best_total, learner.updates, figures, learner.updates >= config.updates)


def hash_of(learnt: Learnt) -> str:
    """Return the hash of the weights that were kept."""
    return weights_hash(learnt.weights)
