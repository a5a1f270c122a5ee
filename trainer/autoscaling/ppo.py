"""Proximal policy optimisation of a recurrent policy on the simulated autoscaler (autoscaler specification §10).

Read top to bottom: the loss, one update, the loop. What may be set is in `trainer.autoscaling.configuration`, networks
are in `trainer.autoscaling.networks`, experience comes from `trainer.autoscaling.rollout`, advantages from
`trainer.autoscaling.returns`, the worlds from `trainer.autoscaling.tasks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig
from trainer.autoscaling.configuration import PPOConfig, configuration
from trainer.autoscaling.dagger import follow
from trainer.autoscaling.foresight import Foresight
from trainer.autoscaling.held_out import HeldOut, Judge
from trainer.autoscaling.imitation import imitate
from trainer.autoscaling.networks import Memory, PolicyValueNetwork
from trainer.autoscaling.recurrence import fast_products
from trainer.autoscaling.returns import advantages
from trainer.autoscaling.reward_scale import RewardScale
from trainer.autoscaling.rollout import NEVER, Collector, Doubles, Ended, Experience, Plan, Worlds, to_device
from trainer.autoscaling.tasks import TRAINING_SEED, MakeWorlds, Task, kernel_worlds, task_of
from trainer.kit.checkpoint import Checkpoint, Checkpoints, check_resumable, weights_hash
from trainer.kit.parallel import ALONE, Crew, run_together
from trainer.kit.progress import Progress

__all__ = ["PPOConfig", "Trained", "Training", "configuration", "train"]

SEEDS_PER_RUN = 10_000_000
"""Room for the seeds of the episodes of one worker of one run."""
CRITIC_LAST = 0.2
"""Share of its first rate that a critic with foresight learns at in the end."""


KL = 3
"""Place of the Kullback-Leibler divergence among the figures of a loss."""


class LossParts(NamedTuple):
    """The loss of a minibatch, and what it is made of."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor

    def figures(self) -> Doubles:
        """Return the parts (policy, value, entropy, kl, clipped) as numbers."""
        return torch.stack(self[1:]).detach().double().cpu().numpy()


def loss(config: PPOConfig, clip: float, part: Mapping[str, Tensor], logits: Tensor, values: Tensor) -> LossParts:
    """Return the clipped surrogate, the clipped value loss and the entropy of a minibatch.

    part: actions [T, M, heads], masks [T, M, heads, C], log_probs, values, advantages, returns [T, M]. logits
    [T, M, heads x C] and values [T, M] are the network's now. The log-probability of several heads is their sum.
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
    return LossParts(total, policy, value, entropy, kl, clipped)


class Training:
    """One run: network, optimiser, worlds and all that changes while it learns. `update` is one turn of the loop."""

    def __init__(
        self,
        config: PPOConfig,
        *,
        task: Task | None = None,
        resuming: bool = False,
        crew: Crew = ALONE,
        make_worlds: MakeWorlds = kernel_worlds,
    ) -> None:
        """task: one of your own, else the one that the configuration names. resuming: `restore` follows."""
        self.config, self.task = config, task or task_of(config.task)
        self._crew, self._make_worlds = crew, make_worlds
        self._heads = len(self.task.world.types) if config.action_set == "act-multi" else 1
        self._copies = config.environments // crew.size
        self._rng = np.random.default_rng([config.seed, crew.rank])
        self.updates = self.restarts = self._at_stage = 0
        self._judge = Judge(
            self._worlds(self.task.world, self.task.selection, 2 * config.selection_episodes),
            traces=len(self.task.selection),
            episodes=config.selection_episodes,
            heads=self._heads,
            masked=config.masked,
            most_steps=config.most_episode_steps,
            par=self.task.par,
            families=self.task.families,
            step_price=self._step_price(self.task.world),
        )
        self.network = PolicyValueNetwork(
            config.network,
            *self._judge.sizes,
            config.hidden,
            forget_bias=config.forget_bias,
            gains=config.gains(self._judge.sizes[0]),
            seed=config.seed,
        ).to(config.device)
        if config.imitate and not resuming:
            teach = follow if config.imitation_rounds else imitate
            teach(config, self.task, self.network)
        self.optimiser = self._fresh_optimiser()
        self._critic = Foresight(self._judge.sizes[0], config.seed) if config.foresight else None
        self._scale = RewardScale(np.zeros(self._copies))
        self._collector = self._enter(0)
        self.best_cost: float | None = None
        self.best_weights = self._weights()
        self._evaluated_at = 0

    @property
    def steps(self) -> int:
        """Environment steps done, over all workers."""
        return self.updates * self.config.steps_per_update * self.config.environments

    @property
    def _left(self) -> float:
        """Share of the run that is still to come, never 0."""
        return max(1.0 - self.steps / self.config.total_steps, 1e-3)

    def _step_price(self, world: SimulationConfig) -> float:
        """Return what a step costs, dollars, for run time having a price."""
        return (self.config.time_price_per_minute + self.task.time_price_per_minute) * world.step_s / 60.0

    def _worlds(self, world: SimulationConfig, traces: tuple[Trace, ...], copies: int) -> Worlds:
        world = replace(world, max_steps=min(world.max_steps, self.config.most_episode_steps))
        return self._make_worlds(
            world, traces, copies, observation=self.config.observation, actions=self.config.action_set
        )

    def _enter(self, number: int) -> Collector:
        """Build the worlds of a stage and bring the copies out of phase."""
        config, stage = self.config, self.task.stages[number]
        self._at_stage = number
        worker = config.seed * config.workers + self._crew.rank + 1
        plan = Plan(
            heads=self._heads,
            batch=self._copies,
            masked=config.masked,
            first_seed=TRAINING_SEED + SEEDS_PER_RUN * worker + number * SEEDS_PER_RUN // 10,
            weights=stage.probabilities,
            jobs=stage.jobs,
            progress_reward=config.progress_reward + self.task.progress_reward,
            time_price=self._step_price(stage.config),
            scales=stage.scales,
        )
        if self._critic is not None:
            self._critic.enter(stage.config, stage.traces, stage.scales, config.most_episode_steps)
        worlds = self._worlds(stage.config, stage.traces, self._copies)
        collector = Collector(worlds, self.network, plan, self._rng, self._critic)
        collector.advance(config.warm_steps)
        return collector

    def update(self) -> dict[str, float]:
        """Gather experience and learn from it; return the figures of this update by name."""
        config = self.config
        number = self.task.stage_at(self.steps / config.total_steps)
        if number != self._at_stage:
            self._collector, self._scale = self._enter(number), RewardScale(np.zeros(self._copies))
        rate = config.learning_rate * config.collapse_rate**self.restarts * (self._left if config.anneal_rate else 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        made, ended = self.gather()
        figures = {"rate/learning_rate": rate} | self._learn(made)
        self.updates += 1
        most = np.array([min(np.bincount(made.actions[..., k].ravel()).max() for k in range(self._heads))])
        figures["policy/most_frequent_action"] = float(self._crew.mean(most / made.values.size)[0])
        if ended.costs:
            figures |= {"episodes/cost": float(np.mean(ended.costs)), "episodes/steps": float(np.mean(ended.steps))}
        return figures

    def _learn(self, made: Experience) -> dict[str, float]:
        config, device = self.config, torch.device(self.config.device)
        rewards = made.rewards
        if config.scale_rewards:
            self._scale.take(made.rewards, made.dones, config.gamma, self._crew)
            rewards = rewards / self._scale.deviation
        gained = advantages(made, rewards.astype(np.float32), config.gamma, config.gae_lambda)
        whole = to_device(made, device)
        whole["advantages"] = torch.from_numpy(gained).to(device)
        whole["returns"] = whole["advantages"] + whole["values"]
        clip = config.clip * (self._left if config.anneal_clip else 1.0)
        frozen = self.updates < config.value_updates
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(not frozen or name.startswith("value."))
        sums, parts = np.zeros(5), 0
        for chosen in () if frozen and self._critic else self._minibatches():
            told = self._descend(
                {name: tensor[:, chosen] for name, tensor in whole.items()},
                tuple(kept[chosen] for kept in made.memory),
                clip,
                stoppable=not frozen,
            )
            if told is None:
                break
            sums, parts = sums + told, parts + 1
        unexplained = np.var(gained) / max(float(np.var(gained + made.values)), 1e-12)
        names = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clipped")
        figures = dict(zip(names, (sums / max(parts, 1)).tolist(), strict=True))
        if self._critic is not None and made.told is not None:
            rate = config.critic_rate * (max(self._left, CRITIC_LAST) if config.anneal_rate else 1.0)
            returns, epochs = gained + made.values, config.critic_epochs
            figures["loss/critic"] = self._critic.learn(made.observations, made.told, returns, epochs, rate, self._rng)
        return figures | {"policy/minibatches": float(parts), "value/explained": float(1.0 - unexplained)}

    def _minibatches(self) -> Iterator[Tensor]:
        """Yield the copies of each minibatch: every epoch all of them, in another order."""
        for _ in range(self.config.epochs):
            for chosen in np.split(self._rng.permutation(self._copies), self.config.minibatches):
                yield torch.from_numpy(chosen).to(self.config.device)

    def _descend(self, part: Mapping[str, Tensor], memory: Memory, clip: float, *, stoppable: bool) -> Doubles | None:
        """Take one step down the loss of a minibatch; None when the policy has moved far enough."""
        config = self.config
        if config.anneal_entropy:
            config = replace(config, entropy_coefficient=config.entropy_coefficient * self._left)
        seen, starts = part["observations"], part["starts"]
        logits, values = self.network.unroll(seen, starts, memory, value_apart=config.foresight)
        parted = loss(config, clip, part, logits, values)
        told = self._crew.mean(parted.figures())
        if stoppable and config.target_kl and told[KL] > config.target_kl:
            return None
        self.optimiser.zero_grad()
        torch.autograd.backward(parted.total)
        self._crew.average_gradients(self.network.parameters())
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.gradient_norm)
        self.optimiser.step()
        return told

    def gather(self) -> tuple[Experience, Ended]:
        """Gather the experience of one update."""
        return self._collector.collect(self.config.steps_per_update)

    def held_out(self) -> HeldOut:
        """Play the held-out episodes with the present weights."""
        return self._judge.play(self.network)

    def judge(self, figures: dict[str, float]) -> tuple[bool, str]:
        """Evaluate, keep the best weights, start over from them after a collapse.

        Adds what was found to `figures`; returns whether these are the best weights so far, and a note.
        """
        config = self.config
        self._evaluated_at = self.steps
        costs = astuple(self.held_out()) if self._crew.leads else (0.0, 0.0, 0.0)
        found = HeldOut(*self._crew.as_leader(costs))
        figures |= {f"held_out/{name}": value for name, value in asdict(found).items()}
        if self.best_cost is None or found.greedy < self.best_cost:
            self.best_cost, self.best_weights = found.greedy, self._weights()
            return True, ""
        stuck = figures["policy/most_frequent_action"] > config.collapse_share
        stuck |= figures["policy/entropy"] < config.collapse_entropy
        lost = min(found.greedy, found.sampled) > config.collapse_lost * self.best_cost
        if not lost and not (stuck and found.greedy > config.collapse_worse * self.best_cost):
            return False, ""
        self.restarts += 1
        self.network.load_state_dict(self.best_weights)
        self.optimiser = self._fresh_optimiser()
        slower = f"rate x {config.collapse_rate**self.restarts:g}"
        return False, f"collapsed at cost {found.greedy:.2f}: back to the weights of {self.best_cost:.2f}, {slower}"

    @property
    def due(self) -> bool:
        """Whether held-out episodes are to be played now."""
        over = self.steps >= self.config.total_steps
        return over or self.steps - self._evaluated_at >= self.config.evaluate_every_steps

    def _fresh_optimiser(self) -> torch.optim.Adam:
        config = self.config
        return torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon)

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to go on exactly here, as a tree for `trainer.kit.checkpoint`."""
        return {
            "weights": self._weights(),
            "optimiser": deepcopy(self.optimiser.state_dict()),
            "best_weights": self.best_weights,
            "best_cost": self.best_cost,
            "counts": [self.updates, self.restarts, self._at_stage, self._evaluated_at],
            "scale": asdict(self._scale),
            "critic": None if self._critic is None else self._critic.state(),
            "collector": self._collector.state(),
            "rank": self._crew.rank,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same configuration."""
        self.updates, self.restarts, stage, self._evaluated_at = state["counts"]
        if stage != self._at_stage:
            self._collector = self._enter(stage)
        self.network.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(deepcopy(state["optimiser"]))
        self.best_weights, self.best_cost = dict(state["best_weights"]), state["best_cost"]
        self._scale = RewardScale(**state["scale"])
        if self._critic is not None:
            self._critic.restore(state["critic"])
        if state["rank"] == self._crew.rank:
            # A worker without a state of its own begins new episodes.
            self._collector.restore(state["collector"])


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run came to: the network with its best weights, their held-out cost, and the last weights' digest."""

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
    checkpoints: Checkpoints | None = None,
    task: Task | None = None,
    crew: Crew = ALONE,
    make_worlds: MakeWorlds = kernel_worlds,
) -> Trained:
    """Train until `total_steps`, telling of every update; save at every evaluation.

    The same configuration gives the same weights, and so does a run resumed from its last checkpoint (one worker).
    Runs on one thread; with `workers` in as many processes, this one leading (`crew` is for the others). Raises
    OtherConfiguration when `resume` was trained with another configuration.
    """
    if config.workers > crew.size:
        share = partial(_as_member, config, resume=resume, task=task, make_worlds=make_worlds)
        return run_together(config.workers, partial(share, on_update=on_update, checkpoints=checkpoints), share)
    torch.set_num_threads(1)
    began, cpu_before = time.monotonic(), time.process_time()
    wall_s = cpu_s = 0.0
    with fast_products():
        run = Training(config, task=task, resuming=resume is not None, crew=crew, make_worlds=make_worlds)
        if resume is not None:
            check_resumable(resume, config.plain(), Path("--resume"))
            run.restore(resume.state)
            wall_s, cpu_s = float(resume.progress["wall_s"]), float(resume.progress["cpu_s"])
        while run.steps < config.total_steps:
            figures = run.update()
            best, note = run.judge(figures) if run.due else (False, "")
            progress = Progress(
                run.updates,
                run.steps,
                config.total_steps,
                wall_s + time.monotonic() - began,
                cpu_s + time.process_time() - cpu_before,
                figures,
                run.best_cost,
                note,
            )
            if on_update is not None:
                on_update(progress)
            if checkpoints is not None and "held_out/greedy" in figures:
                checkpoints.save(Checkpoint(config.plain(), asdict(progress), run.state()), best=best)
        last = weights_hash(run.network.state_dict())
        run.network.load_state_dict(run.best_weights)
    return Trained(run.network, run.best_cost, last, run.steps, cpu_s + time.process_time() - cpu_before)


def _as_member(config: PPOConfig, crew: Crew, **more: Any) -> Trained:
    return train(config, crew=crew, **more)
