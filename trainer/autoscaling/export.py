"""Writes a trained policy as the one file that the agent runs: ONNX, named after its content, with a card.

The file is written only after ONNX Runtime has agreed with the trainer's own network over whole episodes, memory
carried (autoscaler specification §15.3). What a file and its card hold is described in `agent.models.file`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from agent.models.file import session_of
from domain.errors import BadInput
from domain.observations.autoscaling import (
    OBS7_FEATURES,
    OBS7_VERSION,
    OBS_V2_VERSION,
    Feature,
    obs_v2_features,
    schema_hash,
)
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from trainer.autoscaling.ppo_lstm import LstmTrunk, PolicyValueNetwork
from trainer.kit.export import Dense, ExportFailed, Layers, Recurrent, build, store

PARITY = 1e-5
"""Largest difference allowed between ONNX Runtime's and the trainer's outputs, over whole episodes."""
GOLDEN_ROWS = 4
GOLDEN_TOLERANCE = 1e-4

Floats = NDArray[np.float32]
Rows = dict[str, Floats]
Answer = Callable[[Rows], Rows]
"""The trainer's network: outputs by name (batch, size) for inputs by name (batch, size), as in the file."""


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What a policy was trained to see and do, for its card.

    observation: obs-7 or obs-v2. action_set: act-7 or act-multi. masked: whether actions without an effect were hidden.
    network: lstm or mlp. world: the configuration it was trained in. training, evaluation: for the record.
    """

    observation: str
    action_set: str
    masked: bool
    network: str
    world: SimulationConfig
    training: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in (("observation", ("obs-7", "obs-v2")), ("action_set", ("act-7", "act-multi"))):
            if getattr(self, name) not in choices:
                raise BadInput(name, getattr(self, name), f"choose one of {', '.join(choices)}")

    @property
    def features(self) -> tuple[Feature, ...]:
        """The entries of its observation."""
        return OBS7_FEATURES if self.observation == "obs-7" else obs_v2_features(len(self.world.types))

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of its actions in the order of the logits."""
        kinds = range(len(self.world.types))
        if self.action_set == "act-7":
            return ("nothing", *(f"{verb}:{kind}" for kind in kinds for verb in ("add", "remove")))
        return tuple(f"{kind}:{change:+d}" if change else f"{kind}:0" for kind in kinds for change in MULTI_CHANGES)


@dataclass(frozen=True, slots=True)
class Episode:
    """What a policy saw and answered in one greedy episode: inputs and outputs by name, a row per step."""

    inputs: Rows
    outputs: Rows


def layers_of(network: PolicyValueNetwork) -> Layers:
    """Return the weights of a network as the layers of a graph."""
    heads = (_dense(network.policy), _dense(network.value))
    trunk = network.trunk
    if isinstance(trunk, LstmTrunk):
        weight, hidden = _array(trunk.weight), trunk.width
        # One bias vector: the one beside the hidden weights stays empty.
        biases = (weight[-1], np.zeros_like(weight[-1]))
        return Layers(*heads, recurrent=Recurrent(weight[hidden:-1].T, weight[:hidden].T, *biases, "iofc"))
    return Layers(*heads, after=tuple(_dense(layer, "Tanh") for layer in trunk.layers))


def answer_of(network: PolicyValueNetwork) -> Answer:
    """Return a network as a function from the file's inputs to its outputs."""

    @torch.no_grad()
    def answer(inputs: Rows) -> Rows:
        memory = tuple(torch.from_numpy(inputs[name]) for name in network.trunk.memory_names)
        logits, value, after = network.step(torch.from_numpy(inputs["observation"]), memory)
        outputs = {"logits": logits, "value": value[:, None]}
        outputs |= {f"{name}_next": tensor for name, tensor in zip(network.trunk.memory_names, after, strict=True)}
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return answer


def export(
    layers: Layers,
    answer: Answer,
    learned: PolicyFacts,
    traces: Sequence[Trace],
    directory: Path,
    *,
    seed: int = 0,
    ranges: tuple[Floats, Floats] | None = None,
) -> Path:
    """Write `<sha256>.onnx` into a directory and return its path.

    The network plays one greedy episode on each trace in the learned policy's world; over all of them ONNX Runtime must
    agree within PARITY, and a few of their rows become the card's golden inputs. ranges: lowest and highest value of
    each feature in training; the episodes' own where it is None. Raises ExportFailed.
    """
    model = build(layers, learned.network)
    session = session_of(model.SerializeToString())
    episodes = [play(answer, learned, layers, trace, seed) for trace in traces]
    worst = max(difference(session, episode) for episode in episodes)
    # Written so that nan does not pass.
    if not worst <= PARITY:
        raise ExportFailed(f"ONNX Runtime differs from the trained network by {worst:g}, more than {PARITY:g}")
    seen = np.concatenate([episode.inputs["observation"] for episode in episodes])
    low, high = (seen.min(axis=0), seen.max(axis=0)) if ranges is None else ranges
    return store(model, _card(learned, layers, episodes[0], low, high), directory)


def play(answer: Answer, learned: PolicyFacts, layers: Layers, trace: Trace, seed: int = 0) -> Episode:
    """Return one greedy episode of the trainer's network in the plain simulator."""
    simulation = Simulation(learned.world, trace, seed)
    memory = {name: np.zeros((1, layers.memory_size), dtype=np.float32) for name in layers.memory}
    asked: list[Rows] = []
    answered: list[Rows] = []
    while not (simulation.finished or simulation.truncated):
        seen = simulation.observe() if learned.observation == "obs-7" else simulation.observe_v2()
        asked.append({"observation": seen[None], **memory})
        answered.append(answer(asked[-1]))
        memory = {name: answered[-1][f"{name}_next"] for name in layers.memory}
        simulation.step(_greedy(answered[-1]["logits"][0], learned, simulation))
    if not asked:
        raise BadInput("trace", trace.name, "give a trace with jobs: an episode without steps shows nothing")
    return Episode(_stacked(asked), _stacked(answered))


def difference(session: onnxruntime.InferenceSession, episode: Episode) -> float:
    """Return the largest difference between ONNX Runtime and an episode's answers; of values above 1, relative to them.

    ONNX Runtime carries a memory of its own from step to step, so that errors may add up as they would in use. Cells
    reach tens, where 32 bits round by a few millionths at every operation.
    """
    names = [output.name for output in session.get_outputs()]
    memory = {name: value[:1] for name, value in episode.inputs.items() if name != "observation"}
    worst = 0.0
    for step, seen in enumerate(episode.inputs["observation"]):
        found = dict(zip(names, session.run(names, {"observation": seen[None], **memory}), strict=True))
        memory = {name: found[f"{name}_next"] for name in memory}
        gaps = [_gap(found[name][0], wanted[step]) for name, wanted in episode.outputs.items()]
        worst = max(worst, *(gap if np.isfinite(gap) else np.inf for gap in gaps))
    return worst


def _gap(found: Floats, wanted: Floats) -> float:
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), 1.0)).max())


def _greedy(logits: Floats, learned: PolicyFacts, simulation: Simulation) -> int | list[int]:
    if learned.action_set == "act-7":
        mask = simulation.mask()
        return int(np.argmax(np.where(mask, logits, -np.inf) if learned.masked else logits))
    rows = logits.reshape(len(learned.world.types), len(MULTI_CHANGES))
    mask = simulation.mask_multi()
    chosen = np.argmax(np.where(mask, rows, -np.inf) if learned.masked else rows, axis=1)
    return [MULTI_CHANGES[at] for at in chosen]


def _dense(layer: torch.nn.Module, activation: str = "") -> Dense:
    if not isinstance(layer, torch.nn.Linear):
        raise BadInput("network", type(layer).__name__, "only linear layers can be exported")
    return Dense(_array(layer.weight), _array(layer.bias), activation)


def _array(tensor: torch.Tensor) -> Floats:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float32)


def _stacked(rows: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _card(learned: PolicyFacts, layers: Layers, episode: Episode, low: Floats, high: Floats) -> dict[str, Any]:
    names = [feature.name for feature in learned.features]
    steps = len(episode.inputs["observation"])
    rows = sorted({round(at) for at in np.linspace(0, steps - 1, GOLDEN_ROWS)})
    return {
        "schema_hash": schema_hash(names, OBS7_VERSION if learned.observation == "obs-7" else OBS_V2_VERSION),
        "observation": learned.observation,
        "features": names,
        "feature_low": low.tolist(),
        "feature_high": high.tolist(),
        "action_set": learned.action_set,
        "actions": learned.actions,
        "masked": learned.masked,
        "network": learned.network,
        "hidden_size": layers.memory_size,
        "memory": layers.memory,
        "types": [
            {"name": kind.name, "cores": kind.cores, "price_per_hour": kind.price_per_hour, "limit": limit}
            for kind, limit in zip(learned.world.types, learned.world.limits, strict=True)
        ],
        "golden": {
            "inputs": {name: value[rows].tolist() for name, value in episode.inputs.items()},
            "outputs": {name: value[rows].tolist() for name, value in episode.outputs.items()},
            "tolerance": GOLDEN_TOLERANCE,
        },
        "training": dict(learned.training),
        "evaluation": dict(learned.evaluation),
    }
