"""A trained policy as a file: the agent accepts it, it plays the same episode, and its content is its name."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from agent.models.file import METADATA_KEY, ModelRefused, load_model
from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.world_file import preset
from tests.trainer.autoscaling.export.peer import Peer, Rows
from trainer.autoscaling.export import PARITY, ExportFailed, PolicyFacts, answer_of, difference, export, layers_of, play
from trainer.autoscaling.model_policies import read_network
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.ppo_lstm import NetworkKind, PolicyValueNetwork
from trainer.kit.export import Dense

WORLD = preset("train-text", max_steps=400)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Bursts of jobs over three hours: enough to fill the fleet and let it idle."""
    arrival_s = np.repeat(np.arange(12) * 900.0, 25)
    return make_trace("bursts", arrival_s, np.full(arrival_s.size, 180.0))


def learned(kind: str, observation: str, action_set: str) -> PolicyFacts:
    training, evaluation = {"seed": 3, "config": {"lr": 0.001}}, {"cost": 21.5}
    return PolicyFacts(observation, action_set, True, kind, WORLD, training, evaluation)


def peer_of(policy: PolicyFacts) -> Peer:
    return Peer(policy.network, len(policy.actions), len(policy.features))


def card_of(path: Path) -> dict[str, object]:
    properties = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    card = json.loads(properties[METADATA_KEY])
    assert isinstance(card, dict)
    return card


def network_of(learned: PolicyFacts, hidden: int = 32, spread: float = 0.3) -> PolicyValueNetwork:
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
@pytest.mark.parametrize("kind", list(NetworkKind))
@pytest.mark.parametrize("observation", ["obs-7", "obs-v2"])
def test_the_file_plays_the_episode_of_the_trained_network(
    tmp_path: Path, trace: Trace, kind: NetworkKind, action_set: str, observation: str
) -> None:
    policy = learned(kind, observation, action_set)
    network = network_of(policy)
    layers, torch_answer = layers_of(network), answer_of(network)
    path = export(layers, torch_answer, policy, [trace], tmp_path, seed=5)
    episode = play(torch_answer, policy, layers, trace, seed=5)
    assert len(episode.inputs["observation"]) > 150
    assert difference(read_network(path).model.session, episode) <= PARITY

    answer: list[Rows] = []
    run_policy(
        policy_of(str(path)),
        WORLD,
        trace,
        5,
        lambda simulation, _: answer.append(
            simulation.observe() if observation == "obs-7" else simulation.observe_v2()
        ),
    )
    assert np.array_equal(np.stack(answer[:-1]), episode.inputs["observation"][1:])


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_64_rows_at_once_get_what_torch_gives_each(tmp_path: Path, trace: Trace, kind: NetworkKind) -> None:
    policy = learned(kind, "obs-7", "act-7")
    network = network_of(policy)
    answer = answer_of(network)
    session = read_network(export(layers_of(network), answer, policy, [trace], tmp_path)).model.session
    random = np.random.default_rng(6)
    inputs = {"observation": random.uniform(size=(64, 7)).astype(np.float32)}
    for name in network.trunk.memory_names:
        inputs[name] = random.uniform(-1, 1, size=(64, network.trunk.width)).astype(np.float32)
    together = {out.name: value for out, value in zip(session.get_outputs(), session.run(None, inputs), strict=True)}
    for row in range(64):
        alone = answer({name: value[row : row + 1] for name, value in inputs.items()})
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][row], value[0], rtol=0, atol=PARITY)


def test_the_agent_accepts_the_file_and_its_card_says_what_it_is(tmp_path: Path, trace: Trace) -> None:
    policy = learned("lstm", "obs-7", "act-7")
    peer = peer_of(policy)
    path = export(peer.layers(), peer.answer, policy, [trace], tmp_path)
    model = load_model(path)
    assert model.name == path.stem
    card = card_of(path)
    facts = ("observation", "action_set", "actions", "masked", "network", "hidden_size", "memory", "training")
    assert {name: card[name] for name in facts} == {
        "observation": "obs-7",
        "action_set": "act-7",
        "actions": ["nothing", "add:0", "remove:0", "add:1", "remove:1", "add:2", "remove:2"],
        "masked": True,
        "network": "lstm",
        "hidden_size": 24,
        "memory": ["hidden", "cell"],
        "training": {"seed": 3, "config": {"lr": 0.001}},
    }
    assert card["evaluation"] == {"cost": 21.5}
    assert card["types"] == [
        {"name": "m5a.large", "cores": 2, "price_per_hour": 0.2, "limit": 10},
        {"name": "m5a.xlarge", "cores": 4, "price_per_hour": 0.4, "limit": 10},
        {"name": "m5a.2xlarge", "cores": 8, "price_per_hour": 0.8, "limit": 10},
    ]


def test_the_actions_of_act_multi_are_named_type_by_type() -> None:
    actions = learned("mlp", "obs-7", "act-multi").actions
    assert len(actions) == 21
    assert actions[:8] == ("0:-5", "0:-2", "0:-1", "0:0", "0:+1", "0:+2", "0:+5", "1:-5")


def test_the_same_weights_give_the_same_file_and_others_another(tmp_path: Path, trace: Trace) -> None:
    policy = learned("lstm", "obs-7", "act-7")
    peer = peer_of(policy)
    first = export(peer.layers(), peer.answer, policy, [trace], tmp_path / "first")
    second = export(peer.layers(), peer.answer, policy, [trace], tmp_path / "second")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    other = Peer("lstm", 7)
    other.value.bias.data += 1.0
    assert export(other.layers(), other.answer, policy, [trace], tmp_path).name != first.name


def test_the_golden_inputs_come_from_the_episode_with_its_memory(tmp_path: Path, trace: Trace) -> None:
    policy = learned("lstm", "obs-7", "act-7")
    peer = peer_of(policy)
    episode = play(peer.answer, policy, peer.layers(), trace)
    golden = card_of(export(peer.layers(), peer.answer, policy, [trace], tmp_path))["golden"]
    assert isinstance(golden, dict)
    inputs = {name: np.array(value, dtype=np.float32) for name, value in golden["inputs"].items()}
    assert inputs["observation"][-1].tobytes() == episode.inputs["observation"][-1].tobytes()
    assert inputs["cell"][-1].tobytes() == episode.inputs["cell"][-1].tobytes()
    assert {name: np.shape(value) for name, value in golden["outputs"].items()} == {
        "logits": (4, 7),
        "value": (4, 1),
        "hidden_next": (4, 24),
        "cell_next": (4, 24),
    }


def test_ranges_are_those_of_training_or_else_of_the_episodes(tmp_path: Path, trace: Trace) -> None:
    policy = learned("mlp", "obs-7", "act-7")
    peer = peer_of(policy)
    low, high = np.full(7, -1.0, np.float32), np.full(7, 2.0, np.float32)
    given = card_of(export(peer.layers(), peer.answer, policy, [trace], tmp_path, ranges=(low, high)))
    assert (given["feature_low"], given["feature_high"]) == ([-1.0] * 7, [2.0] * 7)
    seen = play(peer.answer, policy, peer.layers(), trace).inputs["observation"]
    found = card_of(export(peer.layers(), peer.answer, policy, [trace], tmp_path))
    assert found["feature_low"] == seen.min(axis=0).tolist()
    assert found["feature_high"] == seen.max(axis=0).tolist()


def test_a_graph_that_answers_otherwise_is_not_written(tmp_path: Path, trace: Trace) -> None:
    policy = learned("lstm", "obs-7", "act-7")
    peer = peer_of(policy)
    layers = peer.layers()
    wrong = replace(layers, logits=Dense(layers.logits.weight, layers.logits.bias + np.float32(1e-4)))
    with pytest.raises(ExportFailed, match=r"network by 0\.0001"):
        export(wrong, peer.answer, policy, [trace], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_answers_nan_is_not_written(tmp_path: Path, trace: Trace) -> None:
    policy = learned("mlp", "obs-7", "act-7")
    peer = peer_of(policy)
    peer.value.bias.data[:] = float("nan")
    with pytest.raises(ExportFailed, match="by inf"):
        export(peer.layers(), peer.answer, policy, [trace], tmp_path)


def test_a_changed_file_is_refused_by_the_agent(tmp_path: Path, trace: Trace) -> None:
    policy = learned("mlp", "obs-7", "act-7")
    peer = peer_of(policy)
    path = export(peer.layers(), peer.answer, policy, [trace], tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelRefused, match="damaged or was renamed"):
        load_model(path)


def test_without_a_mask_the_most_probable_action_is_taken_even_without_effect(trace: Trace) -> None:
    masked = replace(learned("mlp", "obs-7", "act-7"), world=replace(WORLD, max_steps=60))
    peer = peer_of(masked)
    # To remove an S first of all: there is one, the minimum. Then to add an S.
    peer.logits.weight.data[:] = 0.0
    peer.logits.bias.data[:] = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    allocated = [
        play(peer.answer, policy, peer.layers(), trace).inputs["observation"][:, 0].max()
        for policy in (masked, replace(masked, masked=False))
    ]
    assert allocated[1] == np.float32(14 / 140)
    assert allocated[0] > allocated[1]


def test_an_unknown_observation_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"'obs-9': .* obs-7, obs-v2"):
        learned("mlp", "obs-9", "act-7")


def test_the_file_of_the_published_network_is_small(tmp_path: Path, trace: Trace) -> None:
    policy = learned("lstm", "obs-7", "act-7")
    network = network_of(policy, hidden=128, spread=0.05)
    path = export(layers_of(network), answer_of(network), policy, [trace], tmp_path)
    assert path.stat().st_size < 400_000
