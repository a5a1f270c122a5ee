"""Training speed of the recurrent PPO and of sb3-contrib's RecurrentPPO: steps per CPU-second, and time to a quality.

Both run on the same compiled simulator with the same sizes and coefficients; compiling is not counted; one thread each.

steps_per_cpu_s, sb3_steps_per_cpu_s: environment steps per second of a processor, rollout and update, without action
masks (the peer has none) and without an early end of the epochs, so that both learn from the same number of samples,
epochs and minibatches. ratio_vs_sb3: the former by the latter; medians of --runs updates that alternate.
products_share: share of our update that its matrix products take alone, in 32 bits and at their sizes; the rest is the
most that can be saved while both learn from the same. ratio_limit: the ratio of speed if nothing else took time.

branching_cpu_s, ppo_cpu_s, sb3_cpu_s: seconds of a processor until a policy of task train-fit (T2) costs less than
--quality. It is judged after every round or update on the same 16 boots, which no training sees; judging is not
counted. Exact branches as `trainer.autoscaling.scorer` takes them have BRANCH_STEPS steps, LESSONS episodes a round,
and three voters that are fitted again after each round, and begin at the queue rule tuned for this trace. This
project's PPO masks actions. Both kinds of PPO begin from nothing, and must cost less both by most probable and by
drawn actions: a fleet that is left alone costs 7.39, and many a policy leaves it alone by chance after its first
update. Branching and this project's PPO are stopped after --limit seconds, the peer after --peer-limit.
reached_branching, reached_ppo, reached_sb3: shares of the seeds that came there. ppo_by_branching, sb3_by_branching:
medians by that of branching. time_to_quality_ratio: sb3_cpu_s by ppo_cpu_s, null where ours did not come there.
time_to_quality_is_bound: whether the peer was stopped, so that the ratio is a lower bound.

Figures of the peer are null where it is missing. The default quality is below the cost of the tuned queue rule,
with which branching begins: 5.89 dollars. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import Target, arguments, progress, report
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.branching import NO_WEIGHTS, BranchedEpisodes
from trainer.autoscaling.fast_lstm import STEPS_PER_PRODUCT, fast_products
from trainer.autoscaling.lessons import Lesson
from trainer.autoscaling.ppo_lstm import PPOConfig, Training, worlds_of
from trainer.autoscaling.ppo_runs import configuration
from trainer.autoscaling.scorer import Recipe, Samples, ensemble_of, fit_seed, join, play_lessons
from trainer.autoscaling.tasks import SELECTION_SEED, TRAINING_SEED, task_of
from trainer.kit.ppo import RewardScale

TASK = "train-fit"
RULE = RuleSetting(horizon_s=150.0, idle_s=0.0)
JUDGED, LESSONS, BRANCH_STEPS = 16, 30, 100
RECIPE = Recipe(networks=3, epochs=20.0, branch_steps=BRANCH_STEPS)
INSTALL = "pip install --no-deps stable-baselines3 sb3-contrib"


def branching(quality: float, seed: int, most_s: float) -> tuple[float, bool]:
    """Return seconds of a processor until branching is below `quality`, and whether it came there."""
    stage = task_of(TASK).stages[0]
    trace = stage.traces[0]
    judged = BranchedEpisodes(stage.config, trace, RULE)
    # The first lesson compiles.
    play_lessons([Lesson(stage.config, trace, RULE, TRAINING_SEED - 1)], RECIPE, NO_WEIGHTS, 0.0)
    parts: list[Samples] = []
    weights, spent_s, played = NO_WEIGHTS, 0.0, TRAINING_SEED + 100_000 * seed
    while spent_s < most_s:
        before_s = time.process_time()
        lessons = [Lesson(stage.config, trace, RULE, played + k) for k in range(LESSONS)]
        parts.append(play_lessons(lessons, RECIPE, weights, RECIPE.explore[0 if weights is NO_WEIGHTS else -1]))
        played += LESSONS
        samples = join(parts)
        weights = ensemble_of([fit_seed(samples, RECIPE, 100 * seed + k, None) for k in range(RECIPE.networks)])
        spent_s += time.process_time() - before_s
        costs = [
            judged.play(SELECTION_SEED + k, weights, margin=1.0, idle_limit_min=RECIPE.idle_limit_min).cost
            for k in range(JUDGED)
        ]
        if float(np.mean(costs)) < quality:
            return spent_s, True
    return spent_s, False


def settings(seed: int) -> PPOConfig:
    """Return what both kinds of PPO run: the default, at a constant rate, as nobody knows the end."""
    return configuration(task=TASK, seed=seed, anneal_rate=False, total_steps=10**9, selection_episodes=JUDGED)


def throughput(runs: int, peer_there: bool) -> dict[str, float | None]:
    """Return the figures of speed: one update of each in turn, `runs` times after one that compiles."""
    config = replace(settings(seed=0), masked=False, target_kl=0.0)
    steps = config.environments * config.steps_per_update
    with fast_products():
        training = Training(config)
    sides: list[Callable[[], float]] = [lambda: timed_update(training)]
    if peer_there:
        sides.append(Peer(config).update)
    for update in sides:
        update()
    seconds = [[update() for update in sides] for _ in range(runs)]
    own, *rest = (statistics.median(column) for column in zip(*seconds, strict=True))
    progress(f"updates, seconds of a processor: {seconds}")
    products_s = time_of_products(config, _worlds(config, 1).n_features)
    return {
        "steps_per_cpu_s": steps / own,
        "sb3_steps_per_cpu_s": steps / rest[0] if rest else None,
        "ratio_vs_sb3": rest[0] / own if rest else None,
        "products_share": products_s / own,
        "ratio_limit": rest[0] / products_s if rest else None,
    }


def time_of_products(config: PPOConfig, features: int) -> float:
    """Return the processor seconds of an update's matrix products: acting, output, gradients of memory and weights."""
    rows, inputs, gates = config.environments // config.minibatches, config.hidden + features + 1, 4 * config.hidden
    learned = config.epochs * config.minibatches * config.steps_per_update
    together = min(STEPS_PER_PRODUCT, config.steps_per_update)
    spent_s = 0.0
    for sizes, count in (
        ((config.environments, inputs, gates), config.steps_per_update),
        ((rows, inputs, gates), learned),
        ((rows, gates, config.hidden), learned),
        ((inputs, rows * together, gates), learned // together),
    ):
        left, right, product = (torch.rand(sizes[a], sizes[b]) for a, b in ((0, 1), (1, 2), (0, 2)))
        with fast_products():
            torch.mm(left, right, out=product)
            before_s = time.process_time()
            for _ in range(count):
                torch.mm(left, right, out=product)
            spent_s += time.process_time() - before_s
    return spent_s


def timed_update(training: Training) -> float:
    """Gather and learn once; return the processor seconds it took."""
    with fast_products():
        before_s = time.process_time()
        training.update()
        return time.process_time() - before_s


def ours(quality: float, seed: int, most_s: float) -> tuple[float, bool]:
    """Return the same of this project's PPO."""
    with fast_products():
        training, spent_s = Training(settings(seed)), 0.0
        while spent_s < most_s:
            spent_s += timed_update(training)
            found = training.evaluate()
            if max(found["held_out/greedy"], found["held_out/sampled"]) < quality:
                return spent_s, True
    return spent_s, False


def peer(quality: float, seed: int, most_s: float) -> tuple[float, bool]:
    """Return the same of sb3-contrib's RecurrentPPO."""
    model, spent_s = Peer(settings(seed)), 0.0
    while spent_s < most_s:
        spent_s += model.update()
        if max(model.held_out_cost(greedy=greedy) for greedy in (True, False)) < quality:
            return spent_s, True
    return spent_s, False


def _worlds(config: PPOConfig, copies: int) -> AutoscalingBatch:
    stage = task_of(config.task).stages[0]
    return worlds_of(config, AutoscalingBatch, stage.config, stage.traces, copies)


def _adapter(config: PPOConfig, worlds: AutoscalingBatch) -> Any:
    """Return the batch as the kind of environment that the peer takes."""
    from gymnasium import spaces

    # Nothing here is typed by the peer, which may be missing.
    vec_env: Any = importlib.import_module("stable_baselines3.common.vec_env").VecEnv
    copies = config.environments

    class Batch(vec_env):  # type: ignore[misc]
        """`copies` worlds; those that end begin again at once, with the next seeds; out of phase from the start."""

        def __init__(self) -> None:
            self.render_mode = None
            box = spaces.Box(0.0, 10.0, (worlds.n_features,), np.float32)
            super().__init__(copies, box, spaces.Discrete(worlds.n_actions))
            self._seeds_used = np.arange(copies, dtype=np.int64) + TRAINING_SEED
            self._traces = np.zeros(copies, dtype=np.int64)
            self._infos: list[dict[str, Any]] = [{} for _ in range(copies)]
            self._scale = RewardScale(np.zeros(copies))

        def reset(self) -> NDArray[np.float32]:
            worlds.reset(self._seeds_used, self._traces)
            rng = np.random.default_rng(config.seed)
            for t in range(config.warm_steps):
                due = np.arange(copies) * config.warm_steps // copies == t
                worlds.reset_where(due, self._seeds_used, self._traces)
                observations = worlds.step(rng.integers(0, worlds.n_actions, copies))[0]
            return observations.copy()

        def step_async(self, actions: NDArray[np.int64]) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated = worlds.step(self._actions)
            done = terminated | truncated
            if config.scale_rewards:
                self._scale.add(rewards[None], done[None].astype(np.float32), config.gamma)
                rewards = rewards / self._scale.deviation
            if done.any():
                self._seeds_used[done] += copies
                observations = worlds.reset_where(done, self._seeds_used, self._traces)
            return observations.copy(), rewards.astype(np.float32), done, self._infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * copies

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return []

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * copies

    return Batch()


class Peer:
    """RecurrentPPO with this configuration's sizes and coefficients: one shared LSTM and no layers besides."""

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer: Any = importlib.import_module("sb3_contrib")
            self._model = peer.RecurrentPPO(
                "MlpLstmPolicy",
                _adapter(config, _worlds(config, config.environments)),
                n_steps=config.steps_per_update,
                batch_size=config.environments * config.steps_per_update // config.minibatches,
                n_epochs=config.epochs,
                learning_rate=config.learning_rate,
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
                clip_range=config.clip,
                clip_range_vf=config.value_clip or None,
                ent_coef=config.entropy_coefficient,
                vf_coef=config.value_coefficient,
                max_grad_norm=config.gradient_norm,
                target_kl=config.target_kl or None,
                normalize_advantage=config.normalise_advantages,
                seed=config.seed,
                device="cpu",
                policy_kwargs={
                    "lstm_hidden_size": config.hidden,
                    "shared_lstm": True,
                    "enable_critic_lstm": False,
                    "net_arch": [],
                },
            )
            _, self._callback = self._model._setup_learn(10**12)
        self._judged = _worlds(config, config.selection_episodes)

    def update(self) -> float:
        """Gather and learn once; return the processor seconds it took."""
        # Ours counts tiny numbers as zero, which spares time: so does the peer.
        torch.set_flush_denormal(True)
        model, before_s = self._model, time.process_time()
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        model.train()
        return time.process_time() - before_s

    def held_out_cost(self, *, greedy: bool) -> float:
        """Return the mean cost of the held-out episodes, dollars, by most probable or by drawn actions."""
        copies = self.config.selection_episodes
        observations = self._judged.reset(SELECTION_SEED + np.arange(copies), np.zeros(copies, dtype=np.int64))
        state: Any = None
        starts, running = np.ones(copies, dtype=np.bool_), np.ones(copies, dtype=np.bool_)
        for _ in range(self.config.most_episode_steps):
            actions, state = self._model.predict(observations, state, starts, deterministic=greedy)
            observations, _, terminated, truncated = self._judged.step(actions.astype(np.int64))
            starts[:] = False
            running &= ~(terminated | truncated)
            if not running.any():
                break
        return float((self._judged.rent + self._judged.penalty).mean())


Climb = Callable[[float, int, float], tuple[float, bool]]


def time_to_quality(
    quality: float, seeds: int, limit_s: float, peer_limit_s: float, peer_there: bool
) -> dict[str, float | None]:
    """Return the figures of time to a quality over some seeds; those of the peer are None where it is missing."""
    climbs: dict[str, tuple[Climb, float]] = {"branching": (branching, limit_s), "ppo": (ours, limit_s)}
    if peer_there:
        climbs["sb3"] = peer, peer_limit_s
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in climbs}
    for seed in range(seeds):
        for name, (climb, most_s) in climbs.items():
            spent_s, there = climb(quality, seed, most_s)
            found[name].append((spent_s, there))
            progress(f"seed {seed}, {name}: {spent_s:.1f} s{'' if there else ', stopped before'}")
    medians = {name: statistics.median(spent_s for spent_s, _ in runs) for name, runs in found.items()}
    reached = {name: sum(there for _, there in runs) / len(runs) for name, runs in found.items()}
    compared = peer_there and reached["ppo"] == 1.0
    return {
        **{f"{name}_cpu_s": medians.get(name) for name in ("branching", "ppo", "sb3")},
        **{f"reached_{name}": reached.get(name) for name in ("branching", "ppo", "sb3")},
        "ppo_by_branching": medians["ppo"] / medians["branching"],
        "sb3_by_branching": medians["sb3"] / medians["branching"] if peer_there else None,
        "time_to_quality_ratio": medians["sb3"] / medians["ppo"] if compared else None,
        "time_to_quality_is_bound": reached["sb3"] < 1.0 if compared else None,
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = arguments(__doc__ or "", runs=7)
    parser.add_argument("--quality", type=float, default=5.84, help="dollars an episode (default 5.84)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each (default 1)")
    parser.add_argument("--limit", type=float, default=300.0, help="most CPU-seconds of one of ours (default 300)")
    parser.add_argument(
        "--peer-limit", type=float, default=75.0, help="most CPU-seconds of one of the peer (default 75)"
    )
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    there = importlib.util.find_spec("sb3_contrib") is not None
    if not there:
        progress(f"sb3-contrib is missing, its figures are null; install it: {INSTALL}")
    figures = throughput(asked.runs, there)
    figures |= time_to_quality(asked.quality, asked.seeds, asked.limit, asked.peer_limit, there)
    return report(
        "ppo_throughput",
        figures,
        as_json=asked.json,
        packages=("torch", "numba", "numpy", *(("stable_baselines3", "sb3_contrib") if there else ())),
        targets=(Target("ratio_vs_sb3", 4.0, at_most=False), Target("sb3_by_branching", 5.0, at_most=False)),
        notes={"quality": asked.quality, "seeds": asked.seeds, "peer_limit_s": asked.peer_limit},
    )


if __name__ == "__main__":
    sys.exit(main())
