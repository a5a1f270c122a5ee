"""A learned policy from a model file: one recurrent network on ONNX Runtime, for one episode or for many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.models.card import ModelCard, ScorerCard, heads_of
from agent.models.file import Model, ModelRefused, load_model
from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order, orders_of_index, orders_of_vector
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MASKED_LOGIT = np.float32(-1e9)
"""Logit of an action that would have no effect (autoscaler specification §4)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A verified model file: a step of it for many episodes at once, and the choice from its logits."""

    model: Model[ModelCard]

    @property
    def multi(self) -> bool:
        """Whether it changes every VM type at once (act-multi) instead of one VM (act-7)."""
        return self.model.card.action_set == "act-multi"

    @property
    def types(self) -> int:
        """Number of VM types."""
        return len(self.model.card.types)

    def zero_memory(self, copies: int) -> dict[str, Floats]:
        """Return the memory at the start of an episode, each of shape (copies, hidden size)."""
        card = self.model.card
        return {name: np.zeros((copies, card.hidden_size), dtype=np.float32) for name in card.memory}

    def logits(self, observation: Floats, memory: Mapping[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        """Return logits of shape (copies, A) and the next memory for observations of shape (copies, F)."""
        outputs = self.model.run({"observation": observation, **memory})
        return outputs["logits"], {name: outputs[f"{name}_next"] for name in memory}

    def choose(self, logits: Floats, mask: Bools, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return act-7 indices of shape (copies,), or positions in MULTI_CHANGES of shape (copies, N).

        mask: shape (copies, 1 + 2 N) or (copies, N, 7), used when the model was trained with it. The most probable
        action is taken, or with `rng` one is drawn.
        """
        rows = logits.reshape(len(logits), self.types, len(MULTI_CHANGES)) if self.multi else logits
        if self.model.card.masked:
            rows = np.where(mask, rows, MASKED_LOGIT)
        if rng is not None:
            # The largest of logits with Gumbel noise is a draw from their softmax.
            rows = rows + rng.gumbel(size=rows.shape).astype(np.float32)
        chosen: NDArray[np.int64] = rows.argmax(axis=-1)
        return chosen


def read_network(path: Path) -> Network:
    """Verify a model file as the agent does; raises ModelRefused, also for changes that the simulator has not."""
    model = load_model(path)
    if isinstance(model.card, ScorerCard):
        raise ModelRefused("model file", str(path), "it is a scorer and no network: give a network's file")
    heads = heads_of(model.card)
    if model.card.action_set == "act-multi" and any(tuple(c.change for c in head) != MULTI_CHANGES for head in heads):
        remedy = f"its changes per VM type are not {MULTI_CHANGES}: name a model for this simulator"
        raise ModelRefused("model file", str(path), remedy)
    return Network(model)


@dataclass(slots=True)
class ModelPolicy(SimulatedPolicy):
    """One learned policy in one episode: greedy, or (sample_seed) drawn from its probabilities."""

    network: Network
    sample_seed: int | None = None
    _memory: dict[str, Floats] = field(init=False, repr=False, compare=False, default_factory=dict)
    _rng: np.random.Generator | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def name(self) -> str:
        """The SHA-256 of the model file, with the seed of its draws."""
        return self.network.model.name + ("" if self.sample_seed is None else f":sample={self.sample_seed}")

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Empty the memory; BadInput when the model is for another number of VM types."""
        check_types(self.network, config)
        self._memory = self.network.zero_memory(1)
        self._rng = None if self.sample_seed is None else np.random.default_rng(self.sample_seed)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Run the network one step and order its action."""
        network = self.network
        seen = simulation.observe() if network.model.card.observation == "obs-7" else simulation.observe_v2()
        mask = simulation.mask_multi() if network.multi else simulation.mask()
        logits, self._memory = network.logits(seen[None, :], self._memory)
        chosen = network.choose(logits, mask[None], self._rng)[0]
        if not network.multi:
            return orders_of_index(int(chosen), network.types)
        return orders_of_vector([MULTI_CHANGES[k] for k in chosen], simulation.config.cores)


def check_types(network: Network, config: SimulationConfig) -> None:
    """Raise BadInput unless the model was trained for VM types of the fleet's cores and limits."""
    trained = [(kind.cores, kind.limit) for kind in network.model.card.types]
    here = list(zip(config.cores, config.limits, strict=True))
    if trained != here:
        remedy = f"it was trained for VM types of (cores, limit) {trained}, the fleet has {here}"
        raise BadInput("policy model", network.model.name, remedy)


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
