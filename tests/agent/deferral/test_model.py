"""The learned policy of deferral from its file (specification §12, §13)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import agent.deferral
from agent.deferral.model import ScoreModel, load_score_model
from agent.models.directory import ModelRefused
from agent.models.file import session_of
from domain.rules.deferral.choosing import ScoresUnusable
from domain.rules.deferral.tokens import scores_of, values_of
from simulator.deferral.scenarios import CALIBRATION_SEEDS, episode
from simulator.deferral.world import World
from trainer.deferral.export import export
from trainer.deferral.set_transformer import SetPolicy, see
from trainer.kit.export import store

CREF = 26.0


@pytest.fixture(name="network", scope="module")
def _network() -> SetPolicy:
    torch.manual_seed(3)
    return SetPolicy()


@pytest.fixture(name="path", scope="module")
def _path(network: SetPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = episode("valley", CALIBRATION_SEEDS[0])
    return export(
        *(network, CREF, tmp_path_factory.mktemp("models"), made),
        scenario="valley",
        decoding="knapsack",
        waits=True,
        training={"seed": 3},
        evaluation={},
    )


def test_the_file_answers_as_the_trained_network_does(network: SetPolicy, path: Path) -> None:
    model, world = load_score_model(path), World(episode("valley", 0))
    assert path.stem == model.name
    assert (model.card.scenario, model.card.cref) == ("valley", CREF)
    while world.t < 40:
        view, seen = world.view(), see([world], CREF)
        with torch.no_grad():
            worth = network(seen.inputs).worth[0].double().numpy()
        wanted = values_of(scores_of(view, seen.states[0], worth), view.cur.cores)
        np.testing.assert_allclose(model.score(view).scores, wanted, atol=1e-3)
        world.step(model.choose(view))


@pytest.mark.parametrize("kind", ["prefix", "skip", "knapsack"])
def test_it_never_starts_more_than_is_free(path: Path, kind: str) -> None:
    model, world = load_score_model(path), World(episode("bursty", 1))
    while world.t < 60:
        view = world.view()
        chosen = model.choose(view, kind)  # type: ignore[arg-type]
        assert view.cur.cores[chosen].sum() <= max(0, view.free)
        world.step(chosen)


def _spoilt(path: Path, folder: Path, old: str, new: str) -> Path:
    """Write the model anew with a word of its card changed."""
    model = onnx.load(path)
    (entry,) = model.metadata_props
    assert old in entry.value
    entry.value = entry.value.replace(old, new)
    return store(model, json.loads(entry.value), folder)


def test_a_score_that_is_no_number_makes_the_model_unhealthy_until_it_is_loaded_anew(path: Path) -> None:
    model = load_score_model(path)
    view = World(episode("valley", 0)).view()
    broken = onnx.load(path)
    bias = next(c for c in broken.graph.initializer if numpy_helper.to_array(c).shape == (64,))
    bias.CopyFrom(numpy_helper.from_array(np.full(64, np.nan, dtype=np.float32), bias.name))
    sick = ScoreModel(model.name, model.card, session_of(broken.SerializeToString()))
    with pytest.raises(ScoresUnusable, match="not finite"):
        sick.choose(view)
    # It is not asked again, though it would answer.
    sick.session = model.session
    with pytest.raises(ScoresUnusable, match="load it again"):
        sick.choose(view)
    assert sick.fault
    assert not model.fault


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("deferral-tokens-1", "deferral-tokens-0"),
        ("late/6", "late/5"),
        ('"kind": "deferral-scores"', '"kind": "x"'),
        ('"cref": 26.0', '"cref": -1.0'),
        ('"worth": 8.0', '"worth": 9.0'),
    ],
)
def test_a_file_whose_card_does_not_fit_is_refused(path: Path, tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ModelRefused):
        load_score_model(_spoilt(path, tmp_path, old, new))


@pytest.mark.parametrize("part", ["tokens", "mask", "window", "order", "worth"])
def test_golden_states_of_unequal_sizes_are_refused(path: Path, tmp_path: Path, part: str) -> None:
    model = onnx.load(path)
    card = json.loads(model.metadata_props[0].value)
    card["golden"][part][0] = card["golden"][part][0][:-1]
    card["golden"][part].append(card["golden"][part][0][:-1])
    with pytest.raises(ModelRefused, match="golden states have different shapes"):
        load_score_model(store(model, card, tmp_path))


def test_a_file_that_answers_otherwise_than_its_card_says_is_refused(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    card = json.loads(model.metadata_props[0].value)
    card["golden"]["worth"][0][1] += 0.01
    with pytest.raises(ModelRefused, match="worth"):
        load_score_model(store(model, card, tmp_path))


def test_the_model_in_the_package_is_read_and_was_chosen_for_the_knapsack() -> None:
    (shipped,) = (Path(agent.deferral.__file__).parent / "shipped").glob("*.onnx")
    card = load_score_model(shipped).card
    assert (card.scenario, card.decoding, card.waits) == ("valley", "knapsack", True)
