"""A long short-term memory layer unrolled over time on one CPU core, with episode starts inside, and its gradient.

Input, recurrent and bias weights are one matrix, so that each step is one matrix product and one fused pass
(`trainer.autoscaling.pointwise`), and the weights' gradient is a few large products over many steps. All buffers are
reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.autoscaling.pointwise import Floats, lstm_backward, lstm_forward

STEPS_PER_PRODUCT = 8
"""Steps whose share of the weights' gradient is computed at once: as many as stay in the processor's cache."""


@contextmanager
def fast_products() -> Iterator[None]:
    """Let torch take oneDNN for 32-bit matrix products: twice as fast as MKL on AMD processors, to the same accuracy.

    Torch does so only where it may also round inputs to bfloat16, which oneDNN does on processors with matrix tiles
    (AMX) alone; there nothing is changed. Numbers too small for 32 bits count as zero meanwhile: gradients that fade
    into them make a step many times slower.
    """
    before = torch.get_float32_matmul_precision()
    if not torch.cpu._is_amx_tile_supported():
        torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)


class LstmUnroll:
    """Buffers for `steps` steps of `batch` copies; T, B, F, H below are steps, batch, features and hidden size.

    observations [T, B, F], starts [T, B] (1 where an episode starts, so that the memory from before is dropped), hidden
    and cell [B, H] (the memory before the first step) are filled by the caller; `outputs` [T, B, H] is the result.
    """

    def __init__(self, steps: int, batch: int, features: int, hidden: int) -> None:
        self.steps, self.batch, self.features, self.hidden = steps, batch, features, hidden
        self._inputs = torch.zeros(steps + 1, batch, hidden + features + 1)
        self._inputs[:, :, -1] = 1.0
        self._gates = torch.empty(steps, batch, 4 * hidden)
        self._cells = torch.zeros(steps + 1, batch, hidden)
        self._keep = torch.ones(steps + 1, batch)
        self.outputs = torch.empty(steps, batch, hidden)
        self._grad_hidden = torch.empty(batch, hidden)
        self._grad_cell = torch.empty(batch, hidden)
        self._input_views = [self._inputs[t] for t in range(steps)]
        self._gate_views = [self._gates[t] for t in range(steps)]
        self._rows = [self._step_rows(t) for t in range(steps)]

    def _step_rows(self, t: int) -> tuple[Floats, ...]:
        """Return what the fused passes of a step read and write: gates, cell before, cell, keeps, output, input."""
        arrays = (
            self._gates[t],
            self._cells[t],
            self._cells[t + 1],
            self._keep[t],
            self._keep[t + 1],
            self.outputs[t],
            self._inputs[t + 1],
        )
        return tuple(array.numpy() for array in arrays)

    def fill(self, observations: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor) -> None:
        """Copy in a stretch of experience; shapes as in the class."""
        self._inputs[: self.steps, :, self.hidden : -1].copy_(observations)
        torch.sub(1.0, starts, out=self._keep[: self.steps])
        torch.mul(hidden, self._keep[0].unsqueeze(1), out=self._inputs[0, :, : self.hidden])
        self._cells[0].copy_(cell)

    def forward(self, weight: Tensor) -> Tensor:
        """Run all steps with `weight` [H + F + 1, 4 H] and return `outputs`."""
        for t in range(self.steps):
            torch.mm(self._input_views[t], weight, out=self._gate_views[t])
            gates, before, cell, keep, keep_next, output, fed = self._rows[t]
            lstm_forward(gates, before, keep, keep_next, cell, output, fed)
        return self.outputs

    def backward(self, weight: Tensor, grad_outputs: Tensor) -> Tensor:
        """Return the gradient of `weight` for that of the outputs; valid once after `forward`, whose gates it uses."""
        recurrent = weight[: self.hidden].t().contiguous()
        grad_weight = torch.zeros_like(weight)
        self._grad_hidden.zero_()
        self._grad_cell.zero_()
        grad_hidden, grad_cell = self._grad_hidden.numpy(), self._grad_cell.numpy()
        above = grad_outputs.numpy()
        last = self.steps
        for t in range(self.steps - 1, -1, -1):
            gates, before, cell, keep, keep_next, _, _ = self._rows[t]
            lstm_backward(gates, before, cell, keep, keep_next, above[t], grad_hidden, grad_cell)
            if t > 0:
                torch.mm(self._gate_views[t], recurrent, out=self._grad_hidden)
            if t % STEPS_PER_PRODUCT == 0:
                inputs = self._inputs[t:last].view(-1, weight.shape[0])
                grad_weight.addmm_(inputs.t(), self._gates[t:last].view(-1, weight.shape[1]))
                last = t
        return grad_weight


class UnrolledLstm(torch.autograd.Function):
    """Torch's view of `LstmUnroll`: differentiable in the weights, not in observations and memory."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, unroll: LstmUnroll) -> Tensor:
        """Return the outputs [T, B, H] of a filled unroll."""
        ctx.unroll = unroll
        ctx.save_for_backward(weight)
        return unroll.forward(weight.detach())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the weights."""
        (weight,) = ctx.saved_tensors
        return ctx.unroll.backward(weight, grad_outputs[0].contiguous()), None


def lstm_reference(weight: Tensor, observations: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
    """Return the same outputs [T, B, H] in plain torch operations: for other devices, and to check the fast form."""
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


class LstmActor:
    """One step at a time of the same layer without gradients, for gathering experience; it keeps the memory."""

    def __init__(self, weight: Tensor, head: Tensor, head_bias: Tensor, batch: int) -> None:
        """Take weight [H + F + 1, 4 H] and the heads [A + 1, H], [A + 1] (logits, then value) by copy."""
        self.hidden_size = head.shape[1]
        self._inputs = torch.zeros(batch, weight.shape[0])
        self._inputs[:, -1] = 1.0
        self._gates = torch.empty(batch, weight.shape[1])
        self._cell, self._cell_next = torch.zeros(2, batch, self.hidden_size).unbind()
        self._output = torch.zeros(batch, self.hidden_size)
        self._answer = torch.empty(batch, head.shape[0])
        self._keep = np.ones(batch, dtype=np.float32)
        self.load(weight, head, head_bias)

    def load(self, weight: Tensor, head: Tensor, head_bias: Tensor) -> None:
        """Take new weights; the memory stays."""
        self._weight, self._head_bias = weight.detach().clone(), head_bias.detach().clone()
        self._head = head.detach().t().contiguous()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Hidden and cell [B, H]; they may be written to before the next step."""
        return self._inputs[:, : self.hidden_size], self._cell

    def step(self, observations: Tensor) -> Tensor:
        """Return logits and value [B, A + 1] for observations [B, F]; the next step overwrites the answer."""
        self._inputs[:, self.hidden_size : -1].copy_(observations)
        torch.mm(self._inputs, self._weight, out=self._gates)
        lstm_forward(
            self._gates.numpy(),
            self._cell.numpy(),
            self._keep,
            self._keep,
            self._cell_next.numpy(),
            self._output.numpy(),
            self._inputs.numpy(),
        )
        self._cell, self._cell_next = self._cell_next, self._cell
        return torch.addmm(self._head_bias, self._output, self._head, out=self._answer)
