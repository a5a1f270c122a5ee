"""The model slot: only a whole, unaltered model of our own observation gets in, and a refused one changes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models import METADATA_KEY, ModelRefused, ModelSlot, load_model

SCHEMA = "ab" * 32
WEIGHTS = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 3.0]], dtype=np.float32)


def card(**changes: Any) -> dict[str, Any]:
    observation = [[1.0, 2.0, 3.0]]
    made: dict[str, Any] = {
        "schema_hash": SCHEMA,
        "features": ["a", "b", "c"],
        "actions": ["nothing", "add"],
        "feature_low": [0.0, 0.0, 0.0],
        "feature_high": [1.0, 2.0, 4.0],
        "golden": {
            "inputs": {"observation": observation},
            "outputs": {"logits": (np.array(observation, dtype=np.float32) @ WEIGHTS).tolist()},
        },
    }
    return made | changes


def model_bytes(metadata: str | None) -> bytes:
    """A linear model of three features and two actions, with this card."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["observation", "weights"], ["logits"])],
        "linear",
        [onnx.helper.make_tensor_value_info("observation", onnx.TensorProto.FLOAT, [1, 3])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1, 2])],
        [onnx.numpy_helper.from_array(WEIGHTS, "weights")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    if metadata is not None:
        onnx.helper.set_model_props(model, {METADATA_KEY: metadata})
    return bytes(model.SerializeToString())


def saved(directory: Path, content: bytes) -> Path:
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.write_bytes(content)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return saved(tmp_path, model_bytes(json.dumps(card())))


def test_a_whole_model_of_our_observation_is_used_under_its_hash(good: Path) -> None:
    slot = ModelSlot(SCHEMA)
    model = slot.load(good)
    assert slot.model is model
    assert model.name == hashlib.sha256(good.read_bytes()).hexdigest()
    outputs = model.run({"observation": np.array([[0.0, 1.0, 0.0]], dtype=np.float32)})
    assert outputs["logits"].tolist() == [[0.5, 2.0]]


def test_features_outside_the_trained_ranges_are_named(good: Path) -> None:
    model = load_model(good, SCHEMA)
    assert model.out_of_range(np.array([[0.5, 2.0, 4.5]], dtype=np.float32)) == ("c 4.5",)


def refused(directory: Path, content: bytes, name: str | None = None) -> str:
    """Try the content on a slot that holds a good model; return why it was refused."""
    slot = ModelSlot(SCHEMA)
    before = slot.load(saved(directory, model_bytes(json.dumps(card()))))
    path = directory / name if name else saved(directory, content)
    path.write_bytes(content)
    with pytest.raises(ModelRefused) as refusal:
        slot.load(path)
    assert slot.model is before
    assert slot.refusal == str(refusal.value)
    return slot.refusal


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (None, "it has no `trimtab` metadata"),
        ("{", "its card is wrong"),
        (json.dumps({"schema_hash": SCHEMA}), "its card is wrong, features: field required"),
        (json.dumps(card(schema_hash="cd" * 32)), "it was trained on observation cdcdcdcdcdcd"),
        (json.dumps(card(feature_low=[0.0])), "features and ranges of different number"),
        (
            json.dumps(card(golden={"inputs": {"observation": [[1, 2, 3]]}, "outputs": {"logits": [[9, 9]]}})),
            "its output logits for the golden inputs is not the trainer's",
        ),
        (
            json.dumps(card(golden={"inputs": {"observation": [[1, 2]]}, "outputs": {"logits": [[9, 9]]}})),
            "it fails on its golden inputs",
        ),
        (
            json.dumps(card(golden={"inputs": {"observation": [[1, 2, 3]]}, "outputs": {"value": [[9]]}})),
            "its output value for the golden inputs is not the trainer's",
        ),
    ],
)
def test_a_wrong_card_is_refused_and_the_old_model_stays(tmp_path: Path, metadata: str | None, why: str) -> None:
    assert why in refused(tmp_path, model_bytes(metadata))


def test_a_renamed_model_is_refused(tmp_path: Path) -> None:
    assert "it is damaged or was renamed" in refused(tmp_path, model_bytes(json.dumps(card())) + b"\0", "other.onnx")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "ONNX Runtime cannot load it" in refused(tmp_path, b"not a model at all")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="name a file that can be read"):
        load_model(tmp_path / "nothing.onnx", SCHEMA)


def test_a_later_good_model_clears_the_refusal(tmp_path: Path, good: Path) -> None:
    slot = ModelSlot(SCHEMA)
    with pytest.raises(ModelRefused):
        slot.load(tmp_path / "nothing.onnx")
    slot.load(good)
    assert slot.refusal == ""


@settings(max_examples=40)
@given(position=st.integers(min_value=0), flip=st.integers(1, 255), cut=st.booleans())
def test_any_flipped_byte_or_cut_is_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int, cut: bool
) -> None:
    content = bytearray(model_bytes(json.dumps(card())))
    name = f"{hashlib.sha256(content).hexdigest()}.onnx"
    position %= len(content)
    if cut:
        del content[position:]
    else:
        content[position] ^= flip
    path = tmp_path_factory.mktemp("flipped") / name
    path.write_bytes(bytes(content))
    with pytest.raises(ModelRefused, match="damaged"):
        load_model(path, SCHEMA)
