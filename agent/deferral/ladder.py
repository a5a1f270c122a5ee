"""The policies of a pool, the first that answers decides: learned, rolling plan, knapsack, first come.

A policy is believed in nothing: one that raises, is late, or starts what does not fit is passed over and the next is
asked. Scores that are not finite let the knapsack decide the whole step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from agent.deferral.records import PolicyAttempt
from agent.deferral.rolling import RollingPlan, check_available
from agent.deferral.settings import FIFO, KNAPSACK, LADDER, LEARNED, ROLLING, DeferralSettings
from agent.kernel.deadline import Deadlines, Late, StillRunning
from agent.models.directory import ModelsDirectory
from domain.errors import BadInput, PolicyFailure, TrimtabError
from domain.rules.deferral.choosing import ScoresUnusable, View, fifo, knapsack, knapsack_values, take_in_order
from domain.rules.deferral.jobs import Ints
from domain.subject import Subject

if TYPE_CHECKING:
    from agent.deferral.model import ScoreModel

Floats = NDArray[np.float64]

LARGEST_KNAPSACK: Final = 50_000_000
"""Jobs times free cores of the largest knapsack that is solved; beyond, first come decides."""
_GRACE_S: Final = 0.05
_WAITS: Final = {ROLLING: 10.0}
"""Times its budget that an answer is awaited: a plan's is processor time, of which a busy machine gives little."""
_LONGEST_WAIT_S: Final = 5.0
"""A step waits no longer for an answer whose budget is shorter."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Positions in `View.cur` that start, and a score of every job of it where the policy has one."""

    positions: Ints
    scores: Floats | None = None


Rung = Callable[[View, Floats, float], Starts | None]
"""Decides on a view and the capacity that is expected after it, within so many seconds; None: it has no answer."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What was decided: by which policy, what starts, a score for every job of `View.cur`, and what was tried."""

    policy: str
    positions: Ints
    scores: Floats
    tried: tuple[PolicyAttempt, ...]

    @property
    def fell_back(self) -> bool:
        """Whether another policy decided than the first that was asked."""
        return len(self.tried) > 1


def knapsack_rung(view: View, path: Floats, budget_s: float) -> Starts | None:
    """Start the most valuable jobs that fit."""
    if view.cur.size * max(0, view.free) > LARGEST_KNAPSACK:
        return None
    values = knapsack_values(view)
    return Starts(knapsack(values, view.cur.cores, view.free), values)


def fifo_rung(view: View, path: Floats, budget_s: float) -> Starts:
    """Start jobs in the order of their submission, passing over those that do not fit."""
    return Starts(take_in_order(fifo(view.cur), view.cur.cores, view.free, "skip"))


def wait_of(policy: str, budget_s: float) -> float:
    """Return for how many seconds the answer of a policy with this budget is awaited."""
    return max(budget_s, min(_WAITS.get(policy, 1.0) * budget_s, _LONGEST_WAIT_S))


@dataclass(slots=True)
class Ladder:
    """Policies by name. learned, rolling: None where there is none, and its name in `absent` says why.

    A policy that hangs is not asked again before it has ended.
    """

    first: str
    rungs: Mapping[str, Rung]
    budgets_s: Mapping[str, float]
    absent: Mapping[str, str] = field(default_factory=dict)
    _deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def problem(self) -> str:
        """The error of a first policy that cannot run, with its replacement; "" if it can."""
        if self.first in self.rungs:
            return ""
        instead = next(name for name in LADDER[LADDER.index(self.first) :] if name in self.rungs)
        return f"policy {self.first} cannot run, {instead} decides: {self.absent.get(self.first, 'it is absent')}"

    def decide(self, view: View, path: Floats) -> PolicyChoice:
        """Return what starts; with no job or no room nothing is asked. path: the capacity expected after it."""
        if view.cur.size == 0 or view.free <= 0:
            nothing = np.empty(0, dtype=np.int64)
            return PolicyChoice("", nothing, knapsack_values(view), ())
        tried: list[PolicyAttempt] = []
        names = LADDER[LADDER.index(self.first) :]
        for name in names:
            if name == ROLLING and any(one.failure.startswith(_UNUSABLE) for one in tried):
                continue
            began = time.perf_counter()
            starts, failure = self._asked(name, view, path)
            tried.append(PolicyAttempt(name, failure, round(1000.0 * (time.perf_counter() - began), 3)))
            if starts is not None:
                scores = knapsack_values(view) if starts.scores is None else starts.scores
                return PolicyChoice(name, np.sort(starts.positions), scores, tuple(tried))
        return PolicyChoice("", np.empty(0, dtype=np.int64), knapsack_values(view), tuple(tried))

    def _asked(self, name: str, view: View, path: Floats) -> tuple[Starts | None, str]:
        rung = self.rungs.get(name)
        if rung is None:
            return None, self.absent.get(name, "there is none")
        budget_s = self.budgets_s.get(name)
        try:
            if budget_s is None:
                # The last policies need no deadline: they cannot hang.
                found = rung(view, path, math.inf)
            else:
                call, waits_s = partial(rung, view, path, budget_s), wait_of(name, budget_s)
                found = self._deadlines.call(name, name, call, waits_s + _GRACE_S)
        except StillRunning:
            return None, "it has not ended since it was asked last"
        except Late:
            return None, f"it did not answer within {1000.0 * waits_s:.0f} ms"
        except ScoresUnusable as error:
            return None, f"{_UNUSABLE}: {error}"
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if found is None:
            return None, "it has no answer"
        try:
            wrong = wrong_with(found.positions, view) or wrong_scores(found.scores, view)
        except Exception as error:
            wrong = f"its answer is none: {type(error).__name__}: {error}"
        return (None, wrong) if wrong else (found, "")


_UNUSABLE: Final = "scores unusable"


def wrong_with(positions: Ints, view: View) -> str:
    """Return what forbids these starts, "" for nothing."""
    chosen = np.asarray(positions)
    if chosen.ndim != 1 or not (chosen.size == 0 or np.issubdtype(chosen.dtype, np.integer)):
        return "its starts are not a list of positions"
    if chosen.size and (chosen.min() < 0 or chosen.max() >= view.cur.size):
        return f"it starts a job outside the {view.cur.size} candidates"
    if np.unique(chosen).size != chosen.size:
        return "it starts a job twice"
    if not chosen.size:
        return ""
    jobs = view.cur
    if (jobs.earliest[chosen] > view.step).any() or (jobs.latest[chosen] < view.step).any():
        return "it starts a job outside its window"
    cores = int(jobs.cores[chosen].sum())
    return f"it starts {cores} cores where {view.free} are free" if cores > max(0, view.free) else ""


def wrong_scores(scores: Floats | None, view: View) -> str:
    """Return what is wrong with the scores of a policy, "" for nothing; None: it has none."""
    if scores is None:
        return ""
    if np.shape(scores) != (view.cur.size,):
        return f"{_UNUSABLE}: scores of shape {np.shape(scores)} for {view.cur.size} jobs"
    return "" if np.all(np.isfinite(scores)) else f"{_UNUSABLE}: scores that are not finite"


def rolling_rung(view: View, path: Floats, budget_s: float) -> Starts | None:
    """Start what a plan over the known jobs and the expected capacity starts now."""
    positions = RollingPlan(lambda view, steps: path[:steps], steps=path.size + 1, budget_s=budget_s)(view)
    return None if positions is None else Starts(positions)


class LearnedRung:
    """Reads the model in use where it changed, and asks it; called by the loop's thread and a shadow's alike.

    problem: why there is none to ask, "" where there is one. A model whose scores were no numbers is not asked again
    until another one is in use, or `look` reads it anew.
    """

    def __init__(self, pool: str, settings: DeferralSettings, models: ModelsDirectory) -> None:
        self._subject, self._pin, self._models = Subject("deferral", pool), settings.model_pin, models
        self._model: ScoreModel | None = None
        self.problem = "no model was looked for yet"

    @property
    def digest(self) -> str:
        """The digest of the model that is asked, "" where there is none."""
        return "" if self._model is None else self._model.name

    def look(self, *, anew: bool = False) -> None:
        """Read the model in use; one that is refused leaves none, and the next policy decides."""
        from agent.deferral.model import load_score_model

        try:
            champion = self._models.champion(self._subject)
            if champion is None:
                self._model, self.problem = None, "no model is in use: put one in use by trimtab promote deferral"
                return
            digest = champion.model.removesuffix(".onnx")
            if self._pin and not digest.startswith(self._pin):
                self._model, self.problem = None, f"the model in use, {digest[:12]}, is not the pinned {self._pin[:12]}"
                return
            if self._model is not None and self._model.name == digest and not anew:
                self.problem = self._model.fault
                return
            self._models.check(self._subject, champion)
            self._model, self.problem = load_score_model(self._models.file_of(champion.model)), ""
        except (TrimtabError, OSError) as error:
            self._model, self.problem = None, f"the model is refused: {error}"

    def __call__(self, view: View, path: Floats, budget_s: float) -> Starts | None:
        """Start what the model's scores say; ScoresUnusable where they are no numbers, PolicyFailure from then on."""
        model = self._model
        if model is None or model.fault:
            raise PolicyFailure(self.problem if model is None else model.fault)
        scores = model.score(view).scores
        return Starts(model.starts(view, scores), scores)


def ladder_of(settings: DeferralSettings, first: str, rungs: Mapping[str, Rung], absent: Mapping[str, str]) -> Ladder:
    """Return the ladder that begins with a policy; the knapsack and first come are always there."""
    own: dict[str, Rung] = {KNAPSACK: knapsack_rung, FIFO: fifo_rung}
    missing = dict(absent)
    try:
        check_available()
        own[ROLLING] = rolling_rung
    except BadInput as error:
        missing[ROLLING] = error.remedy
    budgets_s = {LEARNED: settings.learned_within_ms / 1000.0, ROLLING: settings.rolling_within_ms / 1000.0}
    return Ladder(first, {**own, **rungs}, budgets_s, missing)


def ranked(chosen: PolicyChoice) -> Sequence[int]:
    """Return the positions of the jobs that could start, the best score first."""
    order: list[int] = np.argsort(-chosen.scores, kind="stable").tolist()
    return order
