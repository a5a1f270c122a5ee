"""Policy-value networks: one recurrent layer (or a small feed-forward trunk) with a head of logits and one of value."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from domain.errors import BadInput
from trainer.autoscaling.fast_lstm import LstmActor, LstmUnroll, UnrolledLstm

MLP_WIDTHS = (64, 64)
Memory = tuple[Tensor, ...]


class NetworkKind(StrEnum):
    """The trunk: a long short-term memory layer as published, or two layers of tanh without memory."""

    LSTM = "lstm"
    MLP = "mlp"


Actor: TypeAlias = "LstmActor | TorchActor"
"""Steps B copies of a network side by side without gradients; its memory [B, H] may be written to between steps."""


class PolicyValueNetwork(nn.Module):
    """Observations in, action logits and value out (autoscaler specification §10).

    features: F. logits: A = heads x choices. hidden: memory size H (recurrent kinds). Heads: `policy` and `value`,
    linear. Trunks: `LstmTrunk`, `MlpTrunk`. Orthogonal initialisation from `seed`, gain 0.01 for the logits and 1
    elsewhere. Raises BadInput for sizes below 1.
    """

    def __init__(
        self,
        kind: NetworkKind,
        features: int,
        logits: int,
        hidden: int = 128,
        *,
        forget_bias: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(features, logits, hidden) < 1:
            raise BadInput("features, logits, hidden", (features, logits, hidden), "give 1 or more of each")
        generator = torch.Generator().manual_seed(seed)
        self.kind, self.features, self.logits = NetworkKind(kind), features, logits
        self.trunk: LstmTrunk | MlpTrunk
        if self.kind is NetworkKind.LSTM:
            self.trunk = LstmTrunk(features, hidden, forget_bias, generator)
        else:
            self.trunk = MlpTrunk(features, generator)
        self.policy = _linear(self.trunk.width, logits, 0.01, generator)
        self.value = _linear(self.trunk.width, 1, 1.0, generator)

    @property
    def memory_names(self) -> tuple[str, ...]:
        """Names of the memory tensors in order, as in a model file."""
        return self.trunk.memory_names

    @property
    def hidden_size(self) -> int:
        """H, the size of each memory tensor; 0 without memory."""
        return self.trunk.width if self.memory_names else 0

    def no_memory(self, batch: int) -> Memory:
        """Return the memory [B, H] at an episode's start."""
        like = self.value.weight
        return tuple(like.new_zeros(batch, self.hidden_size) for _ in self.memory_names)

    def copied_weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights by name, without gradients."""
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}

    def head(self) -> tuple[Tensor, Tensor]:
        """Return weights [A + 1, H] and biases [A + 1] of both heads together: logits, then value."""
        return torch.cat([self.policy.weight, self.value.weight]), torch.cat([self.policy.bias, self.value.bias])

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return logits [T, B, A] and values [T, B] with gradients.

        observations [T, B, F]; starts [T, B], 1 where an episode starts (the memory is dropped there); memory [B, H]
        before the first step. Only one unroll of a size may wait for its gradient at a time: buffers are reused.
        """
        output = self.trunk.unroll(observations, starts, memory)
        both = nn.functional.linear(output, *self.head())
        return both[..., :-1], both[..., -1]

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """Return logits [B, A], values [B] and the next memory for observations [B, F], in plain torch operations."""
        output, memory = self.trunk.step(observations, memory)
        both = nn.functional.linear(output, *self.head())
        return both[:, :-1], both[:, -1], memory

    def actor(self, batch: int) -> Actor:
        """Return an actor with today's weights and no memory yet."""
        trunk = self.trunk
        if isinstance(trunk, LstmTrunk) and trunk.fast:
            return LstmActor(trunk.weight, *self.head(), batch)
        return TorchActor(self, batch)


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class LstmTrunk(nn.Module):
    """Long short-term memory with one bias vector; `weight` [H + F + 1, 4 H].

    Rows: hidden, features, bias. Columns: gates in the order input, output, forget, candidate.
    """

    memory_names: tuple[str, ...] = ("hidden", "cell")

    def __init__(self, features: int, hidden: int, forget_bias: float, generator: torch.Generator) -> None:
        super().__init__()
        self.width = hidden
        weight = torch.zeros(hidden + features + 1, 4 * hidden)
        nn.init.orthogonal_(weight[:hidden], generator=generator)
        nn.init.orthogonal_(weight[hidden:-1], generator=generator)
        weight[-1, 2 * hidden : 3 * hidden] = forget_bias
        self.weight = nn.Parameter(weight)
        self._unrolls: dict[tuple[int, int], LstmUnroll] = {}

    @property
    def fast(self) -> bool:
        """Whether the weights are where the fused form runs: 32 bits, on a processor."""
        return self.weight.device.type == "cpu" and self.weight.dtype is torch.float32

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> Tensor:
        """Return the outputs [T, B, H]."""
        hidden, cell = memory
        if not self.fast:
            return lstm_reference(self.weight, observations, starts, hidden, cell)
        steps, batch, features = observations.shape
        found = self._unrolls.get((steps, batch))
        if found is None:
            found = self._unrolls[steps, batch] = LstmUnroll(steps, batch, features, self.width)
        found.fill(observations, starts, hidden, cell)
        outputs: Tensor = cast(Any, UnrolledLstm).apply(self.weight, found)
        return outputs

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the output [B, H] and the next memory."""
        hidden, cell = lstm_step(self.weight, observations, *memory)
        return hidden, (hidden, cell)


def lstm_reference(weight: Tensor, observations: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
    """Return the outputs [T, B, H] of the layer in plain torch operations; the fast form gives the same."""
    outputs = []
    for seen, start in zip(observations, starts, strict=True):
        keep = (1.0 - start).unsqueeze(1)
        hidden, cell = lstm_step(weight, seen, hidden * keep, cell * keep)
        outputs.append(hidden)
    return torch.stack(outputs)


def lstm_step(weight: Tensor, seen: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden and cell [B, H] after one step on `seen` [B, F]."""
    size = hidden.shape[1]
    gates = torch.addmm(weight[-1], torch.cat([hidden, seen], dim=1), weight[:-1])
    enter, out, forget = torch.sigmoid(gates[:, : 3 * size]).chunk(3, dim=1)
    cell = forget * cell + enter * torch.tanh(gates[:, 3 * size :])
    return out * torch.tanh(cell), cell


class MlpTrunk(nn.Module):
    """Two layers of 64 with tanh and no memory: it sees the present observation alone."""

    memory_names: tuple[str, ...] = ()

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.width = MLP_WIDTHS[-1]
        sizes = (features, *MLP_WIDTHS)
        self.layers = nn.ModuleList(
            _linear(inputs, outputs, math.sqrt(2.0), generator)
            for inputs, outputs in zip(sizes, MLP_WIDTHS, strict=False)
        )

    def unroll(self, observations: Tensor, starts: Tensor, memory: Memory) -> Tensor:
        """Return the outputs [T, B, 64]."""
        return self.step(observations, memory)[0]

    def step(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the output [..., 64]; there is no memory."""
        for layer in self.layers:
            observations = torch.tanh(layer(observations))
        return observations, memory


class TorchActor:
    """An actor for any trunk and device, in plain torch operations."""

    def __init__(self, network: PolicyValueNetwork, batch: int) -> None:
        self._network = network
        self.memory = network.no_memory(batch)

    @torch.no_grad()
    def step(self, observations: Tensor) -> Tensor:
        """Return logits and value [B, A + 1]."""
        logits, values, memory = self._network.step(observations, self.memory)
        # Copied in place, so that whoever holds the memory sees it change.
        for kept, new in zip(self.memory, memory, strict=True):
            kept.copy_(new)
        return torch.cat([logits, values.unsqueeze(1)], dim=1)
