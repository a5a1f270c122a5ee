"""Compiles the simulators' kernels before many tests need them at once: `python -m tests.kernels`.

numba keeps what it compiles beside the modules; `make setup` runs this again when one of them has changed. Compiled by
the tests themselves, each process that runs them compiles alike, a minute of a core each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np


def admission() -> None:
    """Play a small cluster by rules that reach every kernel."""
    from dataclasses import replace

    from domain.rules.admission.rule import rule_of
    from simulator.admission import PRESETS, draw_run, play

    cluster = replace(PRESETS["K"], capacity=200, sla=0.02)
    run = draw_run(cluster, 11, hours=40.0, observations=2)
    for text in ("zeroth:150", "second:1.2,moments=ab", "gamma:0.15", "budget:0.08"):
        play(run, rule_of(text), log=10_000)


def autoscaling() -> None:
    """Step copies of the fleet with each kind of observation and action, and branch a short episode."""
    from domain.workload import Trace
    from simulator.autoscaling.batch import AutoscalingBatch
    from simulator.autoscaling.branching import BranchedEpisodes, RuleSetting
    from simulator.autoscaling.reference import preset
    from simulator.workloads.synthetic import train_fit

    traces: tuple[Trace, ...] = (train_fit(),)
    for observation, actions in (("obs-7", "act-7"), ("obs-v2", "act-multi")):
        config = preset("train-text", limits=(4, 3, 2), max_steps=5)
        batch = AutoscalingBatch(config, traces, 2, observation=observation, actions=actions)
        batch.reset(np.array([1, 2]), np.array([0, 0]))
        shape = (batch.copies, len(config.types)) if batch.multi else (batch.copies,)
        for _ in range(5):
            batch.step(np.zeros(shape, dtype=np.int64))
    BranchedEpisodes(preset("live-like", max_steps=5), traces[0], RuleSetting()).play(1, branch_share=1.0, most=2)


def oversubscription() -> None:
    """Place a week, sample it and assess its risk."""
    from simulator.oversubscription.batch import OversubscriptionSimulation
    from simulator.oversubscription.scenario import scenario_of
    from simulator.oversubscription.usage import usage_of
    from simulator.oversubscription.weekly import assess, sample

    scenario = scenario_of("internal_like")
    week = scenario.week("s0")
    model = usage_of("gauss_corr:rho=0.3", scenario, week)
    simulation = OversubscriptionSimulation(scenario, week, start="warm", usage=model)
    simulation.reset(1)
    rates = np.full(scenario.subscribers, 0.5)
    for _ in range(scenario.hours):
        simulation.step_rates(rates)
    sample(simulation.placement(), model, np.arange(2))
    assess(scenario, week, rates, start="warm", rho=model.rho)


def placement() -> None:
    """Play the small instance once, in several orders at once, and with futures."""
    from domain.rules.placement.policies import BF
    from simulator.placement.engine import play, play_orders
    from simulator.placement.futures import fitted
    from simulator.placement.instances import s1
    from trainer.placement.rollout import rollout

    play(s1(), BF)
    play_orders(s1(), BF, np.arange(30)[None, :])
    rollout(s1(), (BF,), fitted([s1()]), samples=1)


def deferral() -> None:
    """Play a short episode by an order and by the knapsack."""
    from simulator.deferral.engine import play, rule_of
    from simulator.deferral.scenarios import episode

    for text in ("fifo", "knapsack"):
        play(episode("valley", 0), rule_of(text))


KERNELS: tuple[Callable[[], None], ...] = (admission, autoscaling, oversubscription, placement, deferral)


def main() -> None:
    """Compile them all, two at a time."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(one) for one in KERNELS]:
            future.result()


if __name__ == "__main__":
    main()
