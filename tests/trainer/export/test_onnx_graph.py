"""The ONNX graph says what torch says: lstm, gru and mlp, one row or many, over hundreds of steps of memory."""

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from trainer.onnx_graph import Dense, Layers, Recurrent, build

FEATURES, HIDDEN, STEPS = 7, 24, 300
TOLERANCE = 1e-5

Rows = NDArray[np.float32]


class Peer:
    """The same network in torch's own modules, stepped row by row."""

    def __init__(self, kind: str, actions: int) -> None:
        torch.manual_seed(0)
        self.kind = kind
        cells = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}
        self.cell = cells[kind](FEATURES, HIDDEN) if kind in cells else None
        self.trunk = [torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)]
        self.logits, self.value = torch.nn.Linear(HIDDEN, actions), torch.nn.Linear(HIDDEN, 1)
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 0.5)

    def parameters(self) -> list[torch.nn.Parameter]:
        modules = [self.logits, self.value, *([self.cell] if self.cell is not None else self.trunk)]
        return [parameter for module in modules for parameter in module.parameters()]

    def layers(self) -> Layers:
        heads = {"logits": dense(self.logits), "value": dense(self.value)}
        if self.cell is None:
            return Layers(**heads, after=tuple(dense(layer, "Tanh") for layer in self.trunk))
        cell = self.cell
        weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
        return Layers(**heads, recurrent=Recurrent(self.kind, *(value.detach().numpy() for value in weights)))

    @torch.no_grad()
    def step(self, row: Rows, memory: dict[str, Rows]) -> dict[str, Rows]:
        x = torch.from_numpy(row)
        state = {name: torch.from_numpy(value) for name, value in memory.items()}
        after = {}
        if self.kind == "lstm":
            x, cell = self.cell(x, (state["hidden"], state["cell"]))
            after = {"hidden_next": x, "cell_next": cell}
        elif self.kind == "gru":
            x = self.cell(x, state["hidden"])
            after = {"hidden_next": x}
        else:
            for layer in self.trunk:
                x = torch.tanh(layer(x))
        found = {"logits": self.logits(x), "value": self.value(x), **after}
        return {name: value.numpy() for name, value in found.items()}


def dense(layer: torch.nn.Linear, activation: str = "") -> Dense:
    return Dense(layer.weight.detach().numpy(), layer.bias.detach().numpy(), activation)


def session_of(layers: Layers) -> onnxruntime.InferenceSession:
    content = build(layers, "policy").SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, row: Rows, memory: dict[str, Rows]) -> dict[str, Rows]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"observation": row, **memory}), strict=True))


def no_memory(layers: Layers, rows: int) -> dict[str, Rows]:
    return {name: np.zeros((rows, HIDDEN), dtype=np.float32) for name in layers.memory}


@pytest.mark.parametrize("actions", [7, 21])
@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_the_graph_agrees_with_torch_while_each_carries_its_own_memory(kind: str, actions: int) -> None:
    peer = Peer(kind, actions)
    layers = peer.layers()
    session = session_of(layers)
    random = np.random.default_rng(1)
    ours, theirs, worst = no_memory(layers, 1), no_memory(layers, 1), 0.0
    for _ in range(STEPS):
        row = random.uniform(0.0, 1.0, size=(1, FEATURES)).astype(np.float32)
        found, wanted = run(session, row, ours), peer.step(row, theirs)
        assert found["logits"].shape == (1, actions)
        assert found["value"].shape == (1, 1)
        worst = max(worst, *(float(np.abs(found[name] - wanted[name]).max()) for name in wanted))
        ours = {name: found[f"{name}_next"] for name in layers.memory}
        theirs = {name: wanted[f"{name}_next"] for name in layers.memory}
    assert worst <= TOLERANCE


@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_a_row_gets_the_same_answer_alone_and_among_63_others(kind: str) -> None:
    layers = Peer(kind, 7).layers()
    session = session_of(layers)
    random = np.random.default_rng(2)
    rows = random.uniform(0.0, 1.0, size=(64, FEATURES)).astype(np.float32)
    memory = {name: random.uniform(-1, 1, size=(64, HIDDEN)).astype(np.float32) for name in layers.memory}
    together = run(session, rows, memory)
    for at in range(64):
        alone = run(session, rows[at : at + 1], {name: value[at : at + 1] for name, value in memory.items()})
        for name, value in alone.items():
            np.testing.assert_allclose(value[0], together[name][at], rtol=0, atol=1e-6)


def test_dense_layers_before_the_memory_and_a_value_of_its_own_are_kept_apart() -> None:
    random = np.random.default_rng(3)

    def layer(into: int, out: int, activation: str = "") -> Dense:
        weight = random.normal(size=(out, into)).astype(np.float32)
        return Dense(weight, random.normal(size=out).astype(np.float32), activation)

    layers = Layers(
        logits=layer(5, 7),
        value=layer(6, 1),
        before=(layer(FEATURES, 4, "Relu"),),
        after=(layer(4, 5, "Tanh"),),
        value_after=(layer(4, 6, "Tanh"),),
    )
    row = random.uniform(size=(3, FEATURES)).astype(np.float32)
    found = run(session_of(layers), row, {})

    def through(values: Rows, dense: Dense) -> Rows:
        linear = values @ dense.weight.T + dense.bias
        return {"Relu": np.maximum(linear, 0), "Tanh": np.tanh(linear), "": linear}[dense.activation]

    shared = through(row, layers.before[0])
    np.testing.assert_allclose(found["logits"], through(through(shared, layers.after[0]), layers.logits), atol=1e-5)
    np.testing.assert_allclose(found["value"], through(through(shared, layers.value_after[0]), layers.value), atol=1e-5)
