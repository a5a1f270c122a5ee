"""Runs policies through whole episodes: one, or many over traces and seeds, on several cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.packing import unsupported
from simulator.autoscaling.reference import Measures, Simulation, SimulationConfig, StepResult
from simulator.autoscaling.single import FastSimulation
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policies.registry import is_model, policy_of

OnStep = Callable[[AnySimulation, StepResult], None]
"""Called after each step of an episode."""


def simulation_for(config: SimulationConfig, trace: Trace, seed: int = 0) -> AnySimulation:
    """Return an episode at its start: on the compiled simulator, or on the plain one for what that lacks."""
    if unsupported(config) is not None:
        return Simulation(config, trace, seed)
    return FastSimulation(config, trace, seed)


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
    """Return the figures of one run per seed, in order; `traces` has one trace per seed, or one for all of them.

    The episodes of a model file are played together; other policies one by one, on so many processes.
    """
    pairs = paired(traces, seeds)
    if is_model(policy_text) and unsupported(config) is None:
        # It brings ONNX Runtime along, which most policies do without.
        from trainer.autoscaling.policies.batched import run_batched
        from trainer.autoscaling.policies.model import ModelPolicy

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


Task = tuple[str, SimulationConfig, Trace, int]
"""A policy's text, the world, the trace and the seed."""


def run_task(task: Task) -> Measures:
    """Run one task."""
    text, config, trace, seed = task
    return run_policy(policy_of(text), config, trace, seed)


class Pool:
    """Runs tasks on so many processes, or here where that is one; answers come in the order of the tasks."""

    def __init__(
        self, run: Callable[[Task], Measures], workers: int = 1, on_run: Callable[[], None] | None = None
    ) -> None:
        """Start the processes; on_run is called as each answer comes."""
        self._run = run
        self._workers = workers
        self._on_run = on_run or (lambda: None)
        # Spawned, so that no process inherits threads in the middle of what they do.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(max_workers=workers, mp_context=context) if workers > 1 else None

    def run(self, tasks: Sequence[Task]) -> Iterator[Measures]:
        """Yield the answers."""
        pool = self._pool
        chunk = max(1, len(tasks) // (8 * self._workers))
        for answer in map(self._run, tasks) if pool is None else pool.map(self._run, tasks, chunksize=chunk):
            self._on_run()
            yield answer

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
