"""A policy-value network in torch's own modules, to hold the exported file to."""

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.kit.export import Dense, Layers, Recurrent

FEATURES, HIDDEN = 7, 24

Rows = NDArray[np.float32]


class Peer:
    """The same network in torch's own modules, stepped row by row."""

    def __init__(self, kind: str, actions: int, features: int = FEATURES) -> None:
        torch.manual_seed(0)
        self.kind = kind
        self.cell = torch.nn.LSTMCell(features, HIDDEN) if kind == "lstm" else None
        self.trunk = [torch.nn.Linear(features, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)]
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
        return Layers(**heads, recurrent=Recurrent(*(value.detach().numpy() for value in weights)))

    def answer(self, inputs: dict[str, Rows]) -> dict[str, Rows]:
        """The outputs for the file's inputs."""
        return self.step(inputs["observation"], {name: inputs[name] for name in inputs if name != "observation"})

    @torch.no_grad()
    def step(self, row: Rows, memory: dict[str, Rows]) -> dict[str, Rows]:
        x = torch.from_numpy(row)
        state = {name: torch.from_numpy(value) for name, value in memory.items()}
        after = {}
        if self.cell is not None:
            x, cell = self.cell(x, (state["hidden"], state["cell"]))
            after = {"hidden_next": x, "cell_next": cell}
        else:
            for layer in self.trunk:
                x = torch.tanh(layer(x))
        found = {"logits": self.logits(x), "value": self.value(x), **after}
        return {name: value.numpy() for name, value in found.items()}


def dense(layer: torch.nn.Linear, activation: str = "") -> Dense:
    return Dense(layer.weight.detach().numpy(), layer.bias.detach().numpy(), activation)
