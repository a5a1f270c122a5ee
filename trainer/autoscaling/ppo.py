"""Proximal policy optimisation (PPO) of a recurrent policy on the simulated autoscaler (autoscaler specification §10).

The file reads from top to bottom: loss, advantages, one update, the loop. Two more files complete the algorithm: the
network in `trainer.autoscaling.networks`, and the experience of many simulated environments in
`trainer.autoscaling.rollout`. What a run may add to plain PPO lies beside it, each behind one call of `Training`:

    selection    held-out episodes: which weights are best, and restarts from them after a collapse
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simulator.autoscaling.batch import AutoscalingBatch
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.fast_lstm import fast_products
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.rollout import NEVER, Collector, Doubles, Experience, Floats, MakeWorlds, Plan, to_device
from trainer.autoscaling.selection import Selection
from trainer.autoscaling.tasks import TRAINING_SEED, Task, task_of
from trainer.kit.checkpoint import Checkpoint, Checkpoints, check_resumable, weights_hash
from trainer.kit.parallel import ALONE, Crew, run_together
from trainer.kit.progress import Progress


class Loss(NamedTuple):
    """The loss of a minibatch and its parts; kl and clipped are figures without a gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor

    def figures(self) -> Doubles:
        """Return the parts (policy, value, entropy, kl, clipped) as numbers."""
        return torch.stack(self[1:]).detach().double().cpu().numpy()


FIGURES = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clipped")
KL = FIGURES.index("policy/kl")


def loss(config: PPOConfig, clip: float, part: Mapping[str, Tensor], logits: Tensor, values: Tensor) -> Loss:
    """Return the clipped surrogate, the clipped value loss and the entropy of a minibatch.

    part: actions [T, M, heads], masks [T, M, heads, C], log_probs, values, advantages, returns [T, M], all of the
    policy that acted. logits [T, M, heads x C] and values [T, M] are those of the present weights. The log-probability
    of several heads is their sum.
    """
    masks = part["masks"]
    shaped = logits.view(masks.shape)
    log_all = torch.log_softmax(shaped.masked_fill(~masks, NEVER) if config.masked else shaped, dim=-1)
    log_prob = log_all.gather(-1, part["actions"].unsqueeze(-1)).squeeze(-1).sum(-1)
    entropy = -(log_all.exp() * log_all).sum(-1).sum(-1).mean()
    advantage = part["advantages"]
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    log_ratio = log_prob - part["log_probs"]
    ratio = log_ratio.exp()
    policy = -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
    error = (values - part["returns"]).square()
    if config.value_clip:
        near = part["values"] + (values - part["values"]).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (near - part["returns"]).square())
    value = 0.5 * error.mean()
    with torch.no_grad():
        kl = (ratio - 1.0 - log_ratio).mean()
        clipped = ((ratio - 1.0).abs() > clip).float().mean()
    total = policy + config.value_coefficient * value - config.entropy_coefficient * entropy
    return Loss(total, policy, value, entropy, kl, clipped)


def advantages(made: Experience, rewards: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Return the generalised advantage estimates [T, B] of scaled rewards [T, B].

    After an episode's end there is no value; after an episode that was cut short there is its estimate.
    """
    found = np.zeros_like(rewards)
    advantage, value_after = np.zeros_like(made.last_values), made.last_values
    for t in range(rewards.shape[0] - 1, -1, -1):
        goes_on = 1.0 - made.dones[t]
        error = rewards[t] + gamma * (goes_on * value_after + made.bootstraps[t]) - made.values[t]
        advantage = error + gamma * gae_lambda * goes_on * advantage
        found[t], value_after = advantage, made.values[t]
    return found


@dataclass(slots=True)
class RewardScale:
    """Running standard deviation of the discounted sum of rewards, by which rewards are divided; sums [B]."""

    sums: Doubles
    count: float = 1e-4
    mean: float = 0.0
    variance: float = 1.0

    def add(self, rewards: Doubles, dones: Floats, gamma: float, crew: Crew = ALONE) -> None:
        """Add the rewards [T, B] of new experience; dones [T, B]: 1 where an episode ended."""
        seen = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            self.sums = self.sums * gamma + reward
            seen[t] = self.sums
            self.sums = self.sums * (1.0 - dones[t])
        new_mean, new_square = crew.mean(np.array([seen.mean(), (seen**2).mean()]))
        new_variance, new_count = new_square - new_mean**2, float(seen.size * crew.size)
        total, delta = self.count + new_count, new_mean - self.mean
        between = delta**2 * self.count * new_count / total
        self.variance = (self.variance * self.count + new_variance * new_count + between) / total
        self.mean += delta * new_count / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation, never 0."""
        return math.sqrt(self.variance + 1e-8)


SEEDS_PER_RUN = 10_000_000
"""Room for the seeds of the episodes of one worker of one run."""


class Training:
    """One run: the network, its optimiser, the environments, and the hooks; `update` is one turn of the loop."""

    def __init__(
        self,
        config: PPOConfig,
        *,
        task: Task | None = None,
        crew: Crew = ALONE,
        make_worlds: MakeWorlds = AutoscalingBatch,
    ) -> None:
        """task: in place of the one that the configuration names."""
        self.config, self.task, self._crew = config, task or task_of(config.task), crew
        self._make_worlds = make_worlds
        self._rng = np.random.default_rng([config.seed, crew.rank])
        self._copies = config.environments // crew.size
        self.updates = 0
        self.selection = Selection(config, self.task, make_worlds)
        features, logits = self.selection.sizes
        self.network = PolicyValueNetwork(
            config.network,
            features,
            logits,
            config.hidden,
            forget_bias=config.forget_bias,
            seed=config.seed,
        ).to(config.device)
        self.optimiser = self._new_optimiser()
        self.selection.keep(self.network, None)
        self._scale = RewardScale(np.zeros(self._copies))
        self.collector = self._enter(0)

    @property
    def steps(self) -> int:
        """Environment steps done, over all workers."""
        return self.updates * self.config.steps_per_update * self.config.environments

    @property
    def _left(self) -> float:
        """Share of the run that is still to come, never 0."""
        return max(1.0 - self.steps / self.config.total_steps, 1e-3)

    def _enter(self, number: int) -> Collector:
        """Build the environments of a stage of the task, and bring the copies out of phase."""
        config, stage = self.config, self.task.stages[number]
        self._stage = number
        worker = config.seed * config.workers + self._crew.rank + 1
        plan = Plan(
            heads=config.heads(stage.config),
            batch=self._copies,
            masked=config.masked,
            first_seed=TRAINING_SEED + SEEDS_PER_RUN * worker + number * SEEDS_PER_RUN // 10,
            weights=stage.probabilities,
            jobs=stage.jobs,
            progress_reward=config.progress_reward + self.task.progress_reward,
            time_price=self.task.step_price(config.time_price_per_minute, stage.config),
            scales=stage.scales,
        )
        worlds = config.worlds(self._make_worlds, stage.config, stage.traces, plan.batch)
        collector = Collector(worlds, self.network, plan, self._rng)
        collector.advance(config.warm_steps)
        return collector

    def update(self) -> dict[str, float]:
        """Collect experience and learn from it; return the figures of this update by name."""
        config = self.config
        stage = self.task.stage_at(self.steps / config.total_steps)
        if stage != self._stage:
            self.collector, self._scale = self._enter(stage), RewardScale(np.zeros(self._copies))
        rate = config.learning_rate * config.collapse_rate**self.selection.restarts
        rate *= self._left if config.anneal_rate else 1.0
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        made, ended = self.collector.collect(config.steps_per_update)
        figures = {"rate/learning_rate": rate} | self._learn(made)
        self.updates += 1
        figures["policy/most_frequent_action"] = self._most_frequent_action(made)
        if ended.costs:
            figures |= {"episodes/cost": float(np.mean(ended.costs)), "episodes/steps": float(np.mean(ended.steps))}
        return figures

    def _learn(self, made: Experience) -> dict[str, float]:
        """Scale the rewards, estimate the advantages, and descend the loss in epochs of minibatches."""
        config, left = self.config, self._left
        rewards = made.rewards
        if config.scale_rewards:
            self._scale.add(made.rewards, made.dones, config.gamma, self._crew)
            rewards = rewards / self._scale.deviation
        gained = advantages(made, rewards.astype(np.float32), config.gamma, config.gae_lambda)
        whole = to_device(made, torch.device(config.device))
        whole["advantages"] = torch.from_numpy(gained).to(config.device)
        whole["returns"] = whole["advantages"] + whole["values"]
        clip = config.clip * (left if config.anneal_clip else 1.0)
        weighted = replace(config, entropy_coefficient=config.entropy_coefficient * left)
        weighted = weighted if config.anneal_entropy else config
        sums, steps = np.zeros(len(FIGURES)), 0
        for chosen in self._minibatches():
            part = {name: tensor[:, chosen] for name, tensor in whole.items()}
            memory = tuple(kept[chosen] for kept in made.memory)
            logits, values = self.network.unroll(part["observations"], part["starts"], memory)
            parts = loss(weighted, clip, part, logits, values)
            figures = self._crew.mean(parts.figures())
            if config.target_kl and figures[KL] > config.target_kl:
                break
            self.optimiser.zero_grad()
            torch.autograd.backward(parts.total)
            self._crew.average_gradients(self.network.parameters())
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.gradient_norm)
            self.optimiser.step()
            sums, steps = sums + figures, steps + 1
        found = dict(zip(FIGURES, (sums / max(steps, 1)).tolist(), strict=True))
        returns = gained + made.values
        unexplained = np.var(gained) / max(float(np.var(returns)), 1e-12)
        return found | {"policy/minibatches": float(steps), "value/explained": float(1.0 - unexplained)}

    def _minibatches(self) -> Iterator[Tensor]:
        """Yield the copies of each minibatch: all of them every epoch, whole in time, in another order."""
        for _ in range(self.config.epochs):
            for chosen in np.split(self._rng.permutation(self._copies), self.config.minibatches):
                yield torch.from_numpy(chosen).to(self.config.device)

    def _most_frequent_action(self, made: Experience) -> float:
        """Return the share of steps with the most frequent action, of the head where that share is least."""
        heads = made.actions.shape[-1]
        most = np.array([min(np.bincount(made.actions[..., k].ravel()).max() for k in range(heads))])
        return float(self._crew.mean(most / made.values.size)[0])

    def judge(self, figures: dict[str, float]) -> tuple[bool, str]:
        """Evaluate on held-out episodes, keep the best weights, and restart from them after a collapse.

        Adds the held-out costs to `figures`; returns whether the weights are the best so far, and a note on a restart.
        """
        best, note = self.selection.judge(self.network, figures, self.steps, self._crew)
        if note:
            self.optimiser = self._new_optimiser()
        return best, note

    def _new_optimiser(self) -> torch.optim.Adam:
        config = self.config
        return torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon)

    def state(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to go on exactly here, as a tree for `trainer.kit.checkpoint`."""
        selection = self.selection
        return {
            "weights": self.network.copied_weights(),
            "optimiser": deepcopy(self.optimiser.state_dict()),
            "best_weights": selection.best_weights,
            "best_cost": selection.best_cost,
            "counts": [self.updates, selection.restarts, self._stage, selection.evaluated_at],
            "scale": asdict(self._scale),
            "collector": self.collector.state(),
            "rank": self._crew.rank,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same configuration."""
        selection = self.selection
        self.updates, selection.restarts, stage, selection.evaluated_at = state["counts"]
        if stage != self._stage:
            self.collector = self._enter(stage)
        self.network.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        selection.best_weights, selection.best_cost = dict(state["best_weights"]), state["best_cost"]
        self._scale = RewardScale(**state["scale"])
        if state["rank"] == self._crew.rank:
            # A worker without a state of its own begins new episodes.
            self.collector.restore(state["collector"])


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a run: the network with its best weights, their held-out cost, and the digest of the last ones."""

    network: PolicyValueNetwork
    best_cost: float | None
    weights_hash: str
    steps: int
    cpu_s: float


def train(
    config: PPOConfig,
    *,
    resume: Checkpoint | None = None,
    on_update: Callable[[Progress], None] | None = None,
    on_phase: Callable[[str], None] = lambda words: None,
    checkpoints: Checkpoints | None = None,
    task: Task | None = None,
    crew: Crew = ALONE,
    make_worlds: MakeWorlds = AutoscalingBatch,
) -> Trained:
    """Train until `total_steps`; call `on_update` after every update, and save a checkpoint at every evaluation.

    on_phase: called with the phases before the first update. The same configuration gives the same weights, and so
    does a run resumed from its last checkpoint (one worker). Runs on one thread; with `workers` in as many processes,
    of which this one leads (`crew` is for the others). Raises OtherConfiguration when `resume` was trained with another
    configuration.
    """
    if config.workers > crew.size:
        share = partial(_as_member, config, resume=resume, task=task, make_worlds=make_worlds)
        lead = partial(share, on_update=on_update, on_phase=on_phase, checkpoints=checkpoints)
        return run_together(config.workers, lead, share)
    torch.set_num_threads(1)
    began, cpu_before = time.monotonic(), time.process_time()
    wall_s = cpu_s = 0.0
    with fast_products():
        on_phase(f"compiling, and playing {config.warm_steps} steps of {config.environments} environments")
        run = Training(config, task=task, crew=crew, make_worlds=make_worlds)
        if resume is not None:
            check_resumable(resume, config.plain(), Path("--resume"))
            run.restore(resume.state)
            wall_s, cpu_s = float(resume.progress["wall_s"]), float(resume.progress["cpu_s"])
        each = config.steps_per_update * config.environments
        on_phase(f"gathering {each:,} steps, and learning from them for the first time")
        while run.steps < config.total_steps:
            figures = run.update()
            evaluated = run.selection.due(run.steps)
            best, note = run.judge(figures) if evaluated else (False, "")
            progress = Progress(
                run.updates,
                run.steps,
                -(-config.total_steps // each) * each,
                wall_s + time.monotonic() - began,
                cpu_s + time.process_time() - cpu_before,
                figures,
                run.selection.best_cost,
                note,
            )
            if on_update is not None:
                on_update(progress)
            if checkpoints is not None and evaluated:
                checkpoints.save(Checkpoint(config.plain(), asdict(progress), run.state()), best=best)
        last = weights_hash(run.network.state_dict())
        run.network.load_state_dict(run.selection.best_weights)
    return Trained(run.network, run.selection.best_cost, last, run.steps, cpu_s + time.process_time() - cpu_before)


def _as_member(config: PPOConfig, crew: Crew, **more: Any) -> Trained:
    return train(config, crew=crew, **more)
