"""One training run from its configuration to its model file: resume, train, report, export.

What it is to beat, and on which episodes it is reported, stands first: seeds that nothing was chosen by.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.environments import as_taken, play
from trainer.autoscaling.episodes import run_many, stuck
from trainer.autoscaling.evaluation.contenders import baselines
from trainer.autoscaling.evaluation.suite import World
from trainer.autoscaling.export import PolicyFacts, answer_of, export, layers_of
from trainer.autoscaling.ppo_lstm import Player, PolicyValueNetwork, PPOConfig, TrainingResult, train, worlds_of
from trainer.autoscaling.tasks import FAMILIES, mixture, task_of
from trainer.kit.checkpoint import (
    FACTS_FILE,
    Checkpoint,
    Checkpoints,
    config_hash,
    package_versions,
    read_checkpoint,
    weights_hash,
)
from trainer.kit.files import write_json
from trainer.kit.intervals import mean_interval
from trainer.kit.parallel import Crew, run_together
from trainer.kit.runs import RUN_FILE, checkpoints_of, listeners

EPISODES = 30
"""Reported episodes: seeds from 0 on (autoscaler specification §11)."""

GOALS = ("best constant fleet", "threshold, tuned", "queue rule, one action", "queue rule, multi")
"""Which of the baselines of an evaluation a run is shown beside."""
_GROUPS: Mapping[str, str] = MappingProxyType({"train-text": "T1", "train-fit": "T2", "coevolution-rent": "T4"})
"""The group of the evaluation suite that a task resembles; T3 for the others."""
RENT_AND_TIME = "coevolution-rent"
_TRAINING_WORLD = ("train-text", "train-fit", "train-rand")


def baselines_of(task: str) -> dict[str, str]:
    """Return the policies that a task is measured against, by what people call them."""
    own = task_of(task).rule
    if own:
        return {"queue rule": own, "threshold": "threshold:high=0.75,low=0.75,periods=1"}
    world = World.TRAINING if task in _TRAINING_WORLD else World.LIVE_LIKE
    group = _GROUPS.get(task, "T3")
    known = {contender.label: contender.text(group) for contender in baselines(world)}
    # A fleet that is best for random traces says nothing about other loads and limits.
    named = GOALS[1:] if task_of(task).families else GOALS
    return {label: text for label in named if (text := known.get(label)) is not None}


def marks_of(task: str, costs: Mapping[str, float]) -> dict[str, float]:
    """Return what the held-out figure of a task is shown beside: the baselines' costs, or 1 where it is relative.

    Nothing where it is rent and priced minutes, which is another figure than the cost that is reported.
    """
    if task == RENT_AND_TIME:
        return {}
    return {"queue rule": 1.0} if task_of(task).par else dict(costs)


def held_out_unit(task: str) -> str:
    """Return what the held-out figure of a task is measured in."""
    if task == RENT_AND_TIME:
        return "rent and priced minutes, $ an episode"
    return "cost, times the queue rule's" if task_of(task).par else "cost, $ an episode"


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes in one world: a trace and a boot seed each."""

    world: SimulationConfig
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]


def reported(task: str, count: int = EPISODES) -> Episodes:
    """Return the episodes that a task's results are reported on; BadInput for an unknown task."""
    known = task_of(task)
    seeds = tuple(range(count))
    if known.report:
        return Episodes(known.world, tuple(itertools.islice(itertools.cycle(known.report), count)), seeds)
    if _GROUPS.get(task) == "T4":
        # Reported at its full cost, whatever was charged in training.
        return Episodes(preset("paper-live"), tuple(coevolution(seed) for seed in seeds), seeds)
    if len(known.selection) == 1:
        traces = known.selection * count
    elif known.families:
        traces = mixture(0, -(-count // len(FAMILIES)), known.world.max_cores)[:count]
    else:
        traces = tuple(train_rand(seed) for seed in seeds)
    return Episodes(known.world, traces, seeds)


def baseline_costs(
    task: str, episodes: Episodes, on_stuck: Callable[[str, str], None] = lambda name, why: None
) -> dict[str, float]:
    """Return the mean cost, dollars an episode, of the task's baselines.

    A stuck baseline is left out: on_stuck is called with its name and the reason.
    """
    costs = {}
    for name, text in baselines_of(task).items():
        runs = run_many(text, episodes.world, episodes.traces, episodes.seeds)
        pairs = zip(runs, itertools.cycle(episodes.traces), strict=False)
        why = stuck(text, runs, sum(run.jobs_finished < trace.jobs for run, trace in pairs))
        if why:
            on_stuck(name, why)
        else:
            costs[name] = sum(run.cost for run in runs) / len(runs)
    return costs


Floats = NDArray[np.float32]

_COPIES, _STEPS, _SEED = 64, 600, 2_000_000_000
"""How much is played for the ranges, from which boot seeds: beside those of training, tuning and reports."""


def greedy_costs(network: PolicyValueNetwork, config: PPOConfig, episodes: Episodes) -> list[float]:
    """Return the cost, dollars, of each episode played greedily to its end, however late that is in its world."""
    count = len(episodes.seeds)
    worlds = AutoscalingBatch(
        episodes.world, episodes.traces, count, observation=config.observation, actions=config.action_set
    )
    player = Player(worlds, network, count, config.masked, np.random.default_rng(0))
    seeds, greedy = np.array(episodes.seeds, dtype=np.int64), np.ones(count, dtype=np.bool_)
    costs, _ = play(worlds, player.choose, seeds, np.arange(count), greedy, episodes.world.max_steps)
    return [float(cost) for cost in costs]


def feature_ranges(network: PolicyValueNetwork, config: PPOConfig) -> tuple[Floats, Floats]:
    """Return the lowest and highest value of each feature as training meets them, each of shape (F,).

    Taken from sampled actions of untrained weights, with which training begins, and of the network's, with which it
    ends, in every world of the task.
    """
    untrained = PolicyValueNetwork(network.kind, network.features, network.logits, config.hidden, seed=config.seed)
    seen = [
        _seen(player, config, stage.config, stage.traces)
        for stage in task_of(config.task).stages
        for player in (untrained, network)
    ]
    low = np.min([rows.min(axis=(0, 1)) for rows in seen], axis=0)
    high = np.max([rows.max(axis=(0, 1)) for rows in seen], axis=0)
    return low, high


def _seen(network: PolicyValueNetwork, config: PPOConfig, world: SimulationConfig, traces: tuple[Trace, ...]) -> Floats:
    """Return the observations of sampled episodes, shape (steps, copies, F); what is over begins anew."""
    rng, drawn = np.random.default_rng(config.seed), np.zeros(_COPIES, dtype=np.bool_)
    worlds = worlds_of(config, AutoscalingBatch, world, traces, _COPIES)
    player = Player(worlds, network, _COPIES, config.masked, rng)
    which = np.arange(_COPIES) * len(traces) // _COPIES
    observations = worlds.reset(_SEED + which, which)
    seen = np.empty((_STEPS, _COPIES, worlds.n_features), dtype=np.float32)
    for step in range(_STEPS):
        seen[step] = observations
        observations, _, terminated, truncated = worlds.step(as_taken(player.choose(observations, drawn)))
        over = terminated | truncated
        if over.any():
            which[over] = rng.integers(len(traces), size=int(over.sum()))
            observations = worlds.reset_where(over, _SEED + step + which, which)
            player.actor.forget(over)
    return seen


HELD_OUT = "held_out/greedy"
"""The figure by which the best checkpoint is chosen."""
_OF_A_WORKER = ("collector", "scale", "rank")
_MOST_TRACES_NAMED = 8


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `data` says, go on from the last checkpoint where there is one, and return what stands in `run.json`.

    data: config (JSON data of a PPOConfig), directory, name, goals (cost by baseline on the reported episodes), marks
    (what to show beside the held-out figure), show (bar, lines or silent), episodes (how many are reported). Plain
    data, so that any process can be asked.
    """
    config, directory = PPOConfig(**data["config"]), Path(data["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    trained = run_together(config.workers, partial(_lead, config, data), partial(_follow, config, directory))
    checkpoints = checkpoints_of(directory)
    best, last = checkpoints.best(), checkpoints.last()
    if best is None or last is None:
        raise BadInput("total_steps", config.total_steps, "give enough steps for one evaluation")
    summary = {
        "name": data["name"],
        "config": config.plain(),
        "steps": trained.steps,
        "wall_s": last.progress["wall_s"],
        "cpu_s": last.progress["cpu_s"],
        "weights_hash": trained.weights_hash,
        "selection_cost": trained.best_cost,
        **export_best(config, best, directory, int(data.get("episodes", EPISODES))),
        "goals": dict(data.get("goals", {})),
    }
    write_json(directory / RUN_FILE, summary)
    return summary


def _lead(config: PPOConfig, data: Mapping[str, Any], crew: Crew) -> TrainingResult:
    """Train as the worker that evaluates, saves and reports."""
    checkpoints = checkpoints_of(Path(data["directory"]))
    resume = checkpoints.last()
    with listeners(data, resume, HELD_OUT) as listener:
        more: dict[str, Any] = {"on_update": listener, "on_phase": listener.phase, "checkpoints": checkpoints}
        return train(config, resume=resume, crew=crew, **more)


def _follow(config: PPOConfig, directory: Path, crew: Crew) -> TrainingResult:
    """Train as another worker: its experience is its own, weights and counts are those of the leading one."""
    resume, mine = checkpoints_of(directory).last(), checkpoints_of(directory, crew.rank)
    own = mine.last()
    if resume is not None and own is not None:
        resume = replace(resume, state={**resume.state, **{name: own.state[name] for name in _OF_A_WORKER}})
    return train(config, resume=resume, checkpoints=mine, crew=crew)


def export_checkpoint(checkpoint: Checkpoint, directory: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Write a checkpoint's best policy as a model file, and return its name and its cost on the reported episodes.

    BadInput for a checkpoint with settings that this version does not have.
    """
    known = {field.name for field in fields(PPOConfig)}
    if unknown := sorted(checkpoint.config.keys() - known):
        raise BadInput("checkpoint", ", ".join(unknown), "settings of another version: train it again")
    return export_best(PPOConfig(**checkpoint.config), checkpoint, directory, episodes)


def export_best(config: PPOConfig, checkpoint: Checkpoint, directory: Path, episodes: int) -> dict[str, Any]:
    """Write the best policy of a run with this configuration; see `export_checkpoint`."""
    network = network_of(config, checkpoint.state["best_weights"])
    costs = greedy_costs(network, config, reported(config.task, episodes))
    interval = mean_interval(costs)
    result = {"episodes": len(costs), "cost": interval.mean, "low": interval.low, "high": interval.high}
    learned = replace(
        learned_of(config),
        training={
            "config": dict(checkpoint.config),
            "config_hash": config_hash(checkpoint.config),
            "seed": config.seed,
            "steps": checkpoint.progress["steps"],
            "traces": traces_of(config.task),
            "weights_hash": weights_hash(network.state_dict()),
            "packages": package_versions(),
        },
        evaluation={"task": config.task, "selection_cost": checkpoint.progress["best_cost"], **result},
    )
    path = export(
        layers_of(network),
        answer_of(network),
        learned,
        task_of(config.task).selection[:2],
        directory,
        seed=config.seed,
        ranges=feature_ranges(network, config),
    )
    return {"model": path.name, "report": result}


def checkpoint_of(path: Path) -> Checkpoint:
    """Return the checkpoint that a directory is, or the best one of the run that it holds; BadInput otherwise."""
    if (path / FACTS_FILE).exists():
        return read_checkpoint(path)
    for checkpoints in (checkpoints_of(path), Checkpoints(path)):
        best = checkpoints.best()
        if best is not None:
            return best
    raise BadInput("checkpoint", str(path), "give the directory of a checkpoint, or that of a run")


def network_of(config: PPOConfig, weights: Mapping[str, Tensor]) -> PolicyValueNetwork:
    """Return a network with these weights."""
    learned = learned_of(config)
    network = PolicyValueNetwork(config.network, len(learned.features), len(learned.actions), config.hidden)
    network.load_state_dict(dict(weights))
    return network


def learned_of(config: PPOConfig) -> PolicyFacts:
    """Return what a configuration's policy sees and does, with no record of its training yet."""
    return PolicyFacts(
        observation=config.observation,
        action_set=config.action_set,
        masked=config.masked,
        network=config.network,
        world=task_of(config.task).world,
    )


def traces_of(task: str) -> dict[str, Any]:
    """Return which traces a task trains on: names and digests of few, number and common digest of many."""
    traces = [trace for stage in task_of(task).stages for trace in stage.traces]
    together = hashlib.sha256(" ".join(trace.digest for trace in traces).encode()).hexdigest()
    named = {trace.name: trace.digest for trace in traces} if len(traces) <= _MOST_TRACES_NAMED else {}
    return {"count": len(traces), "digest": together, **({"digests": named} if named else {})}
