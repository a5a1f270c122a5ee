"""What a learned policy is to beat, and on which episodes: those that are reported, on seeds nothing was chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.episodes import run_many
from trainer.autoscaling.evaluation.defaults import baselines
from trainer.autoscaling.evaluation.suite import World
from trainer.autoscaling.release_mixture import FAMILIES, mixture
from trainer.autoscaling.tasks import task_of

EPISODES = 30
"""Reported episodes: seeds from 0 on (autoscaler specification §11)."""

GOALS = ("best constant fleet", "threshold, tuned", "queue rule, one action", "queue rule, multi")
"""Which of the baselines of an evaluation a run is shown beside."""
_GROUPS: Mapping[str, str] = MappingProxyType(
    {"train-text": "T1", "train-fit": "T2", "coevolution": "T4", "coevolution-rent": "T4"}
)
"""The group of the evaluation suite that a task resembles; T3 for the others."""
RENT_AND_TIME = "coevolution-rent"
_TRAINING_WORLD = ("train-text", "train-fit", "train-rand", "curriculum")


def baselines_of(task: str) -> dict[str, str]:
    """Return the policies that a task is measured against, by what people call them."""
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
    if _GROUPS.get(task) == "T4":
        # Reported at its full cost, whatever was charged in training.
        return Episodes(preset("paper-live"), tuple(coevolution(seed) for seed in seeds), seeds)
    if len(known.selection) == 1:
        traces = known.selection * count
    elif known.families:
        traces = mixture(0, -(-count // len(FAMILIES)), known.world.max_cores).traces[:count]
    else:
        traces = tuple(train_rand(seed) for seed in seeds)
    return Episodes(known.world, traces, seeds)


def baseline_costs(task: str, episodes: Episodes) -> dict[str, float]:
    """Return the mean cost, dollars an episode, of the task's baselines."""
    costs = {}
    for name, text in baselines_of(task).items():
        runs = run_many(text, episodes.world, episodes.traces, episodes.seeds)
        costs[name] = sum(run.cost for run in runs) / len(runs)
    return costs
