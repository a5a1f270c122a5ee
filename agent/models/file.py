"""Model files: ONNX, verified before they are used.

A model file is named after its own SHA-256, `<sha256>.onnx`, and carries one metadata entry, `trimtab`, with a JSON
card. `open_model`, `card_in` and `try_golden` serve the models of every decision; `load_model` those of fleets.

A network's card is `agent.models.card.ModelCard`. Its inputs are `observation`, of shape (batch, features), and one per
memory, of shape (batch, hidden size); its outputs `logits`, (batch, actions), and `<memory>_next`; `value`, (batch, 1),
is recorded where there is one. A scorer's card is `ScorerCard`: `state` and `candidates`, (candidates, features), in;
`score`, (candidates, voters), and `gain`, (candidates, 1), out; with a memory that is trained `hidden` and `cell`,
(candidates, cells), in, and the same with `_next` out. All are float32.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from agent.models.card import Golden, ModelCard, ScorerCard, fault_of, recurrent_inputs
from agent.models.directory import ModelRefused, read_model_file, refused

__all__ = ["METADATA_KEY", "AnyModel", "Golden", "Model", "ModelCard", "ModelRefused", "load_model"]

Card = TypeVar("Card")
OfFleets = TypeVar("OfFleets", bound="ModelCard | ScorerCard")
LOAD_DEADLINE_S = 20.0
"""ONNX Runtime takes some ten milliseconds for a model of ours; it runs parts of a graph already to simplify it."""
GOLDEN_DEADLINE_S = 5.0
METADATA_KEY = "trimtab"
OBSERVATION, LOGITS, VALUE = "observation", "logits", "value"
STATE, CANDIDATES, SCORE, GAIN = "state", "candidates", "score", "gain"

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Model(Generic[OfFleets]):
    """A verified model, ready to run; `name` is the SHA-256 of its file, `outputs` are those of its graph."""

    name: str
    card: OfFleets
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


AnyModel: TypeAlias = Model[ModelCard] | Model[ScorerCard]


def load_model(path: Path) -> AnyModel:
    """Read, verify and try a model file.

    Checks, in order: size, name against content, that ONNX Runtime accepts it, its card, that its observation is made
    here, its inputs and outputs, and its golden inputs. Raises ModelRefused naming what is wrong and what to do.
    """
    name, session, text = open_model(path)
    if _is_scorer(text):
        scorer = card_in(path, text, ScorerCard)
        return Model(name, scorer, session, _tried(path, scorer, session, SCORE))
    card = card_in(path, text, ModelCard)
    return Model(name, card, session, _tried(path, card, session, LOGITS))


def _is_scorer(text: str) -> bool:
    try:
        card = json.loads(text)
    except ValueError:
        return False
    return isinstance(card, dict) and "form" in card


def _tried(
    path: Path, card: ModelCard | ScorerCard, session: onnxruntime.InferenceSession, compared: str
) -> tuple[str, ...]:
    """Return the outputs of a graph that is as its card says; `compared` must be among the golden ones."""
    fault = fault_of(card)
    if fault:
        raise refused(path, f"{fault}: train or export it again")
    _check_graph(path, card, session)
    golden = card.golden
    outputs = try_golden(path, session, golden.inputs, golden.outputs, golden.tolerance)
    if compared not in golden.outputs:
        raise refused(path, f"its golden outputs have no {compared} to compare: export it again")
    return outputs


def open_model(path: Path) -> tuple[str, onnxruntime.InferenceSession, str]:
    """Return the SHA-256 of a model file of any kind, its session, and its card as text; raises ModelRefused."""
    model = read_model_file(path)
    options = _options()
    try:
        with _within(LOAD_DEADLINE_S, lambda: options.set_load_cancellation_flag(True)) as late:
            session = session_of(model.content, options)
    except Exception as error:
        if late.is_set():
            raise refused(
                path, f"ONNX Runtime took longer than {LOAD_DEADLINE_S:g} s to load it: export it again"
            ) from None
        raise refused(path, f"ONNX Runtime cannot load it ({first_line(error)}): export it again") from None
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise refused(path, f"it has no `{METADATA_KEY}` metadata: it is not a model of this program")
    return model.sha256, session, text


def session_of(content: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime for a graph, on one thread of the CPU."""
    return onnxruntime.InferenceSession(content, options or _options(), providers=["CPUExecutionProvider"])


def card_in(path: Path, text: str, kind: type[Card]) -> Card:
    """Return the card of that kind in a model's metadata; ModelRefused names its first wrong field."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise refused(path, f"its card is wrong, {where}: {first['msg'].lower()}; export it again") from None


def try_golden(
    path: Path,
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, ArrayLike],
    outputs: Mapping[str, ArrayLike],
    tolerance: float,
) -> tuple[str, ...]:
    """Return the names of the graph's outputs, tried on its golden inputs.

    ModelRefused unless each golden output is there with the trainer's shape and values.
    """
    names = tuple(output.name for output in session.get_outputs())
    given = {name: np.array(values, dtype=np.float32) for name, values in inputs.items()}
    try:
        found = dict(zip(names, run_within(session, names, given, GOLDEN_DEADLINE_S), strict=True))
    except Exception as error:
        raise refused(path, f"it fails on its golden inputs ({first_line(error)}): export it again") from None
    for name, wanted in outputs.items():
        values = found.get(name)
        # Written so that nan does not pass.
        if values is None or values.shape != np.shape(wanted) or not (np.abs(values - wanted) <= tolerance).all():
            raise refused(path, f"its output {name} for the golden inputs is not the trainer's: export it again")
    return names


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


def _check_graph(path: Path, card: ModelCard | ScorerCard, session: onnxruntime.InferenceSession) -> None:
    inputs = {node.name: node.shape[-1] for node in session.get_inputs()}
    outputs = {node.name: node.shape[-1] for node in session.get_outputs()}
    if isinstance(card, ScorerCard):
        memory = dict.fromkeys(recurrent_inputs(card), card.cells)
        wanted = {STATE: len(card.features), CANDIDATES: len(card.candidate_features), **memory}
        given = {SCORE: card.voters, GAIN: 1}
    else:
        memory = dict.fromkeys(card.memory, card.hidden_size)
        wanted = {OBSERVATION: len(card.features), **memory}
        given = {LOGITS: len(card.actions)}
    given |= {f"{name}_next": size for name, size in memory.items()}
    if inputs != wanted or {name: outputs.get(name) for name in given} != given:
        shown = f"{_sizes(inputs)} in, {_sizes(outputs)} out"
        asked = f"{_sizes(wanted)} in, {_sizes(given)} out"
        raise refused(path, f"its graph has {shown}, its card declares {asked}: export it again")


def _sizes(nodes: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {size}" for name, size in nodes.items())


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, at most 160 characters of it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
