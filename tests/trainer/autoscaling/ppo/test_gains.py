"""Gains of features: a network with them answers as one whose weights have taken them in."""

import numpy as np
import pytest
import torch

from domain.errors import BadInput
from trainer.autoscaling.configuration import configuration
from trainer.autoscaling.networks import NetworkKind, PolicyValueNetwork


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_folding_the_gains_into_the_weights_changes_no_answer(kind: NetworkKind) -> None:
    network = PolicyValueNetwork(kind, 3, 5, 8, gains=(1.0, 20.0, 0.5), seed=3)
    seen = torch.from_numpy(np.random.default_rng(0).random((6, 4, 3), dtype=np.float32))
    actor, memory, plain = network.actor(4), network.no_memory(4), network.folded()
    assert plain.gains is None
    unrolled, values = network.unroll(seen, torch.zeros(6, 4), memory)
    for t in range(6):
        logits, value, memory = plain.step(seen[t], memory)
        torch.testing.assert_close(logits, unrolled[t], rtol=0, atol=1e-5)
        torch.testing.assert_close(value, values[t], rtol=0, atol=1e-5)
        torch.testing.assert_close(actor.step(seen[t]), torch.cat([logits, value[:, None]], 1), rtol=0, atol=1e-5)


def test_only_the_queued_work_of_the_long_observation_has_a_gain() -> None:
    assert configuration(observation="obs-v2", queue_gain=20.0).gains(20) == (*(1.0,) * 17, 20.0, 1.0, 1.0)
    assert configuration(observation="obs-7", queue_gain=20.0).gains(7) == ()


def test_gains_that_do_not_fit_the_features_are_refused() -> None:
    with pytest.raises(BadInput, match="give 3 numbers above 0"):
        PolicyValueNetwork(NetworkKind.LSTM, 3, 5, 8, gains=(1.0, 2.0))
