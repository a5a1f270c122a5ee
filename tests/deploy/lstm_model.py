"""An ONNX model of one LSTM, for what a sandbox must let the agent run."""

from __future__ import annotations

import onnx


def lstm() -> onnx.ModelProto:
    """Return it: input X [1, 1, 3], output Y [1, 1, 1, 8]."""
    hidden, inputs = 8, 3
    shapes = {"W": [1, 4 * hidden, inputs], "R": [1, 4 * hidden, hidden]}
    weights = [
        onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, [0.1] * (shape[1] * shape[2]))
        for name, shape in shapes.items()
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=hidden)],
        "lstm",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [1, 1, inputs])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [1, 1, 1, hidden])],
        weights,
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
