"""Runs policies through whole episodes: one, or many over traces and seeds, on several cores."""

from __future__ import annotations

from collections.abc import Sequence

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from trainer.autoscaling.policies.base import run_policy
from trainer.autoscaling.policies.registry import model_file, policy_of
from trainer.kit.jobs import Pool

RULES = ("threshold", "target-tracking", "queue-rule")
"""Policies that are expected to change the fleet; a constant fleet, or a script, is not."""


def run_many(
    policy_text: str,
    config: SimulationConfig,
    traces: Sequence[Trace],
    seeds: Sequence[int],
    workers: int = 1,
) -> list[Measures]:
    """Return the figures of one run per seed, in order; `traces` has one trace per seed, or one for all of them.

    The episodes of a model file are played together; other policies one by one, on so many processes.
    """
    pairs = paired(traces, seeds)
    if model_file(policy_text):
        # It brings ONNX Runtime along, which most policies do without.
        from trainer.autoscaling.policies.model import ModelPolicy, run_batched

        learned = policy_of(policy_text)
        if isinstance(learned, ModelPolicy):
            return run_batched(learned, config, pairs)
    if workers > 1 and len(pairs) > 1:
        tasks = [(policy_text, config, trace, seed) for trace, seed in pairs]
        with Pool(run_task, min(workers, len(tasks))) as pool:
            return list(pool.run(tasks))
    policy = policy_of(policy_text)
    return [run_policy(policy, config, trace, seed) for trace, seed in pairs]


def paired(traces: Sequence[Trace], seeds: Sequence[int]) -> list[tuple[Trace, int]]:
    """Pair traces with seeds, a single trace with every seed; BadInput when their numbers do not go together."""
    if len(traces) not in (1, len(seeds)):
        raise BadInput("traces", len(traces), f"give one trace, or one for each of the {len(seeds)} seeds")
    repeated = traces if len(traces) == len(seeds) else list(traces) * len(seeds)
    return list(zip(repeated, seeds, strict=True))


def stuck(policy: str, runs: Sequence[Measures], cut_off: int) -> str:
    """Return why runs are nothing to compare with: cut off before their jobs had finished, or nothing changed; or "".

    policy: its text. cut_off: how many of the runs were.
    """
    if cut_off:
        return "cut off" if len(runs) == 1 else f"cut off in {cut_off} of {len(runs)} cases"
    idle = policy.startswith(RULES) and not any(
        map(any, (counts for run in runs for counts in (run.added, run.removed)))
    )
    return "changed nothing" if idle else ""


Task = tuple[str, SimulationConfig, Trace, int]
"""A policy's text, the world, the trace and the seed."""


def run_task(task: Task) -> Measures:
    """Run one task."""
    text, config, trace, seed = task
    return run_policy(policy_of(text), config, trace, seed)
