"""Networks are trained on a GPU as on the processor: every tensor of the loops takes its device from one place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from simulator.autoscaling.branching import NO_WEIGHTS
from tests.stages import exhaustive
from tests.trainer.autoscaling.test_scorer import SMALL, lesson
from tests.trainer.autoscaling.train.tiny_run import tiny
from tests.trainer.deferral.test_learning import TINY
from tests.trainer.kit.pretended import There, WrongDevice, pretended_gpu
from trainer.autoscaling import ppo_lstm
from trainer.autoscaling.scorer import GAINS_SEED, fit_seed, join, play_lessons
from trainer.deferral import set_transformer
from trainer.deferral.set_transformer import METHODS, preset
from trainer.kit.checkpoint import Checkpoints
from trainer.kit.device import device_of


def test_the_pretended_gpu_refuses_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch):
        layer, rows = torch.nn.Linear(3, 2).to("cuda"), torch.ones(4, 3)
        assert layer.weight.device == torch.device("cuda")
        answer = layer(rows.to("cuda"))
        assert isinstance(answer, There)
        for wrong in (lambda: layer(rows), answer.detach().numpy, lambda: answer + torch.ones(4, 2)):
            with pytest.raises(WrongDevice):
                wrong()
        with pytest.raises(WrongDevice, match="generator"):
            torch.multinomial(answer.detach().exp(), 1, generator=torch.Generator())
        assert answer.cpu().detach().numpy().shape == (4, 2)


@pytest.mark.parametrize("network", ["lstm", *exhaustive("mlp")])
def test_ppo_is_trained_on_a_gpu_resumed_there_and_read_without_one(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(network=network, device="cuda", anneal_rate=False)
    half, there = replace(config, total_steps=1024), Checkpoints(tmp_path)
    with pretended_gpu(monkeypatch) as gpu:
        whole = ppo_lstm.train(config)
        ppo_lstm.train(half, checkpoints=there)
        rest = ppo_lstm.train(config, resume=there.last(), checkpoints=there)
    assert gpu.operations > 1000
    assert rest.weights_hash == whole.weights_hash
    assert not any(isinstance(part, There) for part in whole.network.state_dict().values())
    here = ppo_lstm.train(replace(config, device="cpu"))
    assert near(whole.network.state_dict(), here.network.state_dict())


@pytest.mark.parametrize("method", ["full", *exhaustive(*(name for name in METHODS if name != "full"))])
def test_a_set_transformer_is_trained_on_a_gpu_resumed_there_and_read_without_one(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitates = method in ("full", "aux-low")
    changes: dict[str, Any] = {**TINY, "rounds": 1 if imitates else 0, "iterations": 1}
    config = preset("imitation" if imitates else "paper", method=method, device="cuda", **changes)
    longer, there = replace(config, iterations=2), Checkpoints(tmp_path)
    with pretended_gpu(monkeypatch) as gpu:
        whole = set_transformer.train(longer)
        set_transformer.train(config, checkpoints=there)
        rest = set_transformer.train(longer, checkpoints=there)
    assert gpu.operations > 1000
    assert rest.updates == whole.updates
    read = set_transformer.network_of(config)
    read.load_state_dict(dict(there.last().state["best_weights"]))  # type: ignore[union-attr]
    here = set_transformer.train(replace(longer, device="cpu"))
    assert near(dict(whole.weights), dict(here.weights))


def near(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    """Return whether weights are equal up to the order in which sums are added."""
    return all(np.allclose(part.cpu().numpy(), wanted[name].numpy(), atol=1e-4) for name, part in found.items())


@pytest.mark.parametrize(("cells", "seed"), [(4, 1), *exhaustive((0, 1), (0, GAINS_SEED))])
def test_a_scorer_is_fitted_on_a_gpu_and_read_without_one(
    cells: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(SMALL, cells=cells)
    samples = join([play_lessons([lesson(number)], recipe, NO_WEIGHTS, 0.0) for number in (3, 4)])
    here = fit_seed(samples, recipe, seed, None)
    with pretended_gpu(monkeypatch) as gpu:
        there = fit_seed(samples, replace(recipe, device="cuda"), seed, None)
    assert gpu.operations > 100
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize(
    "words",
    [
        ("train", "autoscaling"),
        ("train", "autoscaling", "--form", "scorer"),
        ("train", "deferral"),
        ("train", "deferral", "--all"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_option_is_refused_before_any_work(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, [*words, "--device", "cuda"])
    assert answer.exit_code == 2
    assert "error: --device is 'cuda'" in answer.output
    assert "--device cpu" in answer.output
    assert not [*tmp_path.iterdir()]


def test_a_task_of_a_cluster_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("cuda").type == "cuda"
    with pytest.raises(BadInput, match="leave out --ray"):
        device_of("cuda", "local")
