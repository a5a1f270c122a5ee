"""What a learned policy is to beat, and on which episodes: those that are reported, on seeds nothing was chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from domain.workload import Trace
from simulator.reference import SimulationConfig
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.episodes import run_many
from trainer.tasks import task_of

EPISODES = 30
"""Reported episodes: seeds from 0 on (autoscaler specification §11)."""

_ANYWHERE: Mapping[str, str] = MappingProxyType(
    {
        "threshold": "threshold",
        "queue rule, one VM a minute": "queue-rule:multi=false",
        "queue rule": "queue-rule:multi=true",
    }
)
BASELINES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "train-text": MappingProxyType(
            {
                "constant fleet": "constant:1,0,7",
                "threshold": "threshold",
                "queue rule, one VM a minute": "queue-rule:horizon_s=420,idle_s=0,multi=false",
                "queue rule": "queue-rule:horizon_s=700,idle_s=120,multi=true",
            }
        ),
        "train-fit": MappingProxyType(
            {
                "constant fleet": "constant:2,1,0",
                "threshold": "threshold",
                "queue rule, one VM a minute": "queue-rule:horizon_s=210,idle_s=0,multi=false",
                "queue rule": "queue-rule:horizon_s=240,idle_s=0,multi=true",
            }
        ),
    }
)
"""Policies by what people call them, per training task; other tasks have those with their default parameters."""


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
    if task == "coevolution":
        traces = tuple(coevolution(seed) for seed in seeds)
    elif len(known.selection) == 1:
        traces = known.selection * count
    else:
        traces = tuple(train_rand(seed) for seed in seeds)
    return Episodes(known.world, traces, seeds)


def baseline_costs(task: str, episodes: Episodes) -> dict[str, float]:
    """Return the mean cost, dollars an episode, of the task's baselines."""
    costs = {}
    for name, text in BASELINES.get(task, _ANYWHERE).items():
        runs = run_many(text, episodes.world, episodes.traces, episodes.seeds)
        costs[name] = sum(run.cost for run in runs) / len(runs)
    return costs
