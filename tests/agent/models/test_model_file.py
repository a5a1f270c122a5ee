"""Model files: only a whole, unaltered model of an observation that is made here gets in."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.file import ModelRefused, load_model
from tests.agent.models.making import card_of, preferring, saved, with_card_text
from tests.golden import check_wording
from tests.oracles.lstm_model import write_model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preferring(tmp_path_factory.mktemp("good"), 1, 0)


def refusal(path: Path) -> str:
    with pytest.raises(ModelRefused) as refused:
        load_model(path)
    assert (refused.value.field, refused.value.value) == ("model file", str(path))
    # What libraries say stands in parentheses or behind "invalid json".
    text = re.sub(r"\(.*\)|(?<=invalid json: )[^;]*", "...", refused.value.remedy)
    return re.sub("[0-9a-f]{12,}", "HASH", text)


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


CARDS: dict[str, dict[str, Any]] = {
    "another observation": {"schema_hash": "cd" * 32},
    "other features": {"features": ["a"] * 7},
    "too few ranges": {"feature_low": [0.0]},
    "an unknown observation": {"observation": "obs-9"},
    "actions of another set": {"action_set": "act-multi"},
    "actions of other names": {"actions": ["nothing"] * 7},
    "empty types": {"types": []},
    "half a memory": {"memory": ["hidden"]},
    "another kind of network": {"network": "gru"},
    "another size": {"hidden_size": 5},
    "golden inputs of another size": {"golden": {"inputs": {"observation": [[1, 2]]}, "outputs": {}}},
}
GOLDEN: dict[str, dict[str, Any]] = {
    "other logits": {"logits": [[9.0] * 7] * 2},
    "too few logits": {"logits": [[9.0] * 7]},
    "an output that is not there": {"price": [[9.0]] * 2},
}
FIELDS = ("observation", "action_set", "types", "masked", "network")


def spoilt(good: Path) -> dict[str, str | None]:
    """Return cards that do not fit the model or this agent, None for a model without one."""
    card = card_of(good)
    cards = {name: card | changes for name, changes in CARDS.items()}
    for name, outputs in GOLDEN.items():
        cards[name] = card | {"golden": {**card["golden"], "outputs": card["golden"]["outputs"] | outputs}}
    for field in FIELDS:
        cards[f"no {field}"] = {name: value for name, value in card.items() if name != field}
    cards["types in another order"] = card | {"types": card["types"][::-1]}
    cards["no golden outputs"] = card | {"golden": {**card["golden"], "outputs": {}}}
    texts = {name: json.dumps(each) for name, each in cards.items()}
    return {**texts, "no card": None, "a card that is no JSON": "{"}


def test_every_refusal_says_why_and_what_to_do(tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        f"card with {name}": refusal(saved(tmp_path, with_card_text(good, text))) for name, text in spoilt(good).items()
    }
    (tmp_path / "other.onnx").write_bytes(good.read_bytes())
    texts["renamed"] = refusal(tmp_path / "other.onnx")
    texts["no model"] = refusal(saved(tmp_path, b"not a model at all"))
    texts["missing"] = refusal(tmp_path / "nothing.onnx")
    monkeypatch.setattr("agent.models.directory.LARGEST_MODEL_BYTES", 100)
    texts["too large"] = refusal(saved(tmp_path, bytes(101)))
    check_wording("model-file", texts)


@pytest.mark.parametrize("wrong", [0, 3, 6])
def test_one_golden_number_that_is_not_the_trainers_is_enough(tmp_path: Path, good: Path, wrong: int) -> None:
    card = card_of(good)
    card["golden"]["outputs"]["logits"][-1][wrong] += 0.01
    assert "output logits" in refusal(saved(tmp_path, with_card_text(good, json.dumps(card))))


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
