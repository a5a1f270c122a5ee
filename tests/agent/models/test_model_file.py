"""Model files: only a whole, unaltered model of an observation that is made here gets in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.file import ModelRefused, load_model
from benchmarks.lstm_model import write_model
from tests.agent.models.making import card_of, preferring, saved, with_card_text


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preferring(tmp_path_factory.mktemp("good"), 1, 0)


def refusal(path: Path) -> str:
    with pytest.raises(ModelRefused) as refused:
        load_model(path)
    return str(refused.value)


def test_a_whole_model_of_our_observation_is_used_under_its_hash(good: Path) -> None:
    model = load_model(good)
    assert model.name == hashlib.sha256(good.read_bytes()).hexdigest()
    zeros = {"observation": np.zeros((3, 7), np.float32)} | {n: np.zeros((3, 4), np.float32) for n in model.card.memory}
    outputs = model.run(zeros)
    assert {name: value.shape for name, value in outputs.items()} == {
        "logits": (3, 7),
        "value": (3, 1),
        "hidden_next": (3, 4),
        "cell_next": (3, 4),
    }
    assert outputs["logits"][0].tolist() == [6.0, 8.0, -8.0, -8.0, -8.0, -8.0, -8.0]


def test_features_outside_the_trained_ranges_are_named(good: Path) -> None:
    observation = np.array([[0.5, 1.0, 1.25, 0.0, 0.0, 0.0, -0.5]], dtype=np.float32)
    assert load_model(good).out_of_range(observation) == {2: "cpu_p90 1.25", 6: "wait_recent -0.5"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema_hash": "cd" * 32}, "it was trained on observation cdcdcdcdcdcd, this agent makes"),
        ({"features": ["a"] * 7}, "its features are not those of obs-7, in that order"),
        ({"feature_low": [0.0]}, "it has features and ranges of different number"),
        ({"observation": "obs-9"}, "its card is wrong, observation: input should be 'obs-7' or 'obs-v2'"),
        ({"action_set": "act-multi"}, "its actions are not pairs of a type and a change"),
        ({"actions": ["nothing"] * 7}, "its actions are not nothing, add:0, remove:0, add:1"),
        ({"types": []}, "it names no VM types"),
        ({"memory": ["hidden"]}, "a network of kind lstm has hidden, cell and a size to match"),
        ({"network": "gru"}, "a network of kind gru has hidden and a size to match"),
        ({"hidden_size": 5}, "its graph has observation 7, hidden 4, cell 4 in"),
        ({"golden": {"inputs": {"observation": [[1, 2]]}, "outputs": {}}}, "it fails on its golden inputs"),
    ],
)
def test_a_card_that_does_not_fit_its_model_or_us_is_refused(
    tmp_path: Path, good: Path, changes: dict[str, Any], why: str
) -> None:
    path = saved(tmp_path, with_card_text(good, json.dumps(card_of(good) | changes)))
    assert why in refusal(path)


def test_types_out_of_the_order_of_their_cores_are_refused(tmp_path: Path, good: Path) -> None:
    card = card_of(good)
    card["types"].reverse()
    path = saved(tmp_path, with_card_text(good, json.dumps(card)))
    assert "its VM types do not stand in the order of their cores" in refusal(path)


@pytest.mark.parametrize("field", ["observation", "action_set", "types", "masked", "network"])
def test_a_card_of_an_older_form_is_refused(tmp_path: Path, good: Path, field: str) -> None:
    card = {name: value for name, value in card_of(good).items() if name != field}
    path = saved(tmp_path, with_card_text(good, json.dumps(card)))
    assert f"its card is wrong, {field}: field required; export it anew" in refusal(path)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ({"logits": [[9.0] * 7] * 2}, "its output logits for the golden inputs is not the trainer's"),
        ({"logits": [[9.0] * 7]}, "its output logits for the golden inputs is not the trainer's"),
        ({"price": [[9.0]] * 2}, "its output price for the golden inputs is not the trainer's"),
    ],
)
def test_a_model_that_does_not_answer_as_the_trainer_saw_it_answer_is_refused(
    tmp_path: Path, good: Path, output: dict[str, Any], why: str
) -> None:
    card = card_of(good)
    card["golden"]["outputs"] |= output
    assert why in refusal(saved(tmp_path, with_card_text(good, json.dumps(card))))


@pytest.mark.parametrize("wrong", [0, 3, 6])
def test_one_golden_number_that_is_not_the_trainers_is_enough(tmp_path: Path, good: Path, wrong: int) -> None:
    card = card_of(good)
    card["golden"]["outputs"]["logits"][-1][wrong] += 0.01
    assert "its output logits for the golden inputs is not the trainer's" in refusal(
        saved(tmp_path, with_card_text(good, json.dumps(card)))
    )


def test_a_card_without_golden_logits_is_refused(tmp_path: Path, good: Path) -> None:
    card = card_of(good)
    card["golden"]["outputs"] = {}
    path = saved(tmp_path, with_card_text(good, json.dumps(card)))
    assert "its golden outputs have no logits to compare" in refusal(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "it has no `trimtab` metadata: it is no model of this program"), ("{", "its card is wrong")],
)
def test_a_foreign_model_is_refused(tmp_path: Path, good: Path, text: str | None, why: str) -> None:
    assert why in refusal(saved(tmp_path, with_card_text(good, text)))


def test_a_renamed_model_is_refused(tmp_path: Path, good: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(good.read_bytes())
    assert "it is damaged or was renamed" in refusal(tmp_path / "other.onnx")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "ONNX Runtime cannot load it" in refusal(saved(tmp_path, b"not a model at all"))


def test_a_missing_file_and_one_that_is_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "name a file that can be read" in refusal(tmp_path / "nothing.onnx")
    monkeypatch.setattr("agent.models.directory.LARGEST_MODEL_BYTES", 100)
    assert "more than 100: name a model of this program" in refusal(saved(tmp_path, bytes(101)))


def test_a_model_of_the_extended_observation_and_of_many_changes_is_used(tmp_path: Path) -> None:
    card = load_model(write_model(tmp_path, hidden=4, observation="obs-v2", action_set="act-multi")).card
    assert (len(card.features), len(card.actions), card.actions[0], card.actions[-1]) == (20, 21, "0:-5", "2:+5")


@settings(max_examples=40)
@given(position=st.integers(min_value=0), flip=st.integers(1, 255), cut=st.booleans())
def test_any_flipped_byte_or_cut_is_refused(
    tmp_path_factory: pytest.TempPathFactory, good: Path, position: int, flip: int, cut: bool
) -> None:
    content = bytearray(good.read_bytes())
    position %= len(content)
    if cut:
        del content[position:]
    else:
        content[position] ^= flip
    path = tmp_path_factory.mktemp("flipped") / good.name
    path.write_bytes(bytes(content))
    assert "damaged" in refusal(path)
