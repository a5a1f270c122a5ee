"""Compiles the kernels of simulators and trainer before many tests need them at once: `python -m tests.kernels`.

numba keeps what it compiles beside the modules; `make setup` runs this again when one of them has changed. Compiled by
the tests themselves, each process that runs them compiles alike, a minute of a core each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
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
    from domain.rules.queue_rule import RuleSetting
    from domain.workload import Trace
    from simulator.autoscaling.batch import AutoscalingBatch, FastSimulation
    from simulator.autoscaling.branching import BranchedEpisodes
    from simulator.autoscaling.world_file import preset
    from simulator.gym import AutoscalingEnv
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
    single = FastSimulation(preset("train-text", max_steps=5), traces[0])
    single.step(0)
    single.observe_v2()
    single.mask_multi()
    single.fleet_view()
    AutoscalingEnv(traces, preset("train-text", max_steps=5)).reset(seed=1)


def learning() -> None:
    """Do a step of the LSTM with its gradient, choose an action, and fit a population to a handful of deployments."""
    import torch

    from domain.rules.admission.population import POPULATIONS
    from trainer.admission.fitting.fits import Evidence, rates_likelihood
    from trainer.admission.fitting.lives import cores_of, drawn_from, uniforms
    from trainer.autoscaling.fast_lstm import LstmUnroll, UnrolledLstm, choose
    from trainer.autoscaling.ppo_lstm import loss

    unroll = LstmUnroll(2, 1, 1, 1)
    unroll.fill(torch.zeros(2, 1, 1), torch.zeros(2, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    UnrolledLstm.apply(torch.zeros(3, 4, requires_grad=True), unroll).sum().backward()
    written = np.zeros((1, 1), dtype=np.int64), np.zeros(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
    answer, masks, greedy = (
        np.zeros((1, 3), dtype=np.float32),
        np.ones((1, 1, 2), dtype=np.bool_),
        np.zeros(1, np.bool_),
    )
    choose(answer, masks, np.zeros((1, 1)), greedy, *written)
    actions, *two = (x[None] for x in written)
    shown, one = answer[None], np.zeros((1, 1), dtype=np.float32)
    loss(0.2, 0.2, 0.5, 0.0, shown, np.zeros(1, dtype=np.int64), actions, masks[None], *two, one, one, shown.copy())
    cores_of(drawn_from(POPULATIONS["T"], uniforms(20, 1), np.full(20, 720.0), 1), POPULATIONS["T"].lifetimes)
    rates_likelihood(np.ones(6), Evidence(*np.ones((8, 1))), 1 / 12)


def oversubscription() -> None:
    """Place a week, sample it and assess its risk."""
    from simulator.oversubscription.batch import OversubscriptionSimulation
    from simulator.oversubscription.scenario import scenario_of
    from simulator.oversubscription.usage import peak_log, usage_of
    from simulator.oversubscription.weekly import Assessor, sample

    scenario = scenario_of("internal_like")
    week = scenario.week("s0")
    model = usage_of("gauss_corr:rho=0.3", scenario, week)
    simulation = OversubscriptionSimulation(scenario, week, start="warm", usage=model)
    simulation.reset(1)
    rates = np.full(scenario.subscribers, 0.5)
    for _ in range(scenario.hours):
        simulation.step_rates(rates)
    sample(simulation.placement(), model, np.arange(2))
    # Rates by hour are compiled apart: they are passed on as they are, and cannot be written.
    for given in (rates, np.tile(rates, (scenario.hours, 1))):
        Assessor(scenario, week, start="warm", rho=model.rho).assess(given)
    peak_log(scenario, week)


def placement() -> None:
    """Play the small instance once, and in several orders at once."""
    from domain.rules.placement.policies import BF
    from simulator.placement.engine import play, play_orders
    from simulator.placement.instances import s1

    play(s1(), BF)
    play_orders(s1(), BF, np.arange(30)[None, :])


def deferral() -> None:
    """Play a short episode by an order and by the knapsack."""
    from simulator.deferral.engine import play, rule_of
    from simulator.deferral.scenarios import episode

    for text in ("fifo", "knapsack"):
        play(episode("valley", 0), rule_of(text))


KERNELS: tuple[Callable[[], None], ...] = (admission, autoscaling, oversubscription, placement, deferral, learning)


def main() -> None:
    """Compile them all, two at a time."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(one): one.__name__ for one in KERNELS}
        for future in as_completed(running):
            future.result()
            print(f"  {running[future]}", flush=True)


if __name__ == "__main__":
    main()
