"""A learned policy through many episodes at once: the compiled simulator and one network step for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.reference import Measures, SimulationConfig
from trainer.autoscaling.policies.model import ModelPolicy, check_types

MOST_COPIES = 256
"""Episodes at once; more only cost memory."""


def run_batched(
    policy: ModelPolicy, config: SimulationConfig, pairs: Sequence[tuple[Trace, int]], most: int = MOST_COPIES
) -> list[Measures]:
    """Return the figures of one episode per (trace, seed), in order, each as `episodes.run_policy` would play it.

    The network's sums may differ in the last bit with the number of episodes at once; where two actions are that close,
    so may the episode. Raises BadInput when the model is for other VM types.
    """
    check_types(policy.network, config)
    return [run for at in range(0, len(pairs), most) for run in _run(policy, config, pairs[at : at + most])]


def _run(policy: ModelPolicy, config: SimulationConfig, pairs: Sequence[tuple[Trace, int]]) -> list[Measures]:
    network = policy.network
    traces = list({trace.digest: trace for trace, _ in pairs}.values())
    places = {trace.digest: place for place, trace in enumerate(traces)}
    batch = AutoscalingBatch(
        config,
        traces,
        len(pairs),
        observation=network.model.card.observation,
        actions="act-multi" if network.multi else "act-7",
    )
    observation = batch.reset(
        np.array([seed for _, seed in pairs], dtype=np.int64),
        np.array([places[trace.digest] for trace, _ in pairs], dtype=np.int64),
    )
    memory = network.zero_memory(len(pairs))
    draws = None if policy.sample_seed is None else [np.random.default_rng(policy.sample_seed) for _ in pairs]
    over = np.array([trace.jobs == 0 for trace, _ in pairs])
    while not over.all():
        logits, memory = network.logits(observation, memory)
        mask = batch.masks()
        if draws is None:
            actions = network.choose(logits, mask, None)
        else:
            rows = [network.choose(logits[i : i + 1], mask[i : i + 1], rng) for i, rng in enumerate(draws)]
            actions = np.concatenate(rows)
        observation, _, terminated, truncated = batch.step(actions)
        over = terminated | truncated
    return [batch.measures(copy) for copy in range(len(pairs))]
