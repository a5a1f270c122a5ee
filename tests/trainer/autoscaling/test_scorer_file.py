"""A scorer's model file decides in the agent and in the simulator as the weights that were trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.models.card import ScorerCard
from agent.models.file import load_model
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATES, STATES
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import BranchedEpisodes, Branches, Weights
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_rand
from tests.oracles.lstm_model import write_model as write_network
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.scorer import Recipe, Scorer
from trainer.autoscaling.scorer_runs import read_model, write_model
from trainer.kit.export import ExportFailed

LIVE = preset("live-like")
RULE = RuleSetting(240.0, 60.0)


def drawn(networks: int, seed: int, cells: int = 0) -> tuple[Weights, ...]:
    """Return the weights of an ensemble without training."""
    rng = np.random.default_rng(seed)
    inputs, each = STATES + CANDIDATES + cells, (networks,)
    layers = ((*each, inputs, 12), (*each, 12), (*each, 12, 12), (*each, 12), (*each, 12))
    gates = ((*each, STATES, 4 * cells), (*each, cells, 4 * cells), (*each, 4 * cells))
    return tuple(rng.normal(0.0, 0.4, size=shape).astype(np.float32) for shape in (*layers, *gates))


@pytest.fixture(scope="module", params=[0, 5], ids=["averages", "lstm"])
def trained(request: pytest.FixtureRequest) -> Scorer:
    low, high = np.full(STATES, -1e6, dtype=np.float32), np.full(STATES, 1e6, dtype=np.float32)
    votes, recipe = drawn(3, 1, request.param), Recipe(hidden=12, cells=request.param)
    return Scorer(votes, drawn(1, 2), 0.25, 6.0, low, high, low, high, recipe, 7, {"branched_minutes": 5.0})


@pytest.fixture(scope="module")
def minutes(trained: Scorer) -> Branches:
    episodes = BranchedEpisodes(LIVE, train_rand(3), RULE)
    return episodes.play(1, trained.weights, branch_share=1.0, most=20)


def test_a_file_gives_the_weights_back_bit_for_bit(trained: Scorer, minutes: Branches, tmp_path: Path) -> None:
    found = read_model(write_model(trained, minutes, tmp_path))
    for name in ("weights", "gains"):
        for mine, other in zip(getattr(trained, name), getattr(found, name), strict=True):
            np.testing.assert_array_equal(mine, other)
    assert (found.margin, found.idle_limit_min, found.recipe, found.seed) == (0.25, 6.0, trained.recipe, 7)
    assert found.figures == trained.figures
    np.testing.assert_array_equal(found.greatest, trained.greatest)


def test_the_agent_takes_the_file(trained: Scorer, minutes: Branches, tmp_path: Path) -> None:
    card = load_model(write_model(trained, minutes, tmp_path)).card
    assert isinstance(card, ScorerCard)
    assert card.branch_min == 25.0
    longer = replace(trained, recipe=replace(trained.recipe, branch_steps=60))
    card = load_model(write_model(longer, minutes, tmp_path)).card
    assert isinstance(card, ScorerCard)
    assert card.branch_min == 61.0
    assert len(card.golden.inputs["state"]) == minutes.counts[:3].sum()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_agent_s_policy_plays_the_episode_of_the_compiled_one(
    trained: Scorer, minutes: Branches, tmp_path: Path, seed: int
) -> None:
    path, trace = write_model(trained, minutes, tmp_path), train_rand(seed)
    wanted = BranchedEpisodes(LIVE, trace, RULE).play(seed, trained.weights, margin=0.25, idle_limit_min=6.0)
    found = run_policy(policy_of(f"{path}:horizon_s=240,idle_s=60"), LIVE, trace, seed)
    assert wanted.departures > 5
    assert found.cost == pytest.approx(wanted.cost, rel=1e-9)


def test_a_graph_that_answers_otherwise_is_not_written(
    trained: Scorer, minutes: Branches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = drawn(3, 5)
    monkeypatch.setattr(
        "trainer.autoscaling.scorer_runs.score",
        lambda state, rows, count, weights, recurrent, out: out.__setitem__(
            slice(None), rows @ other[0][0, STATES:, 0]
        ),
    )
    with pytest.raises(ExportFailed, match="in score by"):
        write_model(trained, minutes, tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_no_numbers_are_not_written(trained: Scorer, minutes: Branches, tmp_path: Path) -> None:
    gains = tuple(part * np.float32(np.nan) for part in trained.gains)
    with pytest.raises(ExportFailed, match="in gain by nan"):
        write_model(replace(trained, gains=gains), minutes, tmp_path)


def test_the_file_of_a_network_holds_no_scorer(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="file of a scorer"):
        read_model(write_network(tmp_path, hidden=4))


def test_a_parameter_that_is_none_of_the_rule_s_is_named(trained: Scorer, minutes: Branches, tmp_path: Path) -> None:
    path = write_model(trained, minutes, tmp_path)
    with pytest.raises(BadInput, match="idle_s, job_core_s"):
        policy_of(f"{path}:sample=3")
