"""Model files for tests: small, and spoilt in one way where a test wants that."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from agent.models.card import scorer_schema
from agent.models.directory import EVERY_FLEET, Champion
from agent.models.file import METADATA_KEY, session_of
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATE_FEATURES, GAIN_MIN, STATE_FEATURES
from domain.subject import AUTOSCALING, Subject
from tests.oracles.lstm_model import write_model
from trainer.kit.export import Dense, Recurrent, build_ensembles, store
from trainer.promotion.directory import ModelsWriter, pointer_text, sealed

NOTHING, ADD_S, REMOVE_S, ADD_M, REMOVE_M, ADD_L, REMOVE_L = range(7)


def preferring(directory: Path, *ranking: int, **more: Any) -> Path:
    """A model of act-7 that always prefers these actions in this order, whatever it sees."""
    bias = [-8.0] * 7
    for place, action in enumerate(ranking):
        bias[action] = 8.0 - 2.0 * place
    return write_model(directory, hidden=4, scale=0.0, bias=bias, **more)


def scorer(
    directory: Path,
    prefers: dict[str, float],
    *,
    sees: dict[str, float] | None = None,
    gains: dict[str, float] | None = None,
    high: dict[str, float] | None = None,
    cells: int = 0,
    **changes: Any,
) -> Path:
    """A scorer whose score of a candidate is a sum over features of candidate or state, each times its weight.

    sees: weights of state features. gains: weights of the expected gain; those of the score where left out. high: other
    upper ends of a feature's range in training than 1e9. cells: of an LSTM with drawn weights, which sees the state and
    which no score depends on. changes: fields of the card.
    """
    names = [*STATE_FEATURES, *CANDIDATE_FEATURES]

    def sums(weights: dict[str, float]) -> list[Dense]:
        first = np.zeros((2 * len(weights), len(names) + cells), dtype=np.float32)
        last = np.zeros((1, 2 * len(weights)), dtype=np.float32)
        for row, (name, weight) in enumerate(weights.items()):
            first[2 * row, names.index(name)], first[2 * row + 1, names.index(name)] = 1.0, -1.0
            last[0, 2 * row], last[0, 2 * row + 1] = weight, -weight
        return [Dense(first, np.zeros(len(first), np.float32), "Relu"), Dense(last, np.zeros(1, np.float32))]

    scores = prefers | (sees or {})
    networks = {"score": [sums(scores)], "gain": [sums(scores if gains is None else gains)]}
    sizes = {"state": len(STATE_FEATURES), "candidates": len(CANDIDATE_FEATURES)}
    rng = np.random.default_rng(0)
    shapes = ((4 * cells, len(STATE_FEATURES)), (4 * cells, cells), (4 * cells,), (4 * cells,))
    inward, across, bias, other = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    layer = Recurrent(inward, across, bias, other) if cells else None
    model = build_ensembles(sizes, networks, "scorer", layer)
    sizes |= {name: cells for name in ("hidden", "cell") if cells}
    inputs = {name: np.full((2, size), 0.25, dtype=np.float32) for name, size in sizes.items()}
    session = session_of(model.SerializeToString())
    outputs = dict(zip(networks, session.run(list(networks), inputs), strict=True))
    card = {
        "form": "scorer",
        "voters": 1,
        "cells": cells,
        "schema_hash": scorer_schema(),
        "features": STATE_FEATURES,
        "candidate_features": CANDIDATE_FEATURES,
        "feature_low": [-1e9] * len(STATE_FEATURES),
        "feature_high": [(high or {}).get(name, 1e9) for name in STATE_FEATURES],
        "margin": 0.0,
        "idle_limit_min": 8.0,
        "far": 0.5,
        "branch_min": GAIN_MIN,
        "golden": {
            "inputs": {name: rows.tolist() for name, rows in inputs.items()},
            "outputs": {name: rows.tolist() for name, rows in outputs.items()},
            "tolerance": 1e-4,
        },
    }
    return store(model, card | changes, directory)


def saved(directory: Path, content: bytes) -> Path:
    """The content under the name that it demands."""
    path = directory / f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.write_bytes(content)
    return path


def with_card_text(path: Path, text: str | None) -> bytes:
    """The model of the file with another metadata entry, or without one."""
    model = onnx.load(path)
    del model.metadata_props[:]
    if text is not None:
        helper.set_model_props(model, {METADATA_KEY: text})
    return bytes(model.SerializeToString())


def card_of(path: Path) -> dict[str, Any]:
    """The card of the file as it stands there."""
    card: dict[str, Any] = json.loads(next(p.value for p in onnx.load(path).metadata_props if p.key == METADATA_KEY))
    return card


def poisoned(directory: Path, path: Path) -> Path:
    """The model of the file, whose logits are no numbers as long as no job waits (wait_global is 0)."""
    model = onnx.load(path)
    for node in model.graph.node:
        if "logits" in node.output:
            node.output[:] = ["sound"]
    position = numpy_helper.from_array(np.array([5], dtype=np.int64), "position")
    zero = numpy_helper.from_array(np.array(0.0, dtype=np.float32), "zero")
    model.graph.initializer.extend([position, zero])
    model.graph.node.extend(
        [
            helper.make_node("Gather", ["observation", "position"], ["waiting"], axis=1),
            helper.make_node("Log", ["waiting"], ["minus_infinity"]),
            helper.make_node("Mul", ["minus_infinity", "zero"], ["no_number"]),
            helper.make_node("Add", ["sound", "no_number"], ["logits"]),
        ]
    )
    return saved(directory, bytes(model.SerializeToString()))


def endless(directory: Path, path: Path, *, when_idle: bool = False) -> Path:
    """The model of the file with a loop before its logits that never ends, or only while no job waits (wait_global)."""
    model = onnx.load(path)
    for node in model.graph.node:
        if "logits" in node.output:
            node.output[:] = ["sound"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Abs", ["held"], ["holds"])],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("held", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("holds", TensorProto.FLOAT, None),
        ],
    )
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([5], dtype=np.int64), "position"),
            numpy_helper.from_array(np.array(2**62, dtype=np.int64), "no_end"),
            numpy_helper.from_array(np.array(True), "go_on"),
            numpy_helper.from_array(np.array(0.0, dtype=np.float32), "nothing"),
        ]
    )
    turns = "no_end"
    if when_idle:
        turns = "turns"
        model.graph.node.extend(
            [
                helper.make_node("Gather", ["observation", "position"], ["waiting"], axis=1),
                helper.make_node("ReduceMax", ["waiting"], ["most"], keepdims=0),
                helper.make_node("Equal", ["most", "nothing"], ["idle"]),
                helper.make_node("Cast", ["idle"], ["once"], to=TensorProto.INT64),
                helper.make_node("Mul", ["once", "no_end"], ["turns"]),
            ]
        )
    model.graph.node.extend(
        [
            helper.make_node("Loop", [turns, "go_on", "nothing"], ["looped"], body=body),
            helper.make_node("Add", ["sound", "looped"], ["logits"]),
        ]
    )
    return saved(directory, bytes(model.SerializeToString()))


def reported(directory: Path, model: str, key: bytes | None = None, of: Subject = EVERY_FLEET, **more: Any) -> str:
    """The name of a sealed report in the directory that says that the model passed, or what `more` says otherwise."""
    body = {"format": 2, "decision": of.decision, "subject": of.name, "passed": True}
    text = json.dumps(sealed({**body, "challenger": {"sha256": Path(model).stem}, **more}, key))
    name = f"report-{of.name}{model[:16]}.json"
    if not (directory / name).exists() or (directory / name).read_text() != text:
        (directory / name).write_text(text)
    return name


def promote(directory: Path, path: Path | str, fleet: str = "", key: bytes | None = None) -> None:
    """Name the file as the champion, as `trimtab promote` does; the champions of other fleets stay."""
    name = path if isinstance(path, str) else path.name
    subject = Subject(AUTOSCALING, fleet)
    report = reported(directory, name.rpartition("/")[2], key, subject)
    pointer = directory / "champion.json"
    before: dict[Subject, Champion] = {}
    with contextlib.suppress(BadInput):
        before = dict(ModelsWriter(directory).champions())
    part = directory / "champion.json.part"
    part.write_bytes(pointer_text({**before, subject: Champion(name, None, report, "2026-11-20T12:00:00Z")}))
    part.replace(pointer)
