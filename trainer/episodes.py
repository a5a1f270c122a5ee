"""Runs policies through whole episodes: one, or many over traces and seeds, on several cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from domain.errors import BadInput
from domain.workload import Trace
from simulator.reference import Measures, Simulation, SimulationConfig, StepResult
from trainer.policies.base import AnySimulation, SimulatedPolicy
from trainer.policies.registry import policy_of

OnStep = Callable[[AnySimulation, StepResult], None]
"""Called after each step of an episode."""


def simulation_for(config: SimulationConfig, trace: Trace, seed: int = 0) -> AnySimulation:
    """Return an episode at its start, on the fastest simulator that has this configuration."""
    return Simulation(config, trace, seed)


def begin(policy: SimulatedPolicy, config: SimulationConfig, trace: Trace, seed: int = 0) -> AnySimulation:
    """Start the policy and return an episode at its start, in the world that the policy needs (see `world`)."""
    world = policy.world(config)
    policy.start(world, trace)
    return simulation_for(world, trace, seed)


def run_policy(
    policy: SimulatedPolicy, config: SimulationConfig, trace: Trace, seed: int = 0, on_step: OnStep | None = None
) -> Measures:
    """Run one episode to its end and return its figures (autoscaler specification §11)."""
    simulation = begin(policy, config, trace, seed)
    while not (simulation.finished or simulation.truncated):
        result = simulation.step_orders(policy.choose(simulation))
        if on_step is not None:
            on_step(simulation, result)
    return simulation.measures()


def run_many(
    policy_text: str,
    config: SimulationConfig,
    traces: Sequence[Trace],
    seeds: Sequence[int],
    workers: int = 1,
) -> list[Measures]:
    """Return the figures of one run per seed, in order; `traces` has one trace per seed, or one for all of them."""
    pairs = paired(traces, seeds)
    if workers > 1 and len(pairs) > 1:
        tasks = [(policy_text, config, trace, seed) for trace, seed in pairs]
        return list(in_processes(_run_text, tasks, workers))
    policy = policy_of(policy_text)
    return [run_policy(policy, config, trace, seed) for trace, seed in pairs]


def paired(traces: Sequence[Trace], seeds: Sequence[int]) -> list[tuple[Trace, int]]:
    """Pair traces with seeds, a single trace with every seed; BadInput when their numbers do not go together."""
    if len(traces) not in (1, len(seeds)):
        raise BadInput("traces", len(traces), f"give one trace, or one for each of the {len(seeds)} seeds")
    repeated = traces if len(traces) == len(seeds) else list(traces) * len(seeds)
    return list(zip(repeated, seeds, strict=True))


Task = tuple[str, SimulationConfig, Trace, int]


def in_processes(run: Callable[[Task], Measures], tasks: Sequence[Task], workers: int) -> Iterator[Measures]:
    """Yield the answers in the order of the tasks, worked out by so many processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(workers, len(tasks)), mp_context=context) as pool:
        yield from pool.map(run, tasks, chunksize=max(1, len(tasks) // (8 * workers)))


def _run_text(task: Task) -> Measures:
    text, config, trace, seed = task
    return run_policy(policy_of(text), config, trace, seed)
