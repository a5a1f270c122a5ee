"""Model files in the simulator: a recurrent network, for one episode or many, and a scorer with its queue rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.scorer import ScorerPolicy, Sight
from agent.models.card import ModelCard, ScorerCard, heads_of, recurrent_inputs
from agent.models.file import Model, ModelRefused, load_model
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import MEMORY
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order, orders_of_index, orders_of_vector
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import FleetView, Measures
from trainer.autoscaling.policies import AnySimulation, SimulatedPolicy

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


Doubles = NDArray[np.float64]


@dataclass(slots=True)
class SimulatedScorer(SimulatedPolicy):
    """A scorer with the queue rule.

    rule: its setting in this world; where job_core_s is 0 the work of the jobs that came and wait is known, but not of
    those of a trace whose jobs wait for one another: they count with the mean of the queue.
    """

    kind: ClassVar[str] = "scorer"

    policy: ScorerPolicy
    rule: RuleSetting
    _memory: list[float] = field(init=False, repr=False, compare=False, default_factory=list)
    _carried: dict[str, Floats] = field(init=False, repr=False, compare=False, default_factory=dict)
    _config: SimulationConfig | None = field(init=False, repr=False, compare=False, default=None)
    _work: Doubles | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def name(self) -> str:
        """The SHA-256 of the model file, with the rule's setting."""
        rule = self.rule
        setting = f"horizon_s={rule.horizon_s:g},idle_s={rule.idle_s:g},job_core_s={rule.job_core_s:g}"
        return f"{self.policy.model.name}:{setting}"

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Empty the memory."""
        card = self.policy.model.card
        self._memory, self._config, self._work = [0.0] * MEMORY, config, None
        self._carried = {name: np.zeros(card.cells, dtype=np.float32) for name in recurrent_inputs(card)}
        if self.rule.job_core_s <= 0.0 and not trace.staged:
            self._work = np.cumsum(np.concatenate(([0.0], np.maximum(trace.width, 1) * trace.service_s)))

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the change to the best candidate."""
        assert self._config is not None, "started"
        sight = _sight(self._config, simulation.fleet_view(), self.rule, self._work)
        weighed = self.policy.weigh(sight, self._memory, self._carried)
        changes = np.array(weighed.targets[weighed.chosen]) - np.array(sight.requested)
        return orders_of_vector(changes, self._config.cores)


def _sight(config: SimulationConfig, view: FleetView, rule: RuleSetting, work: Doubles | None) -> Sight:
    """Return the agent's view. work: core-seconds of the first n jobs of the trace, where they are known."""
    queue = view.queue
    mean = queue.mean_job_core_s
    if rule.job_core_s <= 0.0:
        job_core_s = queue.queued_core_s / queue.waiting if queue.waiting else mean or 0.0
    else:
        job_core_s = rule.job_core_s if mean is None else mean
    arrived_core_s = queue.submitted_recent * job_core_s
    if work is not None:
        arrived_core_s = float(work[queue.submitted] - work[queue.submitted - queue.submitted_recent])
    low, high = zip(*config.boot_ranges_s, strict=True)
    return Sight(
        cores=view.cores.tolist(),
        prices=[kind.price_per_hour for kind in config.types],
        requested=view.requested.tolist(),
        ready=view.ready.tolist(),
        booting=view.booting.tolist(),
        idle=view.idle_long(0.0).tolist(),
        idle_long=view.idle_long(rule.idle_s).tolist(),
        floor=list(config.minimum),
        limits=list(config.limits),
        minimum=np.where(view.cooldown_in_s > 0, np.maximum(view.requested, view.minimum), view.minimum).tolist(),
        maximum=np.where(view.cooldown_out_s > 0, np.minimum(view.requested, view.maximum), view.maximum).tolist(),
        cooling_out_s=view.cooldown_out_s.tolist(),
        cooling_in_s=view.cooldown_in_s.tolist(),
        boot_low_s=list(low),
        boot_high_s=list(high),
        waiting=queue.waiting,
        arrived=queue.submitted_recent,
        arrived_core_s=arrived_core_s,
        oldest_wait_s=queue.oldest_wait_s if queue.waiting else 0.0,
        job_core_s=job_core_s,
        free_cores=float(view.free_cores),
        busy_cores=float(view.busy_cores),
        horizon_s=rule.horizon_s,
        cooldown_s=config.cooldown_s,
        waiting_price=config.waiting_price_per_hour,
        now_s=view.now_s,
        announcements=[],
        given=0.0,
    )
