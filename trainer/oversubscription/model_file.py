"""The model file of the learned policy: ONNX with a card, named after its content, checked when it is read.

Inputs `cluster` (batch, F) and `local` (batch, N, f); outputs `q` (batch, N, actions), of which each subscriber takes
the largest, and `value` (batch, 1), the cluster's own part. float32; the first axis is free. The card is JSON under the
metadata key `trimtab`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from agent.models.file import METADATA_KEY
from domain.errors import BadInput, TrimtabError
from domain.observations.oversubscription import OBS_O_EXT_VERSION, OBS_O_VERSION, SCALE, cluster_names, local_names
from domain.rules.oversubscription.rates import check_actions
from simulator.oversubscription.scenario import Scenario
from simulator.oversubscription.single import OversubscriptionSimulation
from trainer.kit.onnx_graph import BATCH, IR_VERSION, OPSET
from trainer.oversubscription.configuration import VdnConfig
from trainer.oversubscription.policies.base import Plan, Task
from trainer.oversubscription.rates_file import scenario_sha256
from trainer.oversubscription.vdn_values import Side, ValueDecomposition

KIND, VERSION = "oversubscription-values", 1
PARITY = 1e-4
GOLDEN_ROWS = 3
Rows = NDArray[np.float32]


class ExportFailed(TrimtabError):
    """The graph does not answer as the trained network does; nothing was written."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRates:
    """A learned policy from its file: greedy rates by what each subscriber sees."""

    name: str
    card: Mapping[str, Any]
    session: onnxruntime.InferenceSession

    def plan(self, task: Task) -> Plan:
        """Return the policy for a task; BadInput when subscribers or levels are not those it was trained for."""
        scenario, card = task.scenario, self.card
        mine, theirs = (card["subscribers"], tuple(card["actions"])), (scenario.subscribers, scenario.actions)
        if mine != theirs:
            told = f"it is for {mine[0]} subscribers and levels {mine[1]}, the scenario has {theirs[0]} and {theirs[1]}"
            raise BadInput("policy", self.name, f"{told}: train it anew")
        return Plan(choose=self._choose, observation=card["observation"])

    def _choose(self, simulation: OversubscriptionSimulation) -> NDArray[np.float64]:
        q = self.answer(simulation.batch.obs, simulation.batch.local)[0]
        levels: NDArray[np.float64] = np.array(self.card["actions"], dtype=np.float64)
        rates: NDArray[np.float64] = levels[q[0].argmax(axis=1)]
        return rates

    def answer(self, cluster: Rows, local: Rows) -> tuple[Rows, Rows]:
        """Return q and value."""
        q, value = self.session.run(["q", "value"], {"cluster": cluster, "local": local})
        return q, value


def export(
    network: ValueDecomposition,
    config: VdnConfig,
    scenario: Scenario,
    directory: Path,
    *,
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> Path:
    """Write `<sha256>.onnx` and return its path, after ONNX Runtime agreed with the network over a greedy week.

    Raises ExportFailed.
    """
    model = _graph(network, config, scenario)
    session = _session(model.SerializeToString())
    cluster, local = _week_seen(network, config, scenario)
    with torch.no_grad():
        wanted = network.sides_of(torch.from_numpy(local)).numpy()
        value = network.value(torch.from_numpy(cluster)).numpy()[:, None]
    q, v = session.run(["q", "value"], {"cluster": cluster, "local": local})
    worst = max(float(np.abs(q - wanted).max()), float(np.abs(v - value).max()))
    # Written so that nan does not pass.
    if not worst <= PARITY * max(1.0, float(np.abs(wanted).max()), float(np.abs(value).max())):
        raise ExportFailed(f"ONNX Runtime differs from the trained network by {worst:g}")
    rows = np.linspace(0, len(cluster) - 1, GOLDEN_ROWS).astype(int)
    extended = config.observation == "obs-o-ext"
    card = {
        "kind": KIND,
        "version": VERSION,
        "observation": config.observation,
        "observation_version": OBS_O_EXT_VERSION if extended else OBS_O_VERSION,
        "observation_scale": SCALE,
        "cluster_features": cluster_names(scenario.subscribers, extended),
        "local_features": local_names(extended),
        "subscribers": scenario.subscribers,
        "actions": list(scenario.actions),
        "scenario": scenario.name,
        "scenario_sha256": scenario_sha256(scenario),
        "start": config.start,
        "alpha": config.alpha,
        "golden": {
            "cluster": cluster[rows].tolist(),
            "local": local[rows].tolist(),
            "q": q[rows].tolist(),
            "value": v[rows].tolist(),
        },
        "training": dict(training),
        "evaluation": dict(evaluation),
    }
    helper.set_model_props(model, {METADATA_KEY: json.dumps(card, sort_keys=True, allow_nan=False)})
    content = model.SerializeToString(deterministic=True)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
    return path


def read_model(path: Path) -> LearnedRates:
    """Return the policy in a model file; BadInput says what is wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refused(path, f"{error.strerror}: name a file that can be read") from None
    digest = hashlib.sha256(content).hexdigest()
    if path.stem != digest:
        raise _refused(path, f"its content has SHA-256 {digest}: it is damaged or was renamed; copy it anew")
    try:
        session = _session(content)
        card = json.loads(session.get_modelmeta().custom_metadata_map[METADATA_KEY])
    except KeyError:
        raise _refused(path, f"it has no `{METADATA_KEY}` metadata: it is no model of this program") from None
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _refused(path, f"it cannot be loaded ({first[:160]}): export it anew") from None
    if not isinstance(card, dict) or (card.get("kind"), card.get("version")) != (KIND, VERSION):
        raise _refused(path, f"its card is not of kind {KIND} {VERSION}: name a model of `train oversubscription`")
    extended = card["observation"] == "obs-o-ext"
    here = OBS_O_EXT_VERSION if extended else OBS_O_VERSION
    if (card["observation_version"], card["observation_scale"]) != (here, SCALE):
        raise _refused(path, f"it was trained on observation {card['observation_version']}, this program makes {here}")
    check_actions(card["actions"])
    policy = LearnedRates(str(path), card, session)
    golden = {name: np.array(values, np.float32) for name, values in card["golden"].items()}
    try:
        found = dict(zip(("q", "value"), policy.answer(golden["cluster"], golden["local"]), strict=True))
    except Exception as error:
        raise _refused(path, f"it fails on its golden inputs ({str(error)[:160]}): export it anew") from None
    for name, rows in found.items():
        # Written so that nan does not pass.
        if rows.shape != golden[name].shape or not (np.abs(rows - golden[name]) <= PARITY * 10.0).all():
            raise _refused(path, f"its {name} for the golden inputs is not the trainer's: export it anew")
    return policy


def _refused(path: Path, remedy: str) -> BadInput:
    return BadInput("policy", str(path), remedy)


def _session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _week_seen(network: ValueDecomposition, config: VdnConfig, scenario: Scenario) -> tuple[Rows, Rows]:
    """Return what the greedy policy sees in the first week, (hours, F) and (hours, N, f)."""
    simulation = OversubscriptionSimulation(
        scenario, config.weeks[0], start=config.start, cost="analytic", observation=config.observation
    )
    seen, _ = simulation.reset()
    cluster, local, over = [], [], False
    while not over:
        cluster.append(seen)
        local.append(simulation.local())
        with torch.no_grad():
            levels = network.sides_of(torch.from_numpy(local[-1][None])).argmax(dim=2)[0].numpy()
        seen, _, _, over, _, _ = simulation.step(levels)
    return np.stack(cluster), np.stack(local)


def _graph(network: ValueDecomposition, config: VdnConfig, scenario: Scenario) -> onnx.ModelProto:
    """Return the network as a graph; a shared network becomes one for each subscriber, its own bias told who it is."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(value: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), f"weights_{len(constants)}"))
        return str(constants[-1].name)

    def stack(row: str, layers: list[tuple[Rows, Rows]], name: str) -> str:
        for i, (weight, bias) in enumerate(layers):
            nodes.append(helper.make_node("MatMul", [row, constant(weight)], [f"{name}_{i}_product"]))
            nodes.append(helper.make_node("Add", [f"{name}_{i}_product", constant(bias)], [f"{name}_{i}"]))
            row = f"{name}_{i}"
            if i < len(layers) - 1:
                nodes.append(helper.make_node("Relu", [row], [f"{row}_active"]))
                row = f"{row}_active"
        return row

    nodes.append(helper.make_node("Transpose", ["local"], ["by_subscriber"], perm=[1, 0, 2]))
    sides = stack("by_subscriber", _layers(network, network.sides), "side")
    nodes.append(helper.make_node("Transpose", [sides], ["q"], perm=[1, 0, 2]))
    value = stack("cluster", [(weight[0], bias[0]) for weight, bias in _layers_of(network.cluster)], "cluster_value")
    nodes.append(helper.make_node("Identity", [value], ["value"]))
    extended = config.observation == "obs-o-ext"
    features, own = len(cluster_names(scenario.subscribers, extended)), len(local_names(extended))
    many, levels = scenario.subscribers, len(scenario.actions)
    shapes: dict[str, list[str | int | None]] = {
        "cluster": [BATCH, features],
        "local": [BATCH, many, own],
        "q": [BATCH, many, levels],
        "value": [BATCH, 1],
    }
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    made = helper.make_graph(
        nodes, "oversubscription", [infos["cluster"], infos["local"]], [infos["q"], infos["value"]], constants
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "trimtab"
    onnx.checker.check_model(model, full_check=True)
    return model


def _layers_of(stack: torch.nn.Sequential) -> list[tuple[Rows, Rows]]:
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in stack if isinstance(layer, Side)]


def _layers(network: ValueDecomposition, stack: torch.nn.Sequential) -> list[tuple[Rows, Rows]]:
    layers = _layers_of(stack)
    if not network.shared:
        return layers
    count = network.subscribers
    (weight, bias), *others = layers
    own, who = weight[:, :-count], weight[:, -count:]
    first = (np.repeat(own, count, axis=0), bias + np.transpose(who, (1, 0, 2)))
    return [first, *((np.repeat(w, count, axis=0), np.repeat(b, count, axis=0)) for w, b in others)]
