"""A model file as a policy: the same network as the agent's, its memory kept through an episode."""

from pathlib import Path

import numpy as np
import pytest

from agent.models.file import ModelRefused
from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit, train_text
from tests.oracles.lstm_model import write_model
from trainer.autoscaling.model_policies import ModelPolicy, read_network, run_batched
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of, run_many

CONFIG = preset("train-fit", max_steps=60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_a_model_file_plays_an_episode_and_again_the_same(path: Path) -> None:
    policy = policy_of(str(path))
    assert policy.name == path.stem
    first = run_policy(policy, CONFIG, train_fit())
    assert first.steps == 60
    assert run_policy(policy, CONFIG, train_fit()) == first


def test_drawing_is_reproducible_and_differs_from_the_greedy_choice(path: Path) -> None:
    drawn = run_policy(policy_of(f"{path}:sample=1"), CONFIG, train_fit())
    assert drawn == run_policy(policy_of(f"{path}:sample=1"), CONFIG, train_fit())
    assert drawn != run_policy(policy_of(str(path)), CONFIG, train_fit())


def test_the_memory_is_carried_from_step_to_step(path: Path) -> None:
    policy = policy_of(str(path))
    assert isinstance(policy, ModelPolicy)
    run_policy(policy, CONFIG, train_fit())
    assert set(policy._memory) == {"hidden", "cell"}
    assert all(np.abs(values).max() > 0 for values in policy._memory.values())


def test_a_masked_action_is_never_chosen(path: Path) -> None:
    network = read_network(path)
    logits = np.array([[0.0, 9.0, 1.0, 8.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    mask = np.array([[True, False, True, False, True, True, True]])
    assert network.choose(logits, mask, None).tolist() == [6]
    rng = np.random.default_rng(0)
    drawn = {int(network.choose(logits, mask, rng)[0]) for _ in range(200)}
    assert drawn <= {0, 2, 4, 5, 6}
    assert 6 in drawn


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.onnx"
    foreign.write_bytes(b"not a graph")
    with pytest.raises(ModelRefused, match=r"foreign\.onnx"):
        policy_of(str(foreign))


@pytest.mark.parametrize("suffix", ["", ":sample=5"])
def test_episodes_played_together_are_those_played_alone(path: Path, suffix: str) -> None:
    text, traces, seeds = f"{path}{suffix}", [train_fit(), train_text(), train_fit()], [3, 4, 5]
    together = run_many(text, CONFIG, traces, seeds)
    alone = [run_policy(policy_of(text), CONFIG, trace, seed) for trace, seed in zip(traces, seeds, strict=True)]
    assert together == alone


def test_batches_split_by_size_change_nothing(path: Path) -> None:
    policy = policy_of(str(path))
    assert isinstance(policy, ModelPolicy)
    pairs = [(train_fit(), seed) for seed in range(5)]
    assert run_batched(policy, CONFIG, pairs, most=2) == run_batched(policy, CONFIG, pairs)


def test_a_model_for_other_vm_types_is_refused(path: Path) -> None:
    with pytest.raises(BadInput, match="trained for"):
        run_many(str(path), preset("train-fit", limits=(5, 5, 5)), [train_fit()], [0])
