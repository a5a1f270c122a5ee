"""What a learned policy is to beat, and on which episodes: those that are reported, on seeds nothing was chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from domain.workload import Trace
from simulator.reference import SimulationConfig
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.episodes import run_many
from trainer.evaluation.defaults import BASELINES
from trainer.tasks import task_of

EPISODES = 30
"""Reported episodes: seeds from 0 on (autoscaler specification §11)."""

_GROUPS: Mapping[str, str] = MappingProxyType({"train-text": "T1", "train-fit": "T2", "coevolution": "T4"})
"""The group of the evaluation suite that a task resembles; T3 for the others."""
_FIXED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "T1": MappingProxyType(
            {
                "constant fleet": "constant:1,0,7",
                "tuned threshold": "threshold:high=0.9,low=0.9,periods=1,exclude_warming=false,cooldown_s=120",
            }
        ),
        "T2": MappingProxyType(
            {
                "constant fleet": "constant:2,1,0",
                "tuned threshold": "threshold:high=0.8,low=0.8,periods=1,exclude_warming=true,cooldown_s=120",
            }
        ),
    }
)
"""Best constant fleet and threshold of `trimtab tune autoscaling`, for the two fixed traces."""


def baselines_of(task: str) -> dict[str, str]:
    """Return the policies that a task is measured against, by what people call them."""
    group = _GROUPS.get(task, "T3")
    fixed = dict(_FIXED.get(group, {}))
    known = {contender.label: text for contender in BASELINES if (text := contender.text(group)) is not None}
    if fixed:
        known = {label: text for label, text in known.items() if label.startswith("queue rule")}
    return fixed | known


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
    for name, text in baselines_of(task).items():
        runs = run_many(text, episodes.world, episodes.traces, episodes.seeds)
        costs[name] = sum(run.cost for run in runs) / len(runs)
    return costs
