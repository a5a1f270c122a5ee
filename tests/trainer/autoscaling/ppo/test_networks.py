"""Every kind of network: sizes, seeds, and that unrolling is the same as stepping."""

import pytest
import torch

from domain.errors import BadInput
from trainer.autoscaling.ppo_lstm import NetworkKind, PolicyValueNetwork


def parameters(network: PolicyValueNetwork) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_published_network_has_70664_parameters() -> None:
    assert parameters(PolicyValueNetwork(NetworkKind.LSTM, 7, 7, 128)) == 70_664


def test_a_forget_bias_is_put_where_the_forget_gate_is() -> None:
    network = PolicyValueNetwork(NetworkKind.LSTM, 7, 7, 4, forget_bias=1.5)
    assert network.trunk.weight[-1].tolist() == [0.0] * 8 + [1.5] * 4 + [0.0] * 4


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_a_seed_names_the_weights(kind: NetworkKind) -> None:
    one, same, other = (PolicyValueNetwork(kind, 7, 7, 16, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_unrolling_is_stepping_with_the_memory_dropped_where_an_episode_starts(kind: NetworkKind) -> None:
    generator = torch.Generator().manual_seed(0)
    network = PolicyValueNetwork(kind, 5, 6, 16, seed=1)
    observations = torch.rand(9, 4, 5, generator=generator)
    starts = (torch.rand(9, 4, generator=generator) < 0.3).float()
    memory = tuple(torch.randn(4, network.trunk.width, generator=generator) for _ in network.trunk.memory_names)
    answer = network.unroll(observations, starts, memory)
    for t in range(9):
        memory = tuple(part * (1.0 - starts[t]).unsqueeze(1) for part in memory)
        expected_logits, expected_values, memory = network.step(observations[t], memory)
        torch.testing.assert_close(answer[t, :, :-1], expected_logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(answer[t, :, -1], expected_values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_an_actor_answers_as_the_network_does(kind: NetworkKind) -> None:
    generator = torch.Generator().manual_seed(0)
    network = PolicyValueNetwork(kind, 5, 6, 16, seed=1)
    actor, memory = network.actor(4), network.no_memory(4)
    for _ in range(3):
        seen = torch.rand(4, 5, generator=generator)
        answer = actor.step(seen)
        logits, values, memory = network.step(seen, memory)
        torch.testing.assert_close(answer[:, :-1], logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(answer[:, -1], values, atol=1e-5, rtol=0)
    for kept, expected in zip(actor.memory, memory, strict=True):
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=0)


def test_a_network_without_features_is_refused() -> None:
    with pytest.raises(BadInput, match="features, logits, hidden"):
        PolicyValueNetwork(NetworkKind.MLP, 0, 7)
