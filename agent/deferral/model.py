"""A learned policy of deferral from its ONNX file: checked when it is read, and never believed blindly (§12, §13).

The file is what `trimtab train deferral` writes, named after its SHA-256: inputs `tokens` (batch, M, 18), `mask`
(batch, M), 1 for a row that counts, and `window` (batch, 24, 11); outputs `order` and `worth` (batch, M), the scores
for a decoding in their order and by knapsack, and `next` (batch, 4), what it foretells of the next step. All float32;
see `domain.rules.deferral.tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from agent.models.directory import refused
from agent.models.file import card_in, first_line, open_model, run_within, try_golden
from domain.rules.deferral.choosing import Decoding, Floats, ScoresUnusable, View, decode
from domain.rules.deferral.jobs import Ints
from domain.rules.deferral.tokens import (
    MOST_TOKENS,
    THETA,
    TOKEN_FEATURES,
    TOKENS_VERSION,
    WINDOW_FEATURES,
    WORTH,
    scores_of,
    tokens,
    values_of,
    window,
    with_waiting,
)

if TYPE_CHECKING:
    import onnxruntime

KIND: Final = "deferral-scores"
TOLERANCE: Final = 1e-4
DEADLINE_S: Final = 1.0
"""A state of 128 jobs takes a few milliseconds."""
ORDER, WORTHS = "order", "worth"


@checked(frozen=True, config=ConfigDict(extra="ignore"))
class GoldenStates:
    """States and what the trainer's network answered to them."""

    tokens: list[list[list[float]]]
    mask: list[list[float]]
    window: list[list[list[float]]]
    order: list[list[float]]
    worth: list[list[float]]


@checked(frozen=True, config=ConfigDict(extra="ignore"))
class ScoreCard:
    """What a file says of itself.

    cref: mean capacity in training, cores. scenario: of the training. decoding: what its scores were chosen for. waits:
    whether jobs whose start is worth nothing wait. worth: core-steps for each core that a score of 1 stands for.
    """

    kind: Literal["deferral-scores"]
    version: Literal[1]
    tokens_version: str
    token_features: tuple[str, ...]
    window_features: tuple[str, ...]
    cref: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    worth: float
    scenario: str
    decoding: Literal["prefix", "skip", "knapsack"]
    waits: bool
    golden: GoldenStates
    training: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelScores:
    """What a model says of the jobs of `View.cur`.

    scores: [K]. For a knapsack the core-steps that a start in this step is worth, else the confidence that a job
    starts, -1 to 1, and -2 for a job that waits on purpose. dropped: jobs beyond the tokens of a state, which are
    scored by the per-step knapsack.
    """

    scores: Floats
    dropped: int


@dataclass(slots=True, eq=False)
class ScoreModel:
    """A verified model; `name` is the SHA-256 of its file. fault: why it is not followed any more, "" for nothing.

    After a score that is no number the model is unhealthy: it refuses every decision until it is loaded anew.
    """

    name: str
    card: ScoreCard
    session: onnxruntime.InferenceSession = field(repr=False)
    fault: str = ""

    def score(self, view: View, kind: Decoding | None = None) -> ModelScores:
        """Return the scores of a step; ScoresUnusable, and the model is unhealthy, where they are no numbers.

        kind: the decoding that they are for, else that of the card.
        """
        if self.fault:
            raise self._unhealthy(self.fault)
        state = tokens(view, self.card.cref, MOST_TOKENS)
        inputs = {
            "tokens": state.matrix[None],
            "mask": state.mask[None].astype(np.float32),
            "window": window(view, self.card.cref)[None],
        }
        order, worth = (scores_of(view, state, found) for found in self._answer(inputs))
        lost = int((~np.isfinite(order) | ~np.isfinite(worth)).sum())
        if lost:
            raise self._unhealthy(f"{lost} of {order.size} scores are not finite")
        if (kind or self.card.decoding) == "knapsack":
            return ModelScores(values_of(worth, view.cur.cores), state.dropped)
        return ModelScores(with_waiting(order, worth) if self.card.waits else order, state.dropped)

    def choose(self, view: View, kind: Decoding | None = None) -> Ints:
        """Return the positions in `view.cur` that start, never more than fits; raises as `score` does.

        kind: how scores are decoded, else as the model was chosen for.
        """
        return self.starts(view, self.score(view, kind).scores, kind)

    def starts(self, view: View, scores: Floats, kind: Decoding | None = None) -> Ints:
        """Return the positions that start by scores that `score` gave for the same decoding."""
        how, cores = kind or self.card.decoding, view.cur.cores
        theta = THETA if self.card.waits and how != "knapsack" else -np.inf
        return decode(scores, cores, view.free, how, ties=view.cur.submitted, theta=theta)

    def _answer(self, inputs: Mapping[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        try:
            found = [rows[0] for rows in run_within(self.session, [ORDER, WORTHS], inputs, DEADLINE_S)]
        except Exception as error:
            # Whatever ONNX Runtime raises: the step goes on without the model.
            raise self._unhealthy(f"it fails ({first_line(error)})") from None
        return found

    def _unhealthy(self, fault: str) -> ScoresUnusable:
        self.fault = fault
        return ScoresUnusable(f"model {self.name[:12]}: {fault}: load it again, or roll it back")


def load_score_model(path: Path) -> ScoreModel:
    """Read, verify and try a model file; ModelRefused, a BadInput, names what is wrong and what to do."""
    name, session, text = open_model(path)
    card = card_in(path, text, ScoreCard)
    here = (TOKENS_VERSION, TOKEN_FEATURES, WINDOW_FEATURES, WORTH)
    if (card.tokens_version, card.token_features, card.window_features, card.worth) != here:
        raise refused(
            path, f"it was trained on {card.tokens_version}, this program makes {TOKENS_VERSION}: train again"
        )
    golden = card.golden
    apart = "its golden states have different shapes: export it again"
    try:
        shape, window_axes = np.shape(golden.tokens)[:2], np.ndim(golden.window)
        of_states = {np.shape(one) for one in (golden.mask, golden.order, golden.worth)}
    except ValueError:
        # Lists of unequal lengths are no array.
        raise refused(path, apart) from None
    if of_states != {shape} or window_axes != 3:
        raise refused(path, apart)
    given: dict[str, ArrayLike] = {"tokens": golden.tokens, "mask": golden.mask, "window": golden.window}
    if {node.name for node in session.get_inputs()} != set(given):
        raise refused(path, f"its graph does not take {', '.join(given)}: export it again")
    try_golden(path, session, given, {ORDER: golden.order, WORTHS: golden.worth}, TOLERANCE)
    return ScoreModel(name, card, session)
