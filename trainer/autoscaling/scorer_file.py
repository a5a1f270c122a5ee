"""Writes a trained scorer as the one file that the agent runs, and reads its weights back.

The file is written only after ONNX Runtime has agreed with `simulator.autoscaling.branching.score`, which the scorer
was trained and judged with, on branched minutes of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from pydantic import TypeAdapter

from agent.models.card import ScorerCard, scorer_schema
from agent.models.file import load_model, session_of
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import (
    CANDIDATE_FEATURES,
    CANDIDATES,
    STATE_FEATURES,
    STATES,
    judge,
)
from simulator.autoscaling.branching import Branches, Weights, score
from trainer.autoscaling.scorer import Recipe, Trained
from trainer.kit.export import Dense, ExportFailed, build_ensembles, store

PARITY = 1e-4
"""Largest difference allowed between ONNX Runtime's answers, of 32 bits, and the kernel's."""
GOLDEN_MINUTES, GOLDEN_TOLERANCE = 3, 1e-3

FAR = 0.5
"""A feature further beyond its range in training than this share of it leaves the minute to the queue rule."""

Floats = NDArray[np.float32]


def write_model(trained: Trained, minutes: Branches, directory: Path) -> Path:
    """Write `<sha256>.onnx` into a directory and return its path.

    minutes: branched minutes of some episodes, on which ONNX Runtime must agree; the first few are the card's golden
    inputs. Raises ExportFailed.
    """
    networks = {"score": _networks(trained.weights), "gain": _networks(trained.gains)}
    model = build_ensembles({"state": STATES, "candidates": CANDIDATES}, networks, "scorer")
    session = session_of(model.SerializeToString())
    if not minutes.counts.size:
        raise BadInput("branched minutes", "none", "give episodes with a minute that has two candidates or more")
    golden_in: list[dict[str, Floats]] = []
    golden_out: list[dict[str, Floats]] = []
    for place, count in enumerate(minutes.counts.tolist()):
        inputs = {
            "state": np.repeat(minutes.states[place][None], count, axis=0).astype(np.float32),
            "candidates": minutes.candidates[place, :count].astype(np.float32),
        }
        found = dict(zip(networks, session.run(list(networks), inputs), strict=True))
        for name, weights in (("score", trained.weights), ("gain", trained.gains)):
            wanted, answer = np.zeros(count), np.zeros(count)
            score(minutes.states[place], minutes.candidates[place, :count], count, weights, wanted)
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
        "voters": len(trained.weights[0]),
        "schema_hash": scorer_schema(),
        "features": STATE_FEATURES,
        "candidate_features": CANDIDATE_FEATURES,
        "feature_low": trained.least.tolist(),
        "feature_high": trained.greatest.tolist(),
        "margin": trained.margin,
        "idle_limit_min": trained.idle_limit_min,
        "far": FAR,
        "branch_min": trained.recipe.branch_steps + 1.0,
        "golden": {"inputs": _joined(golden_in), "outputs": _joined(golden_out), "tolerance": GOLDEN_TOLERANCE},
        "training": {
            "recipe": asdict(trained.recipe),
            "seed": trained.seed,
            "usual_low": trained.low.tolist(),
            "usual_high": trained.high.tolist(),
        },
        "evaluation": dict(trained.figures),
    }
    return store(model, card, directory)


def read_trained(path: Path) -> Trained:
    """Return what a scorer's model file holds; ModelRefused for a file that cannot be used, BadInput for a network."""
    card = load_model(path).card
    if not isinstance(card, ScorerCard):
        raise BadInput("model file", str(path), "it is a recurrent network: give the file of a scorer")
    graph = onnx.load(path).graph
    constants = iter([numpy_helper.to_array(constant).astype(np.float32) for constant in graph.initializer])
    sizes = [len(node.input) for node in graph.node if node.output[0] in ("score", "gain")]
    # As `_networks` laid them down: of each network weight and bias of its three layers, the scores' networks first.
    scores, gains = ([[next(constants) for _ in range(6)] for _ in range(size)] for size in sizes)
    training = card.training or {}
    return Trained(
        weights=_stacked(scores),
        gains=_stacked(gains),
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


def _stacked(networks: Sequence[Sequence[Floats]]) -> tuple[Weights, ...]:
    first, first_bias, second, second_bias, last, _ = (np.stack(part) for part in zip(*networks, strict=True))
    return first.transpose(0, 2, 1).copy(), first_bias, second.transpose(0, 2, 1).copy(), second_bias, last[:, 0]


def _joined(rows: Sequence[dict[str, Floats]]) -> dict[str, Any]:
    return {name: np.concatenate([row[name] for row in rows]).tolist() for name in rows[0]}


def _networks(weights: tuple[Weights, ...]) -> list[list[Dense]]:
    """Return the layers of each network of an ensemble, weights as `simulator.autoscaling.branching.score` has them."""
    return [
        [
            Dense(np.ascontiguousarray(first.T), first_bias, "Relu"),
            Dense(np.ascontiguousarray(second.T), second_bias, "Relu"),
            Dense(last[None], np.zeros(1, dtype=np.float32)),
        ]
        for first, first_bias, second, second_bias, last in zip(*weights, strict=True)
    ]
