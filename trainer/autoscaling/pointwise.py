"""The element-by-element half of a long short-term memory cell, forward and backward, one fused pass over a batch.

Numba compiles these loops to vector instructions; the matrix products around them are torch's. Gates stand in the
order of ONNX: input, output, forget, candidate. Every array is float32 and contiguous; B is the batch, H the hidden
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

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
