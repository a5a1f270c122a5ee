"""Checkpoints: what is read is what was written, a crash leaves the one before, and damage is named."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from domain.errors import BadInput
from trainer.kit.checkpoint import (
    FACTS_FILE,
    STATE_FILE,
    Checkpoint,
    CheckpointRefused,
    Checkpoints,
    OtherConfiguration,
    check_resumable,
    differences,
    pack,
    read_checkpoint,
    unpack,
    weights_hash,
    write_checkpoint,
)

CONFIG = {"lr": 1e-3, "total_steps": 100, "network": {"kind": "lstm", "hidden": 8}}


def checkpoint(update: int, value: float = 1.0) -> Checkpoint:
    state = {
        "weights": {"actor.weight": torch.full((2, 3), value), "actor.bias": torch.zeros(2)},
        "random": np.random.default_rng(update).bit_generator.state,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"betas": (0.9, 0.999)}]},
    }
    return Checkpoint(CONFIG, {"update": update, "cost": math.nan}, state)


def same(one: Any, other: Any) -> bool:
    """Equal in type and, bit for bit, in value."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return type(other) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and bool(one == other)


numbers = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    arrays_of.arrays(numbers, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    arrays_of.arrays(np.float32, (2, 2)).map(torch.from_numpy),
)
keys = st.one_of(st.text(max_size=4), st.sampled_from(["$array", "a/b"]), st.integers(0, 3))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=8,
)


@given(trees)
def test_a_tree_comes_back_from_arrays_and_json_bit_for_bit(tree: Any) -> None:
    arrays, data = pack(tree)
    assert same(tree, unpack(arrays, json.loads(json.dumps(data, allow_nan=False))))


def test_a_value_that_cannot_be_stored_is_named_by_its_path() -> None:
    with pytest.raises(BadInput, match="/run/traces/1 is 'object'"):
        pack({"run": {"traces": [1, object()]}})


def test_packing_copies_so_that_training_may_go_on() -> None:
    weights = torch.ones(3)
    arrays, _ = pack({"weights": weights})
    weights.zero_()
    assert arrays["weights"].tolist() == [1.0, 1.0, 1.0]


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    written = checkpoint(7, 0.1)
    write_checkpoint(written, tmp_path / "one")
    found = read_checkpoint(tmp_path / "one")
    assert found.config == CONFIG
    assert found.update == 7
    assert math.isnan(found.progress["cost"])
    assert same(dict(written.state), found.state)


def test_a_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    write_checkpoint(checkpoint(1), tmp_path / "one")
    with np.load(tmp_path / "one" / STATE_FILE, allow_pickle=False) as stored:
        assert {stored[name].dtype.hasobject for name in stored.files} == {False}


def test_there_is_no_checkpoint_before_the_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    assert (checkpoints.last(), checkpoints.best()) == (None, None)


def test_the_last_and_the_best_are_kept_and_no_other(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for update, best in ((1, True), (2, True), (3, False), (4, False)):
        checkpoints.save(checkpoint(update), best=best)
    last, best = checkpoints.last(), checkpoints.best()
    assert last is not None
    assert best is not None
    assert (last.update, best.update) == (4, 2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["000000002", "000000004"]


def test_saving_the_same_update_again_replaces_it_without_a_moment_with_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.save(checkpoint(1, 1.0), best=True)
    second = checkpoints.save(checkpoint(1, 2.0))
    last, best = checkpoints.last(), checkpoints.best()
    assert last is not None
    assert best is not None
    assert first != second
    assert (float(last.state["weights"]["actor.weight"][0, 0]), float(best.state["weights"]["actor.weight"][0, 0])) == (
        2.0,
        1.0,
    )


def test_a_crash_while_writing_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1), best=True)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(checkpoint(2))
    last = checkpoints.last()
    assert last is not None
    assert last.update == 1
    checkpoints.save(checkpoint(3))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["000000001", "000000003"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def changed(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b"0.001") + 4 if path.name == FACTS_FILE else len(content) // 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


@pytest.mark.parametrize(
    ("damage", "words"), [(cut, "cut or changed"), (changed, "changed"), (Path.unlink, "No such file")]
)
@pytest.mark.parametrize("name", [STATE_FILE, FACTS_FILE])
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    write_checkpoint(checkpoint(1), tmp_path / "one")
    damage(tmp_path / "one" / name)
    with pytest.raises(CheckpointRefused, match=f"{name}.*{words}"):
        read_checkpoint(tmp_path / "one")


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_checkpoint(checkpoint(1), tmp_path / "one")
    path = tmp_path / "one" / FACTS_FILE
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(CheckpointRefused, match="99, this program reads 1"):
        read_checkpoint(tmp_path / "one")


def test_a_pointer_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    (tmp_path / "last").write_text("../secret\n")
    with pytest.raises(CheckpointRefused, match="it names no checkpoint"):
        checkpoints.last()


def test_another_configuration_is_refused_with_every_difference(tmp_path: Path) -> None:
    other = {"lr": 2e-3, "total_steps": 100, "network": {"kind": "gru", "hidden": 8}, "gamma": 0.98}
    with pytest.raises(OtherConfiguration) as refused:
        check_resumable(checkpoint(1), other, tmp_path)
    assert refused.value.differences == (
        ("lr", 1e-3, 2e-3),
        ("network.kind", "lstm", "gru"),
        ("gamma", None, 0.98),
    )
    for part in ("lr: saved 0.001, given 0.002", "network.kind: saved 'lstm', given 'gru'", "gamma: saved None"):
        assert part in str(refused.value)


def test_only_the_number_of_steps_may_be_extended(tmp_path: Path) -> None:
    check_resumable(checkpoint(1), {**CONFIG, "total_steps": 200}, tmp_path)
    with pytest.raises(OtherConfiguration, match="saved 100, given 50"):
        check_resumable(checkpoint(1), {**CONFIG, "total_steps": 50}, tmp_path)


@given(st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.dictionaries(st.text(max_size=2), st.none()))))
def test_a_configuration_does_not_differ_from_itself(config: dict[str, Any]) -> None:
    assert differences(config, config) == ()


def test_the_weights_hash_tells_any_change_and_not_the_order() -> None:
    one = {"a": torch.zeros(2), "b": torch.ones(1)}
    assert weights_hash(one) == weights_hash({"b": torch.ones(1), "a": np.zeros(2, np.float32)})
    changed = [
        {"a": torch.zeros(2), "b": torch.nextafter(torch.ones(1), torch.tensor(2.0))},
        {"a": torch.zeros(1, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2), "c": torch.ones(1)},
    ]
    assert weights_hash(one) not in {weights_hash(other) for other in changed}
