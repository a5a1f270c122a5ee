"""One training run from its configuration to its model file: resume, train, report, export.

A run's directory holds `checkpoints/`, `curve.csv`, `tensorboard/`, the model, and at the end `run.json`, which says
what came of it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from trainer.autoscaling.configuration import PPOConfig
from trainer.autoscaling.export import Learned, answer_of, export, layers_of
from trainer.autoscaling.goals import EPISODES, reported
from trainer.autoscaling.networks import PolicyValueNetwork
from trainer.autoscaling.ppo import Trained, train
from trainer.autoscaling.tasks import task_of
from trainer.autoscaling.trained_policy import feature_ranges, greedy_costs
from trainer.kit.checkpoint import (
    FACTS_FILE,
    Checkpoint,
    Checkpoints,
    config_hash,
    package_versions,
    read_checkpoint,
    weights_hash,
    write_json,
)
from trainer.kit.intervals import mean_interval
from trainer.kit.parallel import Crew, run_together
from trainer.kit.progress import BAR, LINES, SILENT, Bar, Curve, Lines, Listener, Listeners, TensorBoard

HELD_OUT = "held_out/greedy"
"""The figure by which the best checkpoint is chosen."""
RUN_FILE, CHECKPOINTS_FOLDER = "run.json", "checkpoints"
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
    trained = run_together(config.workers, partial(_lead, data), partial(_follow, dict(data)))
    checkpoints = Checkpoints(directory / CHECKPOINTS_FOLDER)
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
        **export_checkpoint(best, directory, int(data.get("episodes", EPISODES))),
        "goals": dict(data.get("goals", {})),
    }
    write_json(directory / RUN_FILE, summary)
    return summary


def _lead(data: Mapping[str, Any], crew: Crew) -> Trained:
    """Train as the worker that evaluates, saves and tells."""
    config, directory = PPOConfig(**data["config"]), Path(data["directory"])
    checkpoints = Checkpoints(directory / CHECKPOINTS_FOLDER)
    resume = checkpoints.last()
    with Listeners(_listeners(data, directory, resume)) as told:
        return train(config, resume=resume, on_update=told, checkpoints=checkpoints, crew=crew)


def _follow(data: Mapping[str, Any], crew: Crew) -> Trained:
    """Train as another worker: its experience is its own, weights and counts are those of the leading one."""
    config, directory = PPOConfig(**data["config"]), Path(data["directory"])
    resume = Checkpoints(directory / CHECKPOINTS_FOLDER).last()
    mine = Checkpoints(directory / f"{CHECKPOINTS_FOLDER}-worker-{crew.rank}")
    own = mine.last()
    if resume is not None and own is not None:
        resume = replace(resume, state={**resume.state, **{name: own.state[name] for name in _OF_A_WORKER}})
    return train(config, resume=resume, checkpoints=mine, crew=crew)


def _listeners(data: Mapping[str, Any], directory: Path, resume: Checkpoint | None) -> list[Listener]:
    show, name, marks = data.get("show", SILENT), data["name"], dict(data.get("marks", {}))
    listeners: list[Listener] = [
        Curve(directory, 0 if resume is None else resume.update),
        TensorBoard(directory, None if resume is None else int(resume.progress["steps"])),
    ]
    if show == BAR:
        listeners.append(Bar(name, marks, HELD_OUT))
    elif show == LINES:
        listeners.append(Lines(name, marks, HELD_OUT, _write_line))
    return listeners


def _write_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def export_checkpoint(checkpoint: Checkpoint, directory: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Write a checkpoint's best policy as a model file, and return its name and its cost on the reported episodes."""
    config = PPOConfig(**checkpoint.config)
    network = network_of(checkpoint)
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
    for directory in (path / CHECKPOINTS_FOLDER, path):
        best = Checkpoints(directory).best()
        if best is not None:
            return best
    raise BadInput("checkpoint", str(path), "give the directory of a checkpoint, or that of a run")


def network_of(checkpoint: Checkpoint) -> PolicyValueNetwork:
    """Return a network with a checkpoint's best weights."""
    config, weights = PPOConfig(**checkpoint.config), dict(checkpoint.state["best_weights"])
    learned = learned_of(config)
    sizes = len(learned.features), len(learned.actions)
    network = PolicyValueNetwork(config.network, *sizes, config.hidden, gains=config.gains(sizes[0]))
    network.load_state_dict(weights)
    return network.folded()


def learned_of(config: PPOConfig) -> Learned:
    """Return what a configuration's policy sees and does, with no record of its training yet."""
    return Learned(
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
