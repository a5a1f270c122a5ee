"""The networks of deferral (specification §4)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simulator.deferral.scenarios import episode
from simulator.deferral.world import World
from trainer.deferral.set_transformer import NEVER, Inputs, PointerPolicy, SetPolicy, SlotPolicy, see, widened


@pytest.fixture(name="inputs", scope="module")
def _inputs() -> Inputs:
    worlds = [World(episode("valley", seed)) for seed in range(3)]
    for world in worlds:
        for _ in range(30):
            world.step([])
    return see(worlds, 26.0).inputs


def test_answers_follow_the_order_of_the_tokens(inputs: Inputs) -> None:
    torch.manual_seed(0)
    network = SetPolicy()
    one = Inputs(
        inputs.tokens[:1, : int(inputs.mask[0].sum())], inputs.mask[:1, : int(inputs.mask[0].sum())], inputs.window[:1]
    )
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(one.tokens.shape[1] - 1)])
    before, after = network(one), network(Inputs(one.tokens[:, order], one.mask[:, order], one.window))
    for name in ("order", "worth", "deviation"):
        torch.testing.assert_close(getattr(before, name)[:, order], getattr(after, name), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(before.value, after.value, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("kind", [SetPolicy, SlotPolicy, PointerPolicy])
def test_rows_that_do_not_count_change_nothing(inputs: Inputs, kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    network = kind()
    rows = inputs.mask.shape[1]
    rubbish = widened(inputs.tokens, rows + 7)
    rubbish[:, rows:] = 3.0
    padded = Inputs(rubbish, widened(inputs.mask, rows + 7), inputs.window)
    before, after = network(inputs), network(padded)
    current = inputs.current
    torch.testing.assert_close(before.order[current], after.order[:, :rows][current], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(before.value, after.value, atol=1e-5, rtol=0.0)


def test_the_deviation_starts_near_a_half_and_scores_stay_within_one(inputs: Inputs) -> None:
    torch.manual_seed(0)
    answer = SetPolicy()(inputs)
    np.testing.assert_allclose(answer.deviation.detach()[inputs.current].numpy(), 0.5, atol=1e-3)
    assert float(answer.worth.detach().abs().max()) <= 1.0


@pytest.mark.parametrize("end_to_end", [False, True])
def test_the_policy_s_gradients_stop_at_the_predictor_unless_told_otherwise(inputs: Inputs, end_to_end: bool) -> None:
    torch.manual_seed(0)
    network = SetPolicy(end_to_end=end_to_end)
    answer = network(inputs)
    torch.autograd.backward(answer.order.sum() + answer.worth.sum() + answer.value.sum())
    grown = [p.grad is not None and bool(p.grad.any()) for p in network.predictor.memory.parameters()]
    assert any(grown) is end_to_end
    torch.autograd.backward(network(inputs).foretold.sum())
    assert any(bool(p.grad.any()) for p in network.predictor.memory.parameters() if p.grad is not None)


def test_an_order_of_the_pointer_names_each_ready_job_once_and_its_chance_can_be_told_again(inputs: Inputs) -> None:
    torch.manual_seed(0)
    network = PointerPolicy()
    scores, log_prob, _, _ = network.points(inputs, generator=torch.Generator().manual_seed(1))
    for row, current in zip(scores, inputs.current, strict=True):
        assert sorted((-row[current]).tolist()) == list(range(int(current.sum())))
    again = network.points(inputs, scores)[1]
    torch.testing.assert_close(log_prob, again)
    assert bool((log_prob < 0.0).all())
    assert bool((log_prob > NEVER / 2).all())


@pytest.mark.parametrize("shared", [True, False])
def test_the_error_of_the_value_reaches_the_encoder_only_where_it_is_shared(shared: bool) -> None:
    torch.manual_seed(0)
    network = SetPolicy(shared=shared)
    inputs = Inputs(torch.randn(2, 5, 18), torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 24, 11))
    torch.autograd.backward(network(inputs).value.sum())
    assert network.value.weight.grad is not None
    assert (network.embedding.weight.grad is not None) is shared
