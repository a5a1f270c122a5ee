"""Model files: networks as an ONNX graph, and the file with its card.

The graph is built operator by operator from the weights in torch's layout. Of a policy-value network (`build`):
inputs `observation` (batch, F) and, for a network with memory, `hidden` and `cell` (batch, H); outputs
`logits` (batch, A), `value` (batch, 1), `hidden_next`, `cell_next`. All float32; the first axis is free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from agent.models.file import METADATA_KEY
from domain.errors import TrimtabError
from trainer.kit.files import replace_file

OPSET = 17
IR_VERSION = 8
"""The oldest file version that has this opset: old readers accept it."""
BATCH = "batch"

Weights = NDArray[np.float32]
Shape = Sequence[str | int]
"""Sizes of the axes; a name for a free one."""

ONNX_GATES, TORCH_GATES = "iofc", "ifco"
"""Order of the gates' rows: input, output, forget, candidate."""
MEMORY = ("hidden", "cell")
"""Names of the memory inputs of a network with a recurrent layer."""


class ExportFailed(TrimtabError):
    """The graph does not answer as the trained network does; nothing was written."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer; weight (out, in), bias (out,); `activation` is an ONNX operator, empty for none."""

    weight: Weights
    bias: Weights
    activation: str = ""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """An LSTM layer: weights with 4 H rows for the gates of H cells, in the order of `gates`."""

    input_weight: Weights
    hidden_weight: Weights
    input_bias: Weights
    hidden_bias: Weights
    gates: str = TORCH_GATES

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(self.hidden_weight.shape[1])


@dataclass(frozen=True, slots=True)
class Layers:
    """A whole network: at most one recurrent layer, dense layers, two heads."""

    logits: Dense
    value: Dense
    recurrent: Recurrent | None = None
    after: tuple[Dense, ...] = ()

    @property
    def features(self) -> int:
        """Length of the observation."""
        if self.recurrent is not None:
            return int(self.recurrent.input_weight.shape[1])
        return int((self.after or (self.logits,))[0].weight.shape[1])

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the memory inputs; none without a recurrent layer."""
        return () if self.recurrent is None else MEMORY

    @property
    def memory_size(self) -> int:
        """Numbers in each memory input; 0 without a recurrent layer."""
        return 0 if self.recurrent is None else self.recurrent.size


class Graph:
    """Collects the nodes and constants of a graph; constants: the prefix of their names."""

    def __init__(self, constants: str = "weights") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix = constants

    def constant(self, value: NDArray[Any]) -> str:
        """Add a constant and return its name."""
        name = f"{self._prefix}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add an operator with one output and return the name of that."""
        name = output or f"row_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def model(self, name: str, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> onnx.ModelProto:
        """Return the model, checked by ONNX, without metadata; its inputs and outputs are float32."""
        given, results = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in shapes.items()]
            for shapes in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, name, given, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model.producer_name = "trimtab"
        onnx.checker.check_model(model, full_check=True)
        return model

    def dense(self, row: str, layer: Dense, output: str = "") -> str:
        """Add a linear layer with its activation and return its output."""
        output = output or f"row_{len(self.nodes)}"
        linear = f"{output}_linear" if layer.activation else output
        weight, bias = self.constant(layer.weight.astype(np.float32)), self.constant(layer.bias.astype(np.float32))
        self.node("Gemm", [row, weight, bias], linear, transB=1)
        return self.node(layer.activation, [linear], output) if layer.activation else output

    def dense_all(self, row: str, layers: Sequence[Dense]) -> str:
        """Add linear layers in turn and return the output of the last."""
        for layer in layers:
            row = self.dense(row, layer)
        return row

    def recurrent(self, row: str, layer: Recurrent) -> str:
        """Add one step of the layer; the sequence axis of ONNX's operators has length 1."""
        first = self.constant(np.array([0], dtype=np.int64))
        for name, longer in ((row, "sequence"), *((memory, f"{memory}_stacked") for memory in MEMORY)):
            self.node("Unsqueeze", [name, first], longer)
        inputs = ["sequence", *(self.constant(value[None]) for value in _in_onnx_order(layer)), ""]
        inputs += [f"{memory}_stacked" for memory in MEMORY]
        outputs = ["", *(f"{memory}_after" for memory in MEMORY)]
        self.nodes.append(helper.make_node("LSTM", inputs, outputs, hidden_size=layer.size))
        for memory in MEMORY:
            self.node("Squeeze", [f"{memory}_after", first], f"{memory}_next")
        return "hidden_next"


def build(layers: Layers, name: str) -> onnx.ModelProto:
    """Return the model, checked by ONNX; it carries no metadata yet."""
    graph = Graph()
    row = "observation"
    if layers.recurrent is not None:
        row = graph.recurrent(row, layers.recurrent)
    row = graph.dense_all(row, layers.after)
    graph.dense(row, layers.logits, "logits")
    graph.dense(row, layers.value, "value")

    size = layers.memory_size
    inputs = {"observation": layers.features, **dict.fromkeys(layers.memory, size)}
    outputs = {"logits": layers.logits.bias.size, "value": 1, **{f"{memory}_next": size for memory in layers.memory}}
    return graph.model(name, _rows(inputs), _rows(outputs))


def build_ensembles(
    inputs: Mapping[str, int],
    outputs: Mapping[str, Sequence[Sequence[Dense]]],
    name: str,
    recurrent: Recurrent | None = None,
) -> onnx.ModelProto:
    """Return a model whose outputs (batch, networks) come from networks that all take the joined inputs (batch, size).

    outputs: by name the networks of an ensemble, each a sequence of layers whose last has one output. recurrent: an
    LSTM on the first input; its next hidden state is joined to the inputs, as the last of them.
    """
    graph = Graph()
    joined, size = list(inputs), 0
    if recurrent is not None:
        size = recurrent.size
        joined.append(graph.recurrent(joined[0], recurrent))
    graph.node("Concat", joined, "joined", axis=1)
    for output, networks in outputs.items():
        graph.node("Concat", [graph.dense_all("joined", layers) for layers in networks], output, axis=1)
    memory = MEMORY if size else ()
    sizes = {output: len(networks) for output, networks in outputs.items()}
    sizes |= {f"{one}_next": size for one in memory}
    return graph.model(name, _rows({**inputs, **dict.fromkeys(memory, size)}), _rows(sizes))


def _rows(sizes: Mapping[str, int]) -> dict[str, Shape]:
    return {name: (BATCH, size) for name, size in sizes.items()}


def store(model: onnx.ModelProto, card: Mapping[str, Any], directory: Path) -> Path:
    """Write the model with its card as `<sha256>.onnx` into a directory, whole or not at all, and return its path."""
    text = json.dumps(card, sort_keys=True, allow_nan=False, ensure_ascii=False)
    helper.set_model_props(model, {METADATA_KEY: text})
    content = model.SerializeToString(deterministic=True)
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return path


def _in_onnx_order(layer: Recurrent) -> tuple[Weights, Weights, Weights]:
    def gates(rows: Weights) -> Weights:
        parts = dict(zip(layer.gates, np.split(rows.astype(np.float32), len(layer.gates)), strict=True))
        return np.concatenate([parts[gate] for gate in ONNX_GATES])

    bias = np.concatenate([gates(layer.input_bias), gates(layer.hidden_bias)])
    return gates(layer.input_weight), gates(layer.hidden_weight), bias
