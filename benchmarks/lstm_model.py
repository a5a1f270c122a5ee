"""A model file of the shipped policy's size (7 inputs, LSTM of 128, 7 actions) with random weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from agent.models import METADATA_KEY
from domain.observations.autoscale import OBS7_NAMES, OBS7_VERSION, schema_hash

HIDDEN = 128
ACTIONS = 7


def write_model(directory: Path, seed: int = 0) -> Path:
    """Write the model, with a card that the model slot accepts, under the name that its content demands."""
    rng = np.random.default_rng(seed)
    features = len(OBS7_NAMES)

    def weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.normal(0.0, 0.1, size=shape).astype(np.float32)

    constants = {
        "w": weights(1, 4 * HIDDEN, features),
        "r": weights(1, 4 * HIDDEN, HIDDEN),
        "b": weights(1, 8 * HIDDEN),
        "head": weights(HIDDEN, ACTIONS),
        "to_sequence": np.array([1, 1, features], dtype=np.int64),
        "to_state": np.array([1, 1, HIDDEN], dtype=np.int64),
        "to_row": np.array([1, HIDDEN], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["observation", "to_sequence"], ["x"]),
        helper.make_node("Reshape", ["hidden", "to_state"], ["h0"]),
        helper.make_node("Reshape", ["cell", "to_state"], ["c0"]),
        helper.make_node("LSTM", ["x", "w", "r", "b", "", "h0", "c0"], ["", "h1", "c1"], hidden_size=HIDDEN),
        helper.make_node("Reshape", ["h1", "to_row"], ["hidden_next"]),
        helper.make_node("Reshape", ["c1", "to_row"], ["cell_next"]),
        helper.make_node("MatMul", ["hidden_next", "head"], ["logits"]),
    ]
    inputs = {"observation": features, "hidden": HIDDEN, "cell": HIDDEN}
    outputs = {"logits": ACTIONS, "hidden_next": HIDDEN, "cell_next": HIDDEN}
    graph = helper.make_graph(
        nodes,
        "lstm",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    golden = {name: rng.uniform(0.0, 1.0, size=(1, size)).astype(np.float32) for name, size in inputs.items()}
    answers = session.run(list(outputs), golden)
    card = {
        "schema_hash": schema_hash(OBS7_NAMES, OBS7_VERSION),
        "features": list(OBS7_NAMES),
        "actions": [f"action {k}" for k in range(ACTIONS)],
        "feature_low": [0.0] * features,
        "feature_high": [1.0] * features,
        "memory": ["hidden", "cell"],
        "golden": {
            "inputs": {name: value.tolist() for name, value in golden.items()},
            "outputs": {name: value.tolist() for name, value in zip(outputs, answers, strict=True)},
        },
    }
    helper.set_model_props(model, {METADATA_KEY: json.dumps(card)})
    content = bytes(model.SerializeToString())
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.write_bytes(content)
    onnx.checker.check_model(model)
    return path
