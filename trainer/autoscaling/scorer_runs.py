"""One training run of a scorer in a directory, and its model file. A stopped run continues, with the same weights.

    recipe.json      the inputs of the run: recipe, seed, where lessons come from, version of the code
    samples/         samples of the lessons, in parts: 000120.npz begins with lesson 120 of the run
    curve.csv        a row per part and per round
    MODEL.onnx       the file that the agent runs, named after its content
    run.json         the figures and the name of the model file; a run is finished once it is there

Networks are fitted from the samples and seeds alone, so that nothing else has to be stored: a run that is
stopped at any moment loses at most the parts that were being played. The model file is written only after ONNX Runtime
agrees with `simulator.autoscaling.branching.score`, which the scorer is trained and judged with.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from pydantic import TypeAdapter

from agent.models.card import ScorerCard, scorer_schema
from agent.models.file import load_model, session_of
from agent.models.shipped import shipped_models, with_file
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATE_FEATURES, CANDIDATES, STATE_FEATURES, STATES, judge
from simulator.autoscaling.branching import Branches, advance, score, without_memory
from trainer.autoscaling.scorer import MOST_SEED, Ensemble, Meter, Plan, Recipe, Scorer, train
from trainer.kit.checkpoint import OtherConfiguration, differences, package_versions
from trainer.kit.export import MEMORY, ONNX_GATES, Dense, ExportFailed, Recurrent, build_ensembles, store
from trainer.kit.files import write_json
from trainer.kit.jobs import HERE, Pool, Workers
from trainer.kit.progress import BAR, LINES, SILENT
from trainer.kit.runs import RUN_FILE

Floats = NDArray[np.float32]
RECIPE_FILE, SAMPLES_FOLDER = "recipe.json", "samples"
PARITY = 1e-4
"""Largest difference allowed between ONNX Runtime's answers, of 32 bits, and the kernel's."""
GOLDEN_MINUTES, GOLDEN_TOLERANCE = 3, 1e-3
FAR = 0.5
"""A feature further beyond its range in training than this share of it leaves the minute to the queue rule."""
SEEN = STATES + CANDIDATES
SHIPPED_SCORER = "scorer"


def run(plan: Plan, directory: Path, *, workers: Workers = HERE, resume: bool = False, show: str = SILENT) -> Scorer:
    """Train as planned, or continue the run in the directory, and return the trained scorer.

    workers: play lessons and fit networks; the result does not depend on them. Raises BadInput when
    the directory holds a run and `resume` is false, OtherConfiguration when it holds one of another plan.
    """
    check_run(plan, directory, resume=resume)
    samples = directory / SAMPLES_FOLDER
    samples.mkdir(parents=True, exist_ok=True)
    write_json(directory / RECIPE_FILE, plan.plain())
    if not (directory / RUN_FILE).exists():
        meter = Meter(plan, directory, show)
        with _one_thread(), Pool(_timed, workers, name=lambda task: "a lesson or a network") as pool, meter.listeners:

            def spread(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
                for answer, cpu_s in pool.run([partial(work, item) for item in items]):
                    meter.cpu_s += cpu_s
                    yield answer

            scorer = train(plan, samples, spread, meter)
            scorer = plan.conclude(scorer, lambda work, items: meter.conclude(spread(work, items), len(items)))
            meter.finish(scorer)
        model = write_model(scorer, _branched_minutes(plan), directory)
        facts = {
            "margin": scorer.margin,
            "idle_limit_min": scorer.idle_limit_min,
            "weights_hash": scorer.digest,
            "figures": dict(scorer.figures),
            "wall_s": meter.wall_s,
            "cpu_s": meter.cpu_s,
            "packages": package_versions(),
        }
        write_json(directory / RUN_FILE, {**plan.plain(), **facts, "model": model.name})
    shutil.rmtree(samples, ignore_errors=True)
    return scorer_in(directory)


def check_run(plan: Plan, directory: Path, *, resume: bool) -> None:
    """Raise BadInput for a seed above MOST_SEED, or when a run would go over another one or another plan's."""
    if not 0 <= plan.seed <= MOST_SEED:
        raise BadInput("seed", plan.seed, f"give a whole number in 0..{MOST_SEED}: other lessons are kept for reports")
    try:
        saved = json.loads((directory / RECIPE_FILE).read_text("utf-8"))
    except FileNotFoundError:
        if (directory / RUN_FILE).exists() or (directory / "checkpoints").exists():
            raise BadInput("--out", str(directory), "it holds a run of another form: give another --out") from None
        return
    except ValueError:
        raise BadInput("--out", str(directory), f"{RECIPE_FILE} is damaged: give another --out") from None
    if not resume:
        raise BadInput("--out", str(directory), "it holds a run: give --resume to continue it, or another --out")
    if wrong := differences(saved, plan.plain()):
        raise OtherConfiguration(directory, wrong)


def _timed(task: Callable[[], Any]) -> tuple[Any, float]:
    """Return a task's answer, and the seconds of a processor that it took."""
    torch.set_num_threads(1)
    begun = time.process_time()
    return task(), time.process_time() - begun


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: how many it uses would change the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _branched_minutes(plan: Plan) -> Branches:
    """Return branched minutes of a lesson, to compare the model file with the trained weights."""
    for lesson in plan.lessons(0, 20):
        found = lesson.episodes().play(
            lesson.seed, branch_share=1.0, most=40, steps=0, announcements=lesson.announcements
        )
        if found.counts.size:
            return found
    raise BadInput("lessons", 0, "no minute has a choice: give loads with jobs that wait")


def shown_as(silent: bool) -> str:
    """Return how a run of the command line shows its progress."""
    return SILENT if silent else BAR if sys.stderr.isatty() else LINES


def write_model(scorer: Scorer, minutes: Branches, directory: Path) -> Path:
    """Write `<sha256>.onnx` into a directory and return its path.

    minutes: on which ONNX Runtime must agree; the first few are the card's golden inputs. Raises ExportFailed.
    """
    ensembles = {"score": scorer.weights, "gain": scorer.gains}
    recurrent = _recurrent(scorer.weights)
    cells = 0 if recurrent is None else recurrent.size
    networks = {name: _layers(ensemble, cells) for name, ensemble in ensembles.items()}
    model = build_ensembles({"state": STATES, "candidates": CANDIDATES}, networks, "scorer", recurrent)
    session = session_of(model.SerializeToString())
    if not minutes.counts.size:
        raise BadInput("branched minutes", "none", "give episodes with a minute that has two candidates or more")
    golden_in: list[dict[str, Floats]] = []
    golden_out: list[dict[str, Floats]] = []
    memory = {name: np.zeros((1, cells), dtype=np.float32) for name in MEMORY} if cells else {}
    outputs = [*networks, *(f"{name}_next" for name in memory)]
    carried = {name: np.zeros((2, len(part[6]), part[6].shape[1])) for name, part in ensembles.items()}
    for place, count in enumerate(minutes.counts.tolist()):
        inputs = {
            "state": np.repeat(minutes.states[place][None], count, axis=0).astype(np.float32),
            "candidates": minutes.candidates[place, :count].astype(np.float32),
            **{name: np.repeat(values, count, axis=0) for name, values in memory.items()},
        }
        found = dict(zip(outputs, session.run(outputs, inputs), strict=True))
        memory = {name: found[f"{name}_next"][:1] for name in memory}
        for name, ensemble in ensembles.items():
            wanted, answer = np.zeros(count), np.zeros(count)
            advance(minutes.states[place], ensemble, carried[name])
            score(minutes.states[place], minutes.candidates[place, :count], count, ensemble, carried[name], wanted)
            judge(found[name].astype(np.float64), count, answer)
            gap = float((np.abs(answer - wanted) / np.maximum(np.abs(wanted), 1.0)).max())
            # Written so that nan does not pass.
            if not gap <= PARITY:
                raise ExportFailed(f"ONNX Runtime differs from the trained scorer in {name} by {gap:g}")
        if place < GOLDEN_MINUTES:
            golden_in.append(inputs)
            golden_out.append(found)
    card = {
        "form": "scorer",
        "voters": len(scorer.weights[0]),
        "cells": cells,
        "schema_hash": scorer_schema(),
        "features": STATE_FEATURES,
        "candidate_features": CANDIDATE_FEATURES,
        "feature_low": scorer.least.tolist(),
        "feature_high": scorer.greatest.tolist(),
        "margin": scorer.margin,
        "idle_limit_min": scorer.idle_limit_min,
        "far": FAR,
        "branch_min": scorer.recipe.branch_steps + 1.0,
        "golden": {"inputs": _rows(golden_in), "outputs": _rows(golden_out), "tolerance": GOLDEN_TOLERANCE},
        "training": {
            "recipe": asdict(scorer.recipe),
            "seed": scorer.seed,
            "usual_low": scorer.low.tolist(),
            "usual_high": scorer.high.tolist(),
        },
        "evaluation": dict(scorer.figures),
    }
    return store(model, card, directory)


def read_model(path: Path) -> Scorer:
    """Return the scorer of a model file; ModelRefused for a file that cannot be used, BadInput for a network."""
    card = load_model(path).card
    if not isinstance(card, ScorerCard):
        raise BadInput("model file", str(path), "it is a recurrent network: give the file of a scorer")
    graph = onnx.load(path).graph
    constants = iter([numpy_helper.to_array(constant).astype(np.float32) for constant in graph.initializer])
    gates = [next(constants)[0] for _ in range(4)][1:] if card.cells else []
    sizes = [len(node.input) for node in graph.node if node.output[0] in ("score", "gain")]
    # As `_layers` has them: of each network weight and bias of its three layers, the scores' networks first.
    scores, gains = ([[next(constants) for _ in range(6)] for _ in range(size)] for size in sizes)
    training = card.training or {}
    return Scorer(
        weights=_ensemble(scores, gates),
        gains=_ensemble(gains, []),
        margin=card.margin,
        idle_limit_min=card.idle_limit_min,
        low=np.array(training["usual_low"], dtype=np.float32),
        high=np.array(training["usual_high"], dtype=np.float32),
        least=np.array(card.feature_low, dtype=np.float32),
        greatest=np.array(card.feature_high, dtype=np.float32),
        recipe=TypeAdapter(Recipe).validate_python(training["recipe"]),
        seed=int(training["seed"]),
        figures=dict(card.evaluation or {}),
    )


def _ensemble(networks: Sequence[Sequence[Floats]], gates: Sequence[Floats]) -> Ensemble:
    """Return the weights of networks; gates: weights and biases of their joined LSTM, as `_recurrent` has them."""
    first, first_bias, second, second_bias, last, _ = (np.stack(part) for part in zip(*networks, strict=True))
    layers = (first.transpose(0, 2, 1).copy(), first_bias, second.transpose(0, 2, 1).copy(), second_bias, last[:, 0])
    if not gates:
        return (layers[0][:, :SEEN].copy(), *layers[1:], *without_memory(len(networks)))
    voters, cells = len(networks), gates[1].shape[1] // len(networks)
    parts = [gate.reshape(4, voters, cells, -1) for gate in (gates[0], gates[1], gates[2][: 4 * voters * cells])]
    inward, across, bias = ([part[:, e].reshape(4 * cells, -1).T for e in range(voters)] for part in parts)
    own = [np.r_[:SEEN, SEEN + e * cells : SEEN + (e + 1) * cells] for e in range(voters)]
    return (
        np.stack([layers[0][e, own[e]] for e in range(voters)]),
        *layers[1:],
        np.stack(inward),
        np.stack([across[e][e * cells : (e + 1) * cells] for e in range(voters)]),
        np.stack(bias)[:, 0],
    )


def _recurrent(ensemble: Ensemble) -> Recurrent | None:
    """Return the LSTMs of an ensemble as one, in which no cell sees those of another network; None without any."""
    inward, across, bias = ensemble[5:]
    voters, cells = across.shape[:2]
    if not cells:
        return None
    joined = np.zeros((4, voters, cells, voters, cells), dtype=np.float32)
    for e in range(voters):
        joined[:, e, :, e] = across[e].T.reshape(4, cells, cells)
    rows = 4 * voters * cells
    biases = bias.reshape(voters, 4, cells).transpose(1, 0, 2).reshape(rows)
    weights = inward.transpose(0, 2, 1).reshape(voters, 4, cells, STATES).transpose(1, 0, 2, 3).reshape(rows, STATES)
    # One bias vector: the other stays empty.
    return Recurrent(weights, joined.reshape(rows, voters * cells), biases, np.zeros_like(biases), ONNX_GATES)


def _layers(ensemble: Ensemble, cells: int) -> list[list[Dense]]:
    """Return the networks of an ensemble as layers; cells: of all LSTMs, of which a network sees its part."""
    found = []
    for e, (first, first_bias, second, second_bias, last) in enumerate(zip(*ensemble[:5], strict=True)):
        own = len(first) - SEEN
        whole = np.zeros((SEEN + cells, first.shape[1]), dtype=np.float32)
        whole[:SEEN], whole[SEEN + e * own : SEEN + (e + 1) * own] = first[:SEEN], first[SEEN:]
        found.append(
            [
                Dense(np.ascontiguousarray(whole.T), first_bias, "Relu"),
                Dense(np.ascontiguousarray(second.T), second_bias, "Relu"),
                Dense(last[None], np.zeros(1, dtype=np.float32)),
            ]
        )
    return found


def _rows(parts: Sequence[dict[str, Floats]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]).tolist() for name in parts[0]}


def shipped_scorer() -> Path:
    """Return the file of the scorer that comes with the program; BadInput where none does."""
    for shipped in shipped_models():
        if isinstance(load_model(shipped.path).card, ScorerCard):
            return shipped.path
    remedy = "no scorer ships with this version: give a FILE.onnx or the directory of a run"
    raise BadInput("--from", SHIPPED_SCORER, remedy)


def scorer_in(directory: Path) -> Scorer:
    """Return the scorer of a finished run; BadInput for the directory of anything else."""
    path = directory / RUN_FILE
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("run", str(path), f"{error}: give the directory of a finished run") from None
    if summary.get("form") != "scorer":
        raise BadInput("run", str(path), "it is the run of another form: give that of a scorer")
    return read_model(directory / summary["model"])


def scorer_named(text: str) -> Scorer:
    """Return the scorer that `scorer`, `lstm`, a model file or the directory of a run names; BadInput otherwise."""
    path = Path(with_file(text))
    if text == SHIPPED_SCORER:
        return read_model(shipped_scorer())
    if path.suffix == ".onnx":
        return read_model(path)
    for place in (path, path / "seed-0"):
        if (place / RUN_FILE).is_file():
            return scorer_in(place)
    raise BadInput("--from", text, "give scorer, lstm, a FILE.onnx of a scorer, or the directory of a finished run")
