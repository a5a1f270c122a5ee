"""The model file of a learned policy of deferral: the network as an ONNX graph, with a card that tells what it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import nn

from agent.deferral.model import KIND, ORDER, TOLERANCE, WORTHS
from agent.models.file import session_of
from domain.rules.deferral.tokens import (
    TOKEN_FEATURES,
    TOKENS_VERSION,
    WINDOW,
    WINDOW_FEATURES,
    WORTH,
)
from simulator.deferral.scenarios import Episode
from simulator.deferral.world import World
from trainer.deferral.set_transformer import LEVEL, NEVER, TASKS, WIDTH, Inputs, Layer, SetPolicy, see, starts_of
from trainer.kit.export import BATCH, ExportFailed, Graph, Shape, store

VERSION = 1
GATES = (1, 0, 2)
"""Where torch's gates of a GRU (reset, update, candidate) stand in ONNX's."""
GOLDEN_STEPS = (0, 30, 90)
JOBS = "jobs"
Rows = NDArray[np.float32]


def export(
    network: SetPolicy,
    cref: float,
    directory: Path,
    episode: Episode,
    *,
    scenario: str,
    decoding: str,
    waits: bool = False,
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> Path:
    """Write `<sha256>.onnx` and return its path, after ONNX Runtime agreed with the network on states of an episode.

    Raises ExportFailed.
    """
    model = graph_of(network)
    inputs = _states(network, cref, episode)
    with torch.no_grad():
        answer = network(inputs)
    given = _given(inputs)
    order, worth = session_of(model.SerializeToString()).run([ORDER, WORTHS], given)
    apart = np.stack([order - answer.order.numpy(), worth - answer.worth.numpy()])
    worst = float(np.abs(np.where(given["mask"] > 0.0, apart, 0.0)).max())
    # Written so that nan does not pass.
    if not worst <= TOLERANCE / 2:
        raise ExportFailed(f"ONNX Runtime differs from the trained network by {worst:g}")
    card = {
        "kind": KIND,
        "version": VERSION,
        "tokens_version": TOKENS_VERSION,
        "token_features": list(TOKEN_FEATURES),
        "window_features": list(WINDOW_FEATURES),
        "cref": cref,
        "worth": WORTH,
        "scenario": scenario,
        "decoding": decoding,
        "waits": waits,
        "golden": {name: array.tolist() for name, array in {**given, ORDER: order, WORTHS: worth}.items()},
        "training": dict(training),
        "evaluation": dict(evaluation),
    }
    return store(model, card, directory)


def _states(network: SetPolicy, cref: float, episode: Episode) -> Inputs:
    """Return a few states that the policy comes to in an episode, as one batch."""
    world, found = World(episode), []
    last = min(max(GOLDEN_STEPS), episode.steps - 1)
    while world.t <= last:
        seen = see([world], cref)
        if world.t in GOLDEN_STEPS:
            found.append(seen.inputs)
        with torch.no_grad():
            world.step(starts_of(seen, network(seen.inputs).worth, "knapsack")[0])
    most = max(inputs.mask.shape[1] for inputs in found)
    pad = nn.functional.pad
    return Inputs(
        torch.cat([pad(inputs.tokens, (0, 0, 0, most - inputs.mask.shape[1])) for inputs in found]),
        torch.cat([pad(inputs.mask, (0, most - inputs.mask.shape[1])) for inputs in found]),
        torch.cat([inputs.window for inputs in found]),
    )


def _given(inputs: Inputs) -> dict[str, Rows]:
    return {
        "tokens": inputs.tokens.numpy(),
        "mask": inputs.mask.numpy().astype(np.float32),
        "window": inputs.window.numpy(),
    }


class _Writer(Graph):
    """Adds the layers of torch to a graph."""

    def constant(self, value: NDArray[Any] | torch.Tensor) -> str:
        return super().constant(value.detach().numpy() if isinstance(value, torch.Tensor) else value)

    def number(self, value: float) -> str:
        return self.constant(np.float32(value).reshape(1))

    def linear(self, row: str, layer: nn.Linear, output: str = "") -> str:
        product = self.node("MatMul", [row, self.constant(layer.weight.detach().T.contiguous())])
        return self.node("Add", [product, self.constant(layer.bias)], output)

    def norm(self, row: str, layer: nn.LayerNorm) -> str:
        names = [row, self.constant(layer.weight), self.constant(layer.bias)]
        return self.node("LayerNormalization", names, axis=-1, epsilon=layer.eps)

    def gru(self, window: str, layer: nn.GRU) -> str:
        """Add a GRU over [batch, steps, features]; return its last memory, [batch, H]."""
        size, weights = layer.hidden_size, dict(layer.named_parameters())

        def gates(values: torch.Tensor) -> Rows:
            parts = np.split(values.detach().numpy(), 3)
            return np.concatenate([parts[k] for k in GATES])

        steps_first = self.node("Transpose", [window], perm=[1, 0, 2])
        bias = np.concatenate([gates(weights["bias_ih_l0"]), gates(weights["bias_hh_l0"])])
        names = [
            steps_first,
            *(self.constant(gates(w)[None]) for w in (weights["weight_ih_l0"], weights["weight_hh_l0"])),
        ]
        names.append(self.constant(bias[None]))
        last = f"memory_{len(self.nodes)}"
        self.nodes.append(helper.make_node("GRU", names, ["", last], hidden_size=size, linear_before_reset=1))
        return self.node("Squeeze", [last, self.constant(np.array([0], dtype=np.int64))])


def graph_of(network: SetPolicy) -> onnx.ModelProto:
    """Return the network's policy and predictor as a graph, checked by ONNX; it carries no metadata yet."""
    writer, predictor = _Writer("constant"), network.predictor
    low = writer.node("Tanh", [writer.linear(writer.gru("window", predictor.memory), predictor.low)])
    high = writer.node("Tanh", [writer.linear(low, predictor.high)])
    foretold = writer.node("Mul", [writer.linear(high, predictor.heads), writer.constant(predictor.spread)])
    writer.node("Add", [foretold, writer.constant(predictor.centre)], "next")
    # The part of the embedding that is alike for all tokens is added once for each state.
    weight = network.embedding.weight.detach().T.contiguous()
    own = weight[: len(TOKEN_FEATURES)]
    row = writer.node("MatMul", ["tokens", writer.constant(own)])
    told = [(low, network.scale_low)] * network.low + [(high, network.scale_high)] * network.high
    at = len(TOKEN_FEATURES)
    axis = writer.constant(np.array([1], dtype=np.int64))
    for vector, scale in told:
        part = weight[at : at + LEVEL] * scale
        at += LEVEL
        shared = writer.node("Unsqueeze", [writer.node("MatMul", [vector, writer.constant(part)]), axis])
        row = writer.node("Add", [row, shared])
    row = writer.node("Add", [row, writer.constant(network.embedding.bias)])
    row = writer.node("Add", [row, _first_row(writer, network)])
    row = writer.norm(row, network.norm)
    absent = writer.node("Mul", [writer.node("Sub", [writer.number(1.0), "mask"]), writer.number(NEVER)])
    absent = writer.node("Unsqueeze", [absent, axis])
    for layer in network.layers:
        assert isinstance(layer, Layer)
        row = _layer(writer, layer, row, absent)
    last = writer.constant(np.array([2], dtype=np.int64))
    for name, head in ((ORDER, network.order), (WORTHS, network.worth)):
        inner = writer.node("Relu", [writer.linear(row, _linear(head, 0))])
        writer.node("Squeeze", [writer.node("Tanh", [writer.linear(inner, _linear(head, 2))]), last], name)
    inputs: dict[str, Shape] = {
        "tokens": [BATCH, JOBS, len(TOKEN_FEATURES)],
        "mask": [BATCH, JOBS],
        "window": [BATCH, WINDOW, len(WINDOW_FEATURES)],
    }
    outputs: dict[str, Shape] = {ORDER: [BATCH, JOBS], WORTHS: [BATCH, JOBS], "next": [BATCH, len(TASKS)]}
    return writer.model("deferral", inputs, outputs)


def _first_row(writer: _Writer, network: SetPolicy) -> str:
    """Return [M, 64] that is the empty token in row 0 and zeros below, as long as the tokens are."""
    shape = writer.node("Shape", ["tokens"])
    rows = writer.node("Slice", [shape, *(writer.constant(np.array([k], dtype=np.int64)) for k in (1, 2))])
    spare = writer.node("Sub", [rows, writer.constant(np.array([1], dtype=np.int64))])
    before = writer.constant(np.array([0, 0], dtype=np.int64))
    after = writer.node("Concat", [spare, writer.constant(np.array([0], dtype=np.int64))], axis=0)
    pads = writer.node("Concat", [before, after], axis=0)
    return writer.node("Pad", [writer.constant(network.empty.detach()[None]), pads])


def _layer(writer: _Writer, layer: Layer, row: str, absent: str) -> str:
    joined = writer.linear(row, layer.joined)
    ends = [writer.constant(np.array([k * WIDTH], dtype=np.int64)) for k in range(4)]
    last = writer.constant(np.array([2], dtype=np.int64))
    query, key, value = (writer.node("Slice", [joined, ends[k], ends[k + 1], last]) for k in range(3))
    turned = writer.node("Transpose", [key], perm=[0, 2, 1])
    likeness = writer.node("Mul", [writer.node("MatMul", [query, turned]), writer.number(WIDTH**-0.5)])
    weights = writer.node("Softmax", [writer.node("Add", [likeness, absent])], axis=-1)
    attended = writer.linear(writer.node("MatMul", [weights, value]), layer.out)
    row = writer.norm(writer.node("Add", [row, attended]), layer.first)
    inner = writer.linear(writer.node("Relu", [writer.linear(row, layer.inner)]), layer.outer)
    return writer.norm(writer.node("Add", [row, inner]), layer.second)


def _linear(stack: nn.Module, place: int) -> nn.Linear:
    assert isinstance(stack, nn.Sequential)
    layer = stack[place]
    assert isinstance(layer, nn.Linear)
    return layer
