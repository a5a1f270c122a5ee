"""The ONNX graph says what torch says: lstm and mlp, one row or many, over hundreds of steps of memory."""

import numpy as np
import onnxruntime
import pytest

from tests.trainer.autoscaling.export.peer import FEATURES, HIDDEN, Peer, Rows
from trainer.kit.export import ONNX_GATES, TORCH_GATES, Dense, Layers, Recurrent, build

STEPS = 300
TOLERANCE = 1e-5


def session_of(layers: Layers) -> onnxruntime.InferenceSession:
    content = build(layers, "policy").SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, row: Rows, memory: dict[str, Rows]) -> dict[str, Rows]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"observation": row, **memory}), strict=True))


def no_memory(layers: Layers, rows: int) -> dict[str, Rows]:
    return {name: np.zeros((rows, HIDDEN), dtype=np.float32) for name in layers.memory}


@pytest.mark.parametrize("actions", [7, 21])
@pytest.mark.parametrize("kind", ["lstm", "mlp"])
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


def test_dense_layers_lead_to_both_heads() -> None:
    random = np.random.default_rng(3)

    def layer(into: int, out: int, activation: str = "") -> Dense:
        weight = random.normal(size=(out, into)).astype(np.float32)
        return Dense(weight, random.normal(size=out).astype(np.float32), activation)

    layers = Layers(layer(5, 7), layer(5, 1), after=(layer(FEATURES, 4, "Relu"), layer(4, 5, "Tanh")))
    row = random.uniform(size=(3, FEATURES)).astype(np.float32)
    found = run(session_of(layers), row, {})

    def through(values: Rows, dense: Dense) -> Rows:
        linear = values @ dense.weight.T + dense.bias
        return {"Relu": np.maximum(linear, 0), "Tanh": np.tanh(linear), "": linear}[dense.activation]

    shared = through(through(row, layers.after[0]), layers.after[1])
    np.testing.assert_allclose(found["logits"], through(shared, layers.logits), atol=1e-5)
    np.testing.assert_allclose(found["value"], through(shared, layers.value), atol=1e-5)


def test_gates_in_another_order_are_put_in_theirs() -> None:
    layer = Peer("lstm", 7).layers().recurrent
    assert layer is not None
    given, wanted = TORCH_GATES, ONNX_GATES

    def moved(rows: Rows) -> Rows:
        parts = dict(zip(given, np.split(rows, len(given)), strict=True))
        return np.concatenate([parts[gate] for gate in wanted])

    weights = (layer.input_weight, layer.hidden_weight, layer.input_bias, layer.hidden_bias)
    other = Recurrent(*map(moved, weights), gates=wanted)
    peer = Peer("lstm", 7).layers()
    row = np.linspace(0, 1, FEATURES, dtype=np.float32)[None]
    found = [
        run(session_of(Layers(peer.logits, peer.value, recurrent=one)), row, no_memory(peer, 1))["logits"]
        for one in (layer, other)
    ]
    assert found[0].tobytes() == found[1].tobytes()
