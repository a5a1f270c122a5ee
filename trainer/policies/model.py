"""A learned policy from a model file: one recurrent network on ONNX Runtime, for one episode or for many at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from agent.models import METADATA_KEY, Model, ModelRefused, load_model
from domain.errors import BadInput
from domain.observations.autoscale import OBS7_NAMES, OBS7_VERSION, OBS_V2_VERSION, obs_v2_names, schema_hash
from domain.workload import Trace
from simulator.reference import MULTI_CHANGES, Order, SimulationConfig
from simulator.reference.actions import orders_of_index, orders_of_vector
from trainer.policies.base import AnySimulation, PlainPolicy

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MASKED_LOGIT = np.float32(-1e9)
"""Logit of an action that would have no effect (autoscaler specification §4)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model file with what of its card matters here.

    observation: obs-7 or obs-v2. multi: its logits are 7 per VM type (act-multi), else 1 + 2 N (act-7). masked: actions
    without an effect are left out. memory: names and sizes of its recurrent inputs.
    """

    model: Model
    observation: str
    multi: bool
    masked: bool
    types: int
    memory: Mapping[str, int]

    def zero_memory(self, copies: int) -> dict[str, Floats]:
        """Return the memory at the start of an episode, each of shape (copies, size)."""
        return {name: np.zeros((copies, size), dtype=np.float32) for name, size in self.memory.items()}

    def logits(self, observation: Floats, memory: dict[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        """Return logits of shape (copies, A) and the next memory for observations of shape (copies, F)."""
        outputs = self.model.run({"observation": observation, **memory})
        return outputs["logits"], {name: outputs[f"{name}_next"] for name in memory}

    def choose(self, logits: Floats, mask: Bools, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return act-7 indices of shape (copies,), or positions in MULTI_CHANGES of shape (copies, N).

        mask: shape (copies, 1 + 2 N) or (copies, N, 7). The most probable action is taken, or with `rng` one is drawn.
        """
        rows = logits.reshape(len(logits), self.types, len(MULTI_CHANGES)) if self.multi else logits
        if self.masked:
            rows = np.where(mask, rows, MASKED_LOGIT)
        if rng is not None:
            # The largest of logits with Gumbel noise is a draw from their softmax.
            rows = rows + rng.gumbel(size=rows.shape).astype(np.float32)
        chosen: NDArray[np.int64] = rows.argmax(axis=-1)
        return chosen


def read_network(path: Path) -> Network:
    """Verify a model file as the agent does, and find what it sees and does; raises ModelRefused."""
    facts = _facts(path)
    types = _types(path, facts)
    schemas = {
        "obs-7": schema_hash(OBS7_NAMES, OBS7_VERSION),
        "obs-v2": schema_hash(obs_v2_names(types), OBS_V2_VERSION),
    }
    observation = facts.get("observation") or next(
        (name for name, digest in schemas.items() if digest == facts.get("schema_hash")), "obs-7"
    )
    if observation not in schemas:
        raise ModelRefused("model file", str(path), f"it sees {observation!r}, this program makes obs-7 and obs-v2")
    model = load_model(path, schemas[observation])
    sizes = {given.name: int(given.shape[-1]) for given in model.session.get_inputs()}
    return Network(
        model=model,
        observation=observation,
        multi=len(facts["actions"]) == len(MULTI_CHANGES) * types and facts.get("action_set") != "act-7",
        masked=bool(facts.get("masked", True)),
        types=types,
        memory={name: sizes[name] for name in model.card.memory},
    )


def _facts(path: Path) -> dict[str, Any]:
    """Return the card as it stands in the file, before anything is verified."""
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        facts = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "null"))
    except Exception as fault:
        reason = str(fault).strip().splitlines()[0][:160]
        raise ModelRefused("model file", str(path), f"{reason}: name a model file of this program") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("actions"), list):
        raise ModelRefused("model file", str(path), "it carries no card of this program: export it anew")
    return facts


def _types(path: Path, facts: Mapping[str, Any]) -> int:
    named, actions = facts.get("types"), len(facts["actions"])
    if isinstance(named, list) and named:
        return len(named)
    for types, whole in (((actions - 1) // 2, actions % 2 == 1), (actions // 7, actions % 7 == 0)):
        if whole and types > 0:
            return types
    raise ModelRefused("model file", str(path), f"its {actions} actions are neither act-7 nor act-multi")


@dataclass(slots=True)
class ModelPolicy(PlainPolicy):
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
        seen = simulation.observe() if network.observation == "obs-7" else simulation.observe_v2()
        mask = simulation.mask_multi() if network.multi else simulation.mask()
        logits, self._memory = network.logits(seen[None, :], self._memory)
        chosen = network.choose(logits, mask[None], self._rng)[0]
        if not network.multi:
            return orders_of_index(int(chosen), network.types)
        return orders_of_vector([MULTI_CHANGES[k] for k in chosen], simulation.config.cores)


def check_types(network: Network, config: SimulationConfig) -> None:
    """Raise BadInput unless the model is for as many VM types as the fleet has."""
    if network.types != len(config.types):
        raise BadInput("policy model", network.model.name, f"it is for {network.types} types, not {len(config.types)}")
