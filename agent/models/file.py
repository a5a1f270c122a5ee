"""Model files of learned policies: ONNX, verified before they are used, swapped whole or not at all.

A model file is named after its own SHA-256, `<sha256>.onnx`, and carries one metadata entry, `trimtab`, with a JSON
card (`agent.models.card.ModelCard`). Its inputs are `observation`, of shape (batch, features), and one per memory, of
shape (batch, hidden size); its outputs `logits`, (batch, actions), and `<memory>_next`; `value`, (batch, 1), is told
where there is one. All are float32.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from agent.models.card import Golden, ModelCard, fault_of
from agent.models.regular_files import read_file
from domain.errors import BadInput

__all__ = ["METADATA_KEY", "Golden", "Model", "ModelCard", "ModelRefused", "load_model"]

LARGEST_MODEL_BYTES = 64 * 1024 * 1024
LOAD_DEADLINE_S = 20.0
"""ONNX Runtime takes some ten milliseconds for a model of ours; it runs parts of a graph already to simplify it."""
GOLDEN_DEADLINE_S = 5.0
METADATA_KEY = "trimtab"
OBSERVATION, LOGITS, VALUE = "observation", "logits", "value"

Floats = NDArray[np.float32]


class ModelRefused(BadInput):
    """A model file is not used: it is missing, damaged, foreign, of another schema, or answers wrongly."""


@dataclass(frozen=True, slots=True)
class Model:
    """A verified model, ready to run; `name` is the SHA-256 of its file, `outputs` are those of its graph."""

    name: str
    card: ModelCard
    session: onnxruntime.InferenceSession
    outputs: tuple[str, ...]
    _runs: list[onnxruntime.RunOptions] = field(default_factory=list, repr=False, compare=False)

    def run(self, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the outputs by name for float32 inputs by name, each of shape (batch, size)."""
        options = _run_options()
        self._runs.append(options)
        try:
            values = self.session.run(self.outputs, inputs, options)
        finally:
            self._runs.remove(options)
        return dict(zip(self.outputs, values, strict=True))

    def give_up(self) -> None:
        """End the runs under way, whose callers get an error: a graph may hold a loop that never ends."""
        for options in tuple(self._runs):
            options.terminate = True

    def out_of_range(self, observation: Floats) -> dict[int, str]:
        """Return the features outside the ranges seen in training: name and value by position."""
        card = self.card
        limits = zip(card.features, observation.ravel(), card.feature_low, card.feature_high, strict=True)
        return {k: f"{name} {v:g}" for k, (name, v, low, high) in enumerate(limits) if not low <= v <= high}


def load_model(path: Path, expected_schema: str | None = None) -> Model:
    """Read, verify and try a model file.

    Checks, in order: size, name against content, that ONNX Runtime accepts it, its card, that its observation is made
    here (and is the one with the hash `expected_schema`, where given), its inputs and outputs, and its golden inputs.
    Raises ModelRefused naming what is wrong and what to do.
    """
    name, session, text = open_model(path)
    card = _card(path, text)
    if expected_schema is not None and card.schema_hash != expected_schema:
        there, here = card.schema_hash[:12], expected_schema[:12]
        raise refused(path, f"it was trained on observation {there}, {here} is asked for: name another model")
    _check_graph(path, card, session)
    model = Model(name, card, session, tuple(output.name for output in session.get_outputs()))
    _try_golden(path, model)
    return model


def open_model(path: Path) -> tuple[str, onnxruntime.InferenceSession, str]:
    """Return the SHA-256 of a model file of any kind, its session, and its card as text; raises ModelRefused."""
    content = _read(path)
    name = hashlib.sha256(content).hexdigest()
    if path.stem != name:
        raise refused(path, f"its content has SHA-256 {name}: it is damaged or was renamed; copy it anew")
    options = _options()
    try:
        with _within(LOAD_DEADLINE_S, lambda: options.set_load_cancellation_flag(True)) as late:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if late.is_set():
            raise refused(
                path, f"ONNX Runtime took longer than {LOAD_DEADLINE_S:g} s to load it: export it anew"
            ) from None
        raise refused(path, f"ONNX Runtime cannot load it ({first_line(error)}): export it anew") from None
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise refused(path, f"it has no `{METADATA_KEY}` metadata: it is no model of this program")
    return name, session, text


def refused(path: Path, remedy: str) -> ModelRefused:
    """Return the refusal of a model file."""
    return ModelRefused("model file", str(path), remedy)


def _read(path: Path) -> bytes:
    try:
        return read_file(path, LARGEST_MODEL_BYTES)
    except OSError as error:
        wrong_kind = error.errno in (errno.EFBIG, errno.EINVAL)
        remedy = "name a model of this program" if wrong_kind else "name a file that can be read"
        raise refused(path, f"{error.strerror}: {remedy}") from None


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    # One thread: a step takes some ten microseconds, and threads would only wait for each other.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _run_options() -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    # What goes wrong is raised; ONNX Runtime would write it to standard error as well, past our log.
    options.log_severity_level = 4
    return options


@contextlib.contextmanager
def _within(deadline_s: float, give_up: Callable[[], object]) -> Iterator[threading.Event]:
    """Call `give_up` from another thread once the block has lasted `deadline_s`; the event says whether that was so."""
    late = threading.Event()

    def end() -> None:
        late.set()
        give_up()

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def run_within(
    session: onnxruntime.InferenceSession, outputs: Sequence[str], inputs: Mapping[str, Floats], deadline_s: float
) -> Sequence[Floats]:
    """Return the outputs of one run of a graph; TimeoutError when it lasts longer than `deadline_s` seconds."""
    options = _run_options()
    try:
        with _within(deadline_s, lambda: setattr(options, "terminate", True)) as late:
            values: Sequence[Floats] = session.run(outputs, inputs, options)
    except Exception as error:
        if late.is_set():
            raise TimeoutError(f"no answer within {deadline_s:g} s") from None
        raise error from None
    return values


def _card(path: Path, text: str) -> ModelCard:
    try:
        card = TypeAdapter(ModelCard).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise refused(path, f"its card is wrong, {where}: {first['msg'].lower()}; export it anew") from None
    fault = fault_of(card)
    if fault:
        raise refused(path, f"{fault}: train or export it anew")
    return card


def _check_graph(path: Path, card: ModelCard, session: onnxruntime.InferenceSession) -> None:
    inputs = {node.name: node.shape[-1] for node in session.get_inputs()}
    outputs = {node.name: node.shape[-1] for node in session.get_outputs()}
    memory = dict.fromkeys(card.memory, card.hidden_size)
    wanted = {OBSERVATION: len(card.features), **memory}
    given = {LOGITS: len(card.actions), **{f"{name}_next": size for name, size in memory.items()}}
    if inputs != wanted or {name: outputs.get(name) for name in given} != given:
        shown = f"{_sizes(inputs)} in, {_sizes(outputs)} out"
        asked = f"{_sizes(wanted)} in, {_sizes(given)} out"
        raise refused(path, f"its graph has {shown}, its card says {asked}: export it anew")


def _sizes(nodes: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {size}" for name, size in nodes.items())


def _try_golden(path: Path, model: Model) -> None:
    golden = model.card.golden
    inputs = {name: np.array(values, dtype=np.float32) for name, values in golden.inputs.items()}
    try:
        values = run_within(model.session, model.outputs, inputs, GOLDEN_DEADLINE_S)
    except Exception as error:
        raise refused(path, f"it fails on its golden inputs ({first_line(error)}): export it anew") from None
    outputs = dict(zip(model.outputs, values, strict=True))
    if LOGITS not in golden.outputs:
        raise refused(path, "its golden outputs have no logits to compare: export it anew")
    for name, wanted in golden.outputs.items():
        found = outputs.get(name)
        # Written so that nan does not pass.
        if found is None or found.shape != np.shape(wanted) or not (np.abs(found - wanted) <= golden.tolerance).all():
            raise refused(path, f"its output {name} for the golden inputs is not the trainer's: export it anew")


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, at most 160 characters of it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
