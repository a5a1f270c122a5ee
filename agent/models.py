"""The slot for a learned policy's model: an ONNX file, verified before it is used, swapped whole or not at all.

A model file is named after its own SHA-256, `<sha256>.onnx`, and carries one metadata entry, `trimtab`, with a JSON
card: schema_hash (of the observation it was trained on), features and actions in order, feature_low and feature_high
(ranges seen in training), memory (names of recurrent inputs), golden (inputs, outputs and tolerance to try it on), and
training facts for the record.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from domain.errors import BadInput

LARGEST_MODEL_BYTES = 64 * 1024 * 1024
METADATA_KEY = "trimtab"

Floats = NDArray[np.float32]


class ModelRefused(BadInput):
    """A model file is not used: it is missing, damaged, foreign, of another schema, or answers wrongly."""


@checked(frozen=True)
class Golden:
    """Inputs by name with the outputs that the trainer got for them; every output must agree within `tolerance`."""

    inputs: dict[str, list[list[float]]]
    outputs: dict[str, list[list[float]]]
    tolerance: float = 1e-4


@checked(frozen=True)
class ModelCard:
    """What a model file says of itself; see the module."""

    schema_hash: str
    features: tuple[str, ...]
    actions: tuple[str, ...]
    feature_low: tuple[float, ...]
    feature_high: tuple[float, ...]
    golden: Golden
    memory: tuple[str, ...] = ()
    training: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A verified model, ready to run; `name` is the SHA-256 of its file."""

    name: str
    card: ModelCard
    session: onnxruntime.InferenceSession

    def run(self, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the outputs by name for float32 inputs by name, each of shape (1, size)."""
        names = [output.name for output in self.session.get_outputs()]
        values = self.session.run(names, dict(inputs))
        return {name: np.asarray(value, dtype=np.float32) for name, value in zip(names, values, strict=True)}

    def out_of_range(self, observation: Floats) -> tuple[str, ...]:
        """Return the features outside the ranges seen in training, with their values."""
        limits = zip(
            self.card.features, observation.ravel(), self.card.feature_low, self.card.feature_high, strict=True
        )
        return tuple(f"{name} {value:g}" for name, value, low, high in limits if not low <= value <= high)


def load_model(path: Path, schema_hash: str) -> Model:
    """Read, verify and try a model file.

    Checks, in order: size, name against content, that ONNX Runtime accepts it, its card, that it was trained on the
    observation with this `schema_hash`, and its golden inputs. Raises ModelRefused naming what is wrong and what to do.
    """
    content = _read(path)
    name = hashlib.sha256(content).hexdigest()
    if path.stem != name:
        raise _refused(path, f"its content has SHA-256 {name}: it is damaged or was renamed; copy it anew")
    try:
        session = onnxruntime.InferenceSession(content, _options(), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(path, f"ONNX Runtime cannot load it ({_first_line(error)}): export it anew") from None
    card = _card(path, session)
    if card.schema_hash != schema_hash:
        there, here = card.schema_hash[:12], schema_hash[:12]
        raise _refused(path, f"it was trained on observation {there}, this agent makes {here}: train it anew")
    model = Model(name, card, session)
    _try_golden(path, model)
    return model


def _refused(path: Path, remedy: str) -> ModelRefused:
    return ModelRefused("model file", str(path), remedy)


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LARGEST_MODEL_BYTES:
            raise _refused(path, f"it has {size} bytes, more than {LARGEST_MODEL_BYTES}: name a model of this program")
        return path.read_bytes()
    except OSError as error:
        raise _refused(path, f"{error.strerror}: name a file that can be read") from None


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    # One thread: a step takes some ten microseconds, and threads would only wait for each other.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _card(path: Path, session: onnxruntime.InferenceSession) -> ModelCard:
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise _refused(path, f"it has no `{METADATA_KEY}` metadata: it is no model of this program")
    try:
        card = TypeAdapter(ModelCard).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _refused(path, f"its card is wrong, {where}: {first['msg'].lower()}; export it anew") from None
    if not len(card.features) == len(card.feature_low) == len(card.feature_high):
        raise _refused(path, "its card has features and ranges of different number; export it anew")
    return card


def _try_golden(path: Path, model: Model) -> None:
    golden = model.card.golden
    inputs = {name: np.array(values, dtype=np.float32) for name, values in golden.inputs.items()}
    try:
        outputs = model.run(inputs)
    except Exception as error:
        raise _refused(path, f"it fails on its golden inputs ({_first_line(error)}): export it anew") from None
    for name, wanted in golden.outputs.items():
        found = outputs.get(name)
        # Written so that nan does not pass.
        if found is None or found.shape != np.shape(wanted) or not (np.abs(found - wanted) <= golden.tolerance).all():
            raise _refused(path, f"its output {name} for the golden inputs is not the trainer's: export it anew")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


class ModelSlot:
    """Holds the model in use; a file that is refused leaves the one before it in place."""

    def __init__(self, schema_hash: str) -> None:
        self._schema_hash = schema_hash
        self._lock = threading.Lock()
        self._model: Model | None = None
        self.refusal = ""

    @property
    def model(self) -> Model | None:
        """The model in use, None before the first."""
        return self._model

    def load(self, path: Path) -> Model:
        """Verify the file and put it in use.

        On ModelRefused the old one stays, and `refusal` says why until a load succeeds.
        """
        with self._lock:
            try:
                model = load_model(path, self._schema_hash)
            except ModelRefused as refusal:
                self.refusal = str(refusal)
                raise
            self._model, self.refusal = model, ""
            return model
