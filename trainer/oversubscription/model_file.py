"""The model file of the learned policy: ONNX with a card, named after its content, checked when it is read.

Inputs `cluster` (batch, F) and `local` (batch, N, f); outputs `q` (batch, N, actions), of which each subscriber takes
the largest, and `value` (batch, 1), the cluster's own part. float32; the first axis is free. The card is JSON under the
metadata key `trimtab`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from agent.models.file import session_of
from agent.oversubscription.rate_model import KIND
from domain.observations.oversubscription import OBS_O_EXT_VERSION, OBS_O_VERSION, SCALE, cluster_names, local_names
from simulator.oversubscription.batch import OversubscriptionSimulation
from simulator.oversubscription.scenario import Scenario
from trainer.kit.export import BATCH, ExportFailed, Graph, Shape, store
from trainer.oversubscription.c2marl import Config, Side, ValueDecomposition
from trainer.oversubscription.policies import scenario_sha256

VERSION = 1
PARITY = 1e-4
GOLDEN_ROWS = 3
Rows = NDArray[np.float32]


def export(
    network: ValueDecomposition,
    config: Config,
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
    session = session_of(model.SerializeToString())
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
    return store(model, card, directory)


def _week_seen(network: ValueDecomposition, config: Config, scenario: Scenario) -> tuple[Rows, Rows]:
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


def _graph(network: ValueDecomposition, config: Config, scenario: Scenario) -> onnx.ModelProto:
    """Return the network as a graph."""
    graph = Graph()

    def stack(row: str, layers: list[tuple[Rows, Rows]], name: str) -> str:
        for i, (weight, bias) in enumerate(layers):
            product = graph.node("MatMul", [row, graph.constant(weight)], f"{name}_{i}_product")
            row = graph.node("Add", [product, graph.constant(bias)], f"{name}_{i}")
            if i < len(layers) - 1:
                row = graph.node("Relu", [row], f"{row}_active")
        return row

    sides = stack(
        graph.node("Transpose", ["local"], "by_subscriber", perm=[1, 0, 2]), _layers_of(network.sides), "side"
    )
    graph.node("Transpose", [sides], "q", perm=[1, 0, 2])
    value = stack("cluster", [(weight[0], bias[0]) for weight, bias in _layers_of(network.cluster)], "cluster_value")
    graph.node("Identity", [value], "value")
    extended = config.observation == "obs-o-ext"
    features, own = len(cluster_names(scenario.subscribers, extended)), len(local_names(extended))
    inputs: dict[str, Shape] = {"cluster": [BATCH, features], "local": [BATCH, scenario.subscribers, own]}
    outputs: dict[str, Shape] = {"q": [BATCH, scenario.subscribers, len(scenario.actions)], "value": [BATCH, 1]}
    return graph.model("oversubscription", inputs, outputs)


def _layers_of(stack: torch.nn.Sequential) -> list[tuple[Rows, Rows]]:
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in stack if isinstance(layer, Side)]
