"""Model files for tests: small, and spoilt in one way where a test wants that."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from agent.models import METADATA_KEY
from benchmarks.lstm_model import write_model

NOTHING, ADD_S, REMOVE_S, ADD_M, REMOVE_M, ADD_L, REMOVE_L = range(7)


def preferring(directory: Path, *ranking: int, **more: Any) -> Path:
    """A model of act-7 that always prefers these actions in this order, whatever it sees."""
    bias = [-8.0] * 7
    for place, action in enumerate(ranking):
        bias[action] = 8.0 - 2.0 * place
    return write_model(directory, hidden=4, scale=0.0, bias=bias, **more)


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


def promote(directory: Path, path: Path | str) -> None:
    """Name the file as the champion, as `trimtab promote` does."""
    name = path if isinstance(path, str) else path.name
    part = directory / "champion.json.part"
    part.write_text(
        json.dumps({"model": name, "previous": None, "report": "report.html", "at": "2026-11-20T12:00:00Z"})
    )
    part.replace(directory / "champion.json")
