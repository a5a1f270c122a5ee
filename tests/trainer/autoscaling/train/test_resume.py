"""A run that was stopped goes on exactly where it stopped, and ends with the weights it would have had."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from domain.errors import BadInput
from tests.trainer.autoscaling.train.tiny_run import data_of, tiny
from trainer.autoscaling.ppo_lstm import Training, TrainingResult, train
from trainer.autoscaling.ppo_runs import HELD_OUT, checkpoint_of, curve_of, export_checkpoint, run
from trainer.kit.checkpoint import Checkpoint, Checkpoints, OtherConfiguration, read_checkpoint, weights_hash
from trainer.kit.progress import CURVE_FILE, Progress, read_curve


class Stopped(Exception):
    """What ends a run in the middle."""


def stop_after(update: int, progress: Progress) -> None:
    if progress.update > update:
        raise Stopped


def interrupted(directory: Path, update: int, **changes: object) -> Checkpoints:
    """Train up to an update and stop there; the last checkpoint is older."""
    checkpoints = Checkpoints(directory)
    with pytest.raises(Stopped):
        train(tiny(**changes), checkpoints=checkpoints, on_update=lambda progress: stop_after(update, progress))
    return checkpoints


@pytest.mark.exhaustive
@pytest.mark.parametrize("network", ["lstm", "mlp"])
def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path, network: str) -> None:
    whole = train(tiny(network=network))
    checkpoints = interrupted(tmp_path, 5, network=network)
    last = checkpoints.last()
    assert last is not None
    assert last.update == 4
    resumed = train(tiny(network=network), resume=last, checkpoints=checkpoints)
    assert (resumed.weights_hash, resumed.best_cost, resumed.steps) == (
        whole.weights_hash,
        whole.best_cost,
        whole.steps,
    )


def test_several_heads_go_on_exactly_too(tmp_path: Path) -> None:
    changes = {"action_set": "act-multi", "observation": "obs-v2", "task": "train-text", "anneal_clip": True}
    whole = train(tiny(**changes))
    last = interrupted(tmp_path, 4, **changes).last()
    assert train(tiny(**changes), resume=last).weights_hash == whole.weights_hash


def test_n_updates_and_m_more_are_n_plus_m(tmp_path: Path) -> None:
    """Without annealing, which depends on how many steps there will be, a finished run may be extended."""
    checkpoints = Checkpoints(tmp_path)
    train(tiny(anneal_rate=False, total_steps=1024), checkpoints=checkpoints)
    extended = train(tiny(anneal_rate=False), resume=checkpoints.last())
    assert extended.weights_hash == train(tiny(anneal_rate=False)).weights_hash


def test_another_configuration_is_refused_with_the_differences(tmp_path: Path) -> None:
    last = interrupted(tmp_path, 4).last()
    with pytest.raises(OtherConfiguration) as refused:
        train(tiny(gamma=0.5, epochs=3), resume=last)
    assert refused.value.differences == (("gamma", 0.98, 0.5), ("epochs", 2, 3))


def test_the_export_of_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"checkpoint is 'foresight, trunk': settings of another version"):
        export_checkpoint(Checkpoint({"trunk": "gru", "foresight": 1}, {}, {}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_holds_the_whole_state_bit_for_bit(tmp_path: Path) -> None:
    first = Training(tiny())
    first.update()
    second = Training(tiny())
    saved = Checkpoints(tmp_path).save(Checkpoint(tiny().plain(), {"update": 1}, first.state()))
    second.restore(read_checkpoint(saved).state)
    for _ in range(2):
        first.update()
        second.update()
    assert weights_hash(first.network.state_dict()) == weights_hash(second.network.state_dict())


@pytest.mark.exhaustive
def test_the_curve_of_a_resumed_run_is_the_curve_of_the_whole_run(tmp_path: Path) -> None:
    whole = run(data_of(tiny(), tmp_path / "whole"))
    place = tmp_path / "parts"
    checkpoints = interrupted(place / "checkpoints", 5)
    last = checkpoints.last()
    assert last is not None
    parts = run(data_of(tiny(), place))
    assert {name: parts[name] for name in ("weights_hash", "model", "report")} == {
        name: whole[name] for name in ("weights_hash", "model", "report")
    }
    again = curve_of(place / CURVE_FILE, HELD_OUT)
    assert again == curve_of(tmp_path / "whole" / CURVE_FILE, HELD_OUT)[-len(again) :]
    assert [int(row["update"]) for row in read_curve(place / CURVE_FILE)] == [5, 6, 7, 8]


@pytest.mark.exhaustive
def test_a_finished_run_asked_again_changes_nothing(tmp_path: Path) -> None:
    first = run(data_of(tiny(), tmp_path))
    curve = (tmp_path / CURVE_FILE).read_bytes()
    assert run(data_of(tiny(), tmp_path)) == first
    assert (tmp_path / CURVE_FILE).read_bytes() == curve


def test_a_run_is_found_by_its_directory_or_that_of_its_checkpoints(tmp_path: Path) -> None:
    run(data_of(tiny(), tmp_path))
    best = Checkpoints(tmp_path / "checkpoints").path_of("best")
    assert best is not None
    hashes = {
        weights_hash(checkpoint_of(path).state["best_weights"]) for path in (tmp_path, tmp_path / "checkpoints", best)
    }
    assert len(hashes) == 1


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_two_workers_that_were_stopped_end_with_the_weights_of_two_that_were_not(tmp_path: Path) -> None:
    config = tiny(workers=2, anneal_rate=False)
    whole = run(data_of(config, tmp_path / "whole"))
    place = tmp_path / "parts"
    run(data_of(tiny(workers=2, anneal_rate=False, total_steps=1024), place))
    assert run(data_of(config, place))["weights_hash"] == whole["weights_hash"]


def test_trained_weights_are_plain_tensors_on_the_processor(tmp_path: Path) -> None:
    trained = train(tiny())
    assert isinstance(trained, TrainingResult)
    assert {tensor.device for tensor in trained.network.state_dict().values()} == {torch.device("cpu")}
    assert asdict(tiny())["network"] == trained.network.kind
