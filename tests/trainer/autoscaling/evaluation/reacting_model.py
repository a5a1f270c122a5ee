"""A model whose only reason to act is one input: it adds a large VM while that input is above a fifth."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from agent.models.file import METADATA_KEY
from tests.agent.models.making import ADD_L, NOTHING, card_of, preferring


def reacting(directory: Path, position: int, action: int = ADD_L, above: float = 0.2) -> Path:
    """Write the model; `position` of the input in obs-7, `action` taken while it is above the threshold."""
    path = preferring(directory, NOTHING)
    model, card = onnx.load(path), card_of(path)
    for node in model.graph.node:
        if "logits" in node.output:
            node.output[:] = ["plain"]
    gain = np.zeros((1, 7), dtype=np.float32)
    gain[0, action] = 1000.0
    constants = {
        "which": np.array([position], dtype=np.int64),
        "above": np.array([above], dtype=np.float32),
        "gain": gain,
    }
    model.graph.initializer.extend([numpy_helper.from_array(value, name) for name, value in constants.items()])
    model.graph.node.extend(
        [
            helper.make_node("Gather", ["observation", "which"], ["seen"], axis=1),
            helper.make_node("Sub", ["seen", "above"], ["over"]),
            helper.make_node("MatMul", ["over", "gain"], ["push"]),
            helper.make_node("Add", ["plain", "push"], ["logits"]),
        ]
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {name: np.array(rows, dtype=np.float32) for name, rows in card["golden"]["inputs"].items()}
    names = list(card["golden"]["outputs"])
    answers = session.run(names, given)
    card["golden"]["outputs"] = {name: value.tolist() for name, value in zip(names, answers, strict=True)}
    del model.metadata_props[:]
    helper.set_model_props(model, {METADATA_KEY: json.dumps(card)})
    content = bytes(model.SerializeToString())
    written = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    written.write_bytes(content)
    return written
