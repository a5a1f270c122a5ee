"""A model file of the shipped policy's size (7 inputs, LSTM of 128, 7 actions), with random or given output weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from agent.models.file import METADATA_KEY
from domain.observations.autoscaling import OBS7_NAMES, OBS7_VERSION, OBS_V2_VERSION, obs_v2_names, schema_hash

HIDDEN = 128
TYPES = (("m5a.large", 2, 0.20), ("m5a.xlarge", 4, 0.40), ("m5a.2xlarge", 8, 0.80))
CHANGES = ("-5", "-2", "-1", "0", "+1", "+2", "+5")

Weights = NDArray[np.float32]


def write_model(
    directory: Path,
    seed: int = 0,
    *,
    hidden: int = HIDDEN,
    limits: Sequence[int] = (10, 10, 10),
    observation: str = "obs-7",
    action_set: str = "act-7",
    bias: Sequence[float] | None = None,
    scale: float = 0.1,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model of LSTM and two linear heads under the name that its content demands, and return its path.

    limits: most VMs of each of the three types. bias: of the logits; random without it. scale: standard deviation of
    the random weights, 0 leaves the bias alone to decide. changes: entries of the card that shall read otherwise.
    """
    rng = np.random.default_rng(seed)
    names = OBS7_NAMES if observation == "obs-7" else obs_v2_names(len(TYPES))
    actions = _actions(action_set)
    arrays = _weights(rng, len(names), hidden, len(actions), scale)
    if bias is not None:
        arrays["logits_bias"] = np.array(bias, dtype=np.float32)
    graph = _graph(arrays, len(names), hidden, len(actions))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = {"observation": len(names), "hidden": hidden, "cell": hidden}
    golden = {name: rng.uniform(0.0, 1.0, size=(2, size)).astype(np.float32) for name, size in sizes.items()}
    outputs = [output.name for output in session.get_outputs()]
    answers = session.run(outputs, golden)
    card: dict[str, Any] = {
        "schema_hash": schema_hash(names, OBS7_VERSION if observation == "obs-7" else OBS_V2_VERSION),
        "features": list(names),
        "actions": list(actions),
        "feature_low": [0.0] * len(names),
        "feature_high": [1.0] * len(names),
        "memory": ["hidden", "cell"],
        "observation": observation,
        "action_set": action_set,
        "types": [
            {"name": name, "cores": cores, "price_per_hour": price, "limit": limit}
            for (name, cores, price), limit in zip(TYPES, limits, strict=True)
        ],
        "masked": True,
        "network": "lstm",
        "hidden_size": hidden,
        "golden": {
            "inputs": {name: value.tolist() for name, value in golden.items()},
            "outputs": {name: value.tolist() for name, value in zip(outputs, answers, strict=True)},
        },
    }
    helper.set_model_props(model, {METADATA_KEY: json.dumps(card | dict(changes or {}))})
    content = bytes(model.SerializeToString())
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.write_bytes(content)
    onnx.checker.check_model(model)
    return path


def _actions(action_set: str) -> tuple[str, ...]:
    kinds = range(len(TYPES))
    if action_set == "act-7":
        return ("nothing", *(f"{verb}:{kind}" for kind in kinds for verb in ("add", "remove")))
    return tuple(f"{kind}:{change}" for kind in kinds for change in CHANGES)


def _weights(rng: np.random.Generator, features: int, hidden: int, actions: int, scale: float) -> dict[str, Weights]:
    shapes: dict[str, tuple[int, ...]] = {
        "w": (1, 4 * hidden, features),
        "r": (1, 4 * hidden, hidden),
        "b": (1, 8 * hidden),
        "logits_weight": (hidden, actions),
        "logits_bias": (actions,),
        "value_weight": (hidden, 1),
    }
    return {name: rng.normal(0.0, scale, size=shape).astype(np.float32) for name, shape in shapes.items()}


def _graph(arrays: Mapping[str, Weights], features: int, hidden: int, actions: int) -> onnx.GraphProto:
    constants: dict[str, NDArray[Any]] = {**arrays, "first": np.array([0], dtype=np.int64)}
    nodes = [
        helper.make_node("Unsqueeze", ["observation", "first"], ["x"]),
        helper.make_node("Unsqueeze", ["hidden", "first"], ["h0"]),
        helper.make_node("Unsqueeze", ["cell", "first"], ["c0"]),
        helper.make_node("LSTM", ["x", "w", "r", "b", "", "h0", "c0"], ["", "h1", "c1"], hidden_size=hidden),
        helper.make_node("Squeeze", ["h1", "first"], ["hidden_next"]),
        helper.make_node("Squeeze", ["c1", "first"], ["cell_next"]),
        helper.make_node("Gemm", ["hidden_next", "logits_weight", "logits_bias"], ["logits"]),
        helper.make_node("MatMul", ["hidden_next", "value_weight"], ["value"]),
    ]
    inputs = {"observation": features, "hidden": hidden, "cell": hidden}
    outputs = {"logits": actions, "value": 1, "hidden_next": hidden, "cell_next": hidden}

    def infos(sizes: Mapping[str, int]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", n]) for name, n in sizes.items()]

    constants_as_proto = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return helper.make_graph(nodes, "lstm", infos(inputs), infos(outputs), constants_as_proto)
