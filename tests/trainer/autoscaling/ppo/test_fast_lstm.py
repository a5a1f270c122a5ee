"""The fused LSTM is the plain one: outputs, memory and gradients, with episodes that start in between."""

import numpy as np
import pytest
import torch

from trainer.autoscaling.fast_lstm import (
    LstmActor,
    LstmUnroll,
    UnrolledLstm,
    compiled,
    fast_products,
    fast_sigmoid,
    fast_tanh,
)
from trainer.autoscaling.ppo_lstm import LstmTrunk


@compiled
def curves(x, tanh, sigmoid):
    for j in range(x.size):
        tanh[j] = fast_tanh(x[j])
        sigmoid[j] = fast_sigmoid(x[j])


def experience(steps=11, batch=5, features=3, hidden=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(hidden + features + 1, 4 * hidden, generator=generator) * 0.5
    observations = torch.rand(steps, batch, features, generator=generator)
    starts = (torch.rand(steps, batch, generator=generator) < 0.2).float()
    hidden_before, cell_before = torch.randn(2, batch, hidden, generator=generator).unbind()
    grad = torch.randn(steps, batch, hidden, generator=generator)
    return weight, observations, starts, hidden_before, cell_before, grad


def plain(weight):
    """The layer in plain torch operations, with these weights of 64 bits."""
    size = weight.shape[1] // 4
    trunk = LstmTrunk(weight.shape[0] - size - 1, size, 0.0, torch.Generator())
    del trunk.weight
    trunk.weight = weight
    assert not trunk.fast
    return trunk


def fused(weight, observations, starts, hidden, cell):
    unroll = LstmUnroll(*observations.shape, hidden.shape[1])
    unroll.fill(observations, starts, hidden, cell)
    return UnrolledLstm.apply(weight, unroll)


def test_fast_curves_are_within_half_a_millionth_and_saturate() -> None:
    x = np.concatenate([np.linspace(-12, 12, 20_001), [-1e30, 1e30, 0.0]]).astype(np.float32)
    tanh, sigmoid = np.empty_like(x), np.empty_like(x)
    curves(x, tanh, sigmoid)
    assert np.abs(tanh - np.tanh(x.astype(np.float64))).max() < 5e-7
    assert np.abs(sigmoid - 1.0 / (1.0 + np.exp(-x.astype(np.float64).clip(-60, 60)))).max() < 5e-7
    assert tanh[-1] == 0.0
    assert sigmoid[-1] == 0.5


@pytest.mark.exhaustive
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(1, 1, 1), (8, 4, 8), (11, 5, 8), (17, 3, 33)])
def test_fused_outputs_and_gradients_are_those_of_plain_torch_in_64_bits(steps, batch, hidden) -> None:
    weight, observations, starts, h, c, grad = experience(steps, batch, 3, hidden)
    exact = weight.double().requires_grad_()
    expected = plain(exact).unroll(observations.double(), starts.double(), (h.double(), c.double()))
    expected.backward(grad.double())
    with fast_products():
        mine = weight.clone().requires_grad_()
        outputs = fused(mine, observations, starts, h, c)
        outputs.backward(grad)
    assert exact.grad is not None
    assert mine.grad is not None
    torch.testing.assert_close(outputs.double(), expected, atol=3e-6, rtol=0)
    torch.testing.assert_close(mine.grad.double(), exact.grad, atol=3e-5, rtol=1e-4)


def test_the_plain_form_passes_torchs_own_gradient_check() -> None:
    weight, observations, starts, h, c, _ = experience(4, 2, 2, 3)
    seen, begun, *memory = (x.double() for x in (observations, starts, h, c))
    assert torch.autograd.gradcheck(lambda w: plain(w).unroll(seen, begun, memory), weight.double().requires_grad_())


def test_nothing_before_an_episodes_start_reaches_what_follows_it() -> None:
    weight, observations, starts, h, c, _ = experience()
    starts[:] = 0.0
    starts[6, 2] = 1.0
    before = fused(weight, observations, starts, h, c).clone()
    observations[:6, 2] += 1.0
    h[2] += 1.0
    after = fused(weight, observations, starts, h, c)
    assert torch.equal(before[6:], after[6:])
    assert not torch.equal(before[:6, 2], after[:6, 2])
    assert torch.equal(before[:, [0, 1, 3, 4]], after[:, [0, 1, 3, 4]])


def test_an_actor_takes_the_same_steps_and_keeps_the_memory() -> None:
    weight, observations, _, h, c, _ = experience()
    head, bias = torch.randn(4, 8), torch.randn(4)
    actor = LstmActor(weight, head, bias, 5)
    for kept, value in zip(actor.memory, (h, c), strict=True):
        kept.copy_(value)
    for seen in observations:
        answer = actor.step(seen)
        _, (h, c) = plain(weight.double()).step(seen.double(), (h.double(), c.double()))
        h, c = h.float(), c.float()
        torch.testing.assert_close(answer, h @ head.t() + bias, atol=1e-5, rtol=0)
    torch.testing.assert_close(actor.memory[0], h, atol=3e-6, rtol=0)
    torch.testing.assert_close(actor.memory[1], c, atol=3e-6, rtol=0)


def test_the_choice_of_matrix_products_ends_with_the_context() -> None:
    before = torch.get_float32_matmul_precision()
    with fast_products():
        pass
    assert torch.get_float32_matmul_precision() == before
