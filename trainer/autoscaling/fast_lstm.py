"""The LSTM layer of `trainer.autoscaling.ppo_lstm`, fast on one CPU core: unrolled over time, with its gradient.

Input, recurrent and bias weights are one matrix, so that each step is one matrix product of torch and one fused pass
over the batch, which numba compiles to vector instructions; the weights' gradient is a few large products over many
steps. All buffers are reused. Gates are in the order of ONNX: input, output, forget, candidate. Every array is float32
and contiguous; B is the batch, H the hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Function = TypeVar("Function", bound=Callable[..., Any])

# tanh(x) = x P(x²) / Q(x²) within 4e-7 on -8.5..8.5, where it reaches 1 in 32 bits; fitted by weighted least squares.
LARGEST = np.float32(8.5)
P0, P1, P2 = np.float32(0.99999994), np.float32(0.12949891), np.float32(0.0029538784)
P3, P4, P5 = np.float32(9.573749e-06), np.float32(-1.3718957e-08), np.float32(2.0723994e-11)
Q1, Q2, Q3 = np.float32(0.46283194), np.float32(0.023898302), np.float32(0.00023270334)
ONE, HALF = np.float32(1.0), np.float32(0.5)


def compiled(function: Function, **options: Any) -> Function:
    """Compile with numba, keeping the type; products may be fused with sums, nothing else is rearranged."""
    return cast(
        Function,
        numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"}, **options)(function),
    )


def _tanh(x: np.float32) -> np.float32:
    """Return tanh within 4e-7, by arithmetic that vectorises."""
    x = min(max(x, -LARGEST), LARGEST)
    u = x * x
    top = x * (P0 + u * (P1 + u * (P2 + u * (P3 + u * (P4 + u * P5)))))
    return np.float32(top / (ONE + u * (Q1 + u * (Q2 + u * Q3))))


fast_tanh = compiled(_tanh, inline="always")


def _sigmoid(x: np.float32) -> np.float32:
    """Return the logistic function within 2e-7."""
    return np.float32(HALF + HALF * fast_tanh(HALF * x))


fast_sigmoid = compiled(_sigmoid, inline="always")


def _lstm_forward(
    gates: Floats,
    cell_before: Floats,
    keep: Floats,
    keep_next: Floats,
    cell: Floats,
    output: Floats,
    input_next: Floats,
) -> None:
    """Turn pre-activations into activations and step the cell.

    gates [B, 4H]: pre-activations in, activations out. cell_before [B, H]: as the step before left it. keep, keep_next
    [B]: 0 where an episode starts at this step, at the next one, else 1. cell, output [B, H]: written. input_next
    [B, >= H]: the first H columns become the output, zeroed where an episode starts next.
    """
    rows, size = cell.shape
    # Short loops over few arrays: the compiler vectorises only what it can check for overlap.
    for b in range(rows):
        soft, candidate = gates[b, : 3 * size], gates[b, 3 * size :]
        for j in range(3 * size):
            soft[j] = fast_sigmoid(soft[j])
        for j in range(size):
            candidate[j] = fast_tanh(candidate[j])
        enter, out, forget = gates[b, :size], gates[b, size : 2 * size], gates[b, 2 * size : 3 * size]
        before, after, shown, fed = cell_before[b], cell[b], output[b], input_next[b, :size]
        old, new = keep[b], keep_next[b]
        for j in range(size):
            after[j] = forget[j] * (old * before[j]) + enter[j] * candidate[j]
        for j in range(size):
            shown[j] = out[j] * fast_tanh(after[j])
        for j in range(size):
            fed[j] = new * shown[j]


lstm_forward = compiled(_lstm_forward)


def _lstm_backward(
    gates: Floats,
    cell_before: Floats,
    cell: Floats,
    keep: Floats,
    keep_next: Floats,
    grad_output: Floats,
    grad_hidden: Floats,
    grad_cell: Floats,
) -> None:
    """Turn activations into gradients of the pre-activations, in place.

    grad_output [B, H]: gradient of this step's output from above. grad_hidden [B, H]: gradient of the hidden input of
    the next step. grad_cell [B, H]: gradient of this step's cell from the next one; becomes that of the cell before.
    """
    rows, size = cell.shape
    flat = np.empty(size, dtype=np.float32)
    pull = np.empty(size, dtype=np.float32)
    for b in range(rows):
        enter, out = gates[b, :size], gates[b, size : 2 * size]
        forget, candidate = gates[b, 2 * size : 3 * size], gates[b, 3 * size :]
        after, before, above, fed, carried = cell[b], cell_before[b], grad_output[b], grad_hidden[b], grad_cell[b]
        old, new = keep[b], keep_next[b]
        for j in range(size):
            flat[j] = fast_tanh(after[j])
        for j in range(size):
            pull[j] = above[j] + new * fed[j]
        for j in range(size):
            carried[j] += pull[j] * out[j] * (ONE - flat[j] * flat[j])
        for j in range(size):
            out[j] = pull[j] * flat[j] * (out[j] * (ONE - out[j]))
        for j in range(size):
            flat[j] = carried[j] * enter[j]
            pull[j] = carried[j] * candidate[j]
        for j in range(size):
            enter[j] = pull[j] * (enter[j] * (ONE - enter[j]))
        for j in range(size):
            candidate[j] = flat[j] * (ONE - candidate[j] * candidate[j])
        for j in range(size):
            flat[j] = carried[j] * (old * before[j])
        for j in range(size):
            carried[j] *= old * forget[j]
        for j in range(size):
            forget[j] = flat[j] * (forget[j] * (ONE - forget[j]))


lstm_backward = compiled(_lstm_backward)


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


class Actor(ABC):
    """Steps B copies of a network side by side without gradients, and keeps the memory of their episodes."""

    device = torch.device("cpu")

    @property
    @abstractmethod
    def memory(self) -> tuple[Tensor, ...]:
        """The memory, tensors [B, H] that may be written to before the next step."""

    @abstractmethod
    def step(self, observations: Tensor) -> Tensor:
        """Return logits and value [B, A + 1] for observations [B, F]; the next step may overwrite the answer."""

    def answer(self, observations: Floats) -> Floats:
        """Return the same for arrays."""
        answer: Floats = self.step(torch.from_numpy(observations).to(self.device)).cpu().numpy()
        return answer

    def peek(self, observations: Floats) -> Floats:
        """Return the values [B] of observations, leaving the memory as it is."""
        memory = self.copied_memory()
        values: Floats = self.answer(observations)[:, -1].copy()
        self.remember(memory)
        return values

    def copied_memory(self) -> tuple[Tensor, ...]:
        """Return a copy of the memory."""
        return tuple(part.clone() for part in self.memory)

    def remember(self, memory: Iterable[Tensor]) -> None:
        """Replace the memory."""
        for part, kept in zip(self.memory, memory, strict=True):
            part.copy_(kept)

    def forget(self, where: NDArray[np.bool_]) -> None:
        """Empty the memory of some copies."""
        rows = torch.from_numpy(np.flatnonzero(where)).to(self.device)
        for part in self.memory:
            part.index_fill_(0, rows, 0.0)


class LstmActor(Actor):
    """One step at a time of the same layer, for gathering experience."""

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
        self._weight, self._head_bias = weight.detach().clone(), head_bias.detach().clone()
        self._head = head.detach().t().contiguous()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Hidden and cell."""
        return self._inputs[:, : self.hidden_size], self._cell

    def step(self, observations: Tensor) -> Tensor:
        """Return logits and value [B, A + 1] for observations [B, F]; the next step overwrites them."""
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


def _choose(
    answer: Floats,
    masks: NDArray[np.bool_],
    uniforms: NDArray[np.float64],
    greedy: NDArray[np.bool_],
    actions: NDArray[np.int64],
    log_probs: Floats,
    values: Floats,
) -> None:
    """Choose by logits and value [B, A + 1]; masks [B, heads, C], uniforms, actions [B, heads]; greedy [B]."""
    rows, heads, choices = masks.shape
    for b in range(rows):
        total = 0.0
        for k in range(heads):
            first = k * choices
            best, highest = -1, -np.inf
            for c in range(choices):
                if masks[b, k, c] and answer[b, first + c] > highest:
                    best, highest = c, answer[b, first + c]
            weight = 0.0
            for c in range(choices):
                if masks[b, k, c]:
                    weight += np.exp(answer[b, first + c] - highest)
            chosen = best
            if not greedy[b]:
                left = uniforms[b, k] * weight
                for c in range(choices):
                    if masks[b, k, c]:
                        chosen = c
                        left -= np.exp(answer[b, first + c] - highest)
                        if left < 0.0:
                            break
            actions[b, k] = chosen
            total += answer[b, first + chosen] - highest - np.log(weight)
        log_probs[b] = total
        values[b] = answer[b, heads * choices]


choose = compiled(_choose)
