"""The trainer's own networks as files: they agree with torch over a whole episode, alone and in a batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from domain.workload import Trace, make_trace
from simulator.autoscaling.reference import preset
from trainer.autoscaling.export import PARITY, Learned, answer_of, difference, export, layers_of, play
from trainer.autoscaling.networks import NetworkKind, PolicyValueNetwork
from trainer.autoscaling.policies.model import read_network

WORLD = preset("train-text", max_steps=400)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Bursts of jobs over three hours."""
    arrival_s = np.repeat(np.arange(12) * 900.0, 25)
    return make_trace("bursts", arrival_s, np.full(arrival_s.size, 180.0))


def network_of(learned: Learned, hidden: int = 32, spread: float = 0.3) -> PolicyValueNetwork:
    """A network with weights as large as those of a trained one, so that memory and choices vary."""
    network = PolicyValueNetwork(
        NetworkKind(learned.network), len(learned.features), len(learned.actions), hidden, seed=4
    )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in network.parameters():
            weight += torch.randn(weight.shape, generator=generator) * spread
    return network


@pytest.mark.exhaustive
@pytest.mark.parametrize("action_set", ["act-7", "act-multi"])
@pytest.mark.parametrize("observation", ["obs-7", "obs-v2"])
@pytest.mark.parametrize("kind", list(NetworkKind))
def test_the_file_agrees_with_torch_over_an_episode(
    tmp_path: Path, trace: Trace, kind: NetworkKind, observation: str, action_set: str
) -> None:
    learned = Learned(observation, action_set, True, kind, WORLD)
    network = network_of(learned)
    layers, answer = layers_of(network), answer_of(network)
    session = read_network(export(layers, answer, learned, [trace], tmp_path)).model.session
    episode = play(answer, learned, layers, trace, seed=9)
    assert len(episode.inputs["observation"]) > 150
    assert difference(session, episode) <= PARITY


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_64_rows_at_once_get_what_torch_gives_each(tmp_path: Path, trace: Trace, kind: NetworkKind) -> None:
    learned = Learned("obs-7", "act-7", True, kind, WORLD)
    network = network_of(learned)
    answer = answer_of(network)
    session = read_network(export(layers_of(network), answer, learned, [trace], tmp_path)).model.session
    random = np.random.default_rng(6)
    inputs = {"observation": random.uniform(size=(64, 7)).astype(np.float32)}
    for name in network.memory_names:
        inputs[name] = random.uniform(-1, 1, size=(64, network.hidden_size)).astype(np.float32)
    together = {out.name: value for out, value in zip(session.get_outputs(), session.run(None, inputs), strict=True)}
    for row in range(64):
        alone = answer({name: value[row : row + 1] for name, value in inputs.items()})
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][row], value[0], rtol=0, atol=PARITY)


def test_the_published_network_has_the_published_number_of_weights(tmp_path: Path, trace: Trace) -> None:
    learned = Learned("obs-7", "act-7", False, "lstm", WORLD)
    network = network_of(learned, hidden=128, spread=0.05)
    assert sum(weight.numel() for weight in network.parameters()) == 70_664
    path = export(layers_of(network), answer_of(network), learned, [trace], tmp_path)
    assert path.stat().st_size < 400_000
