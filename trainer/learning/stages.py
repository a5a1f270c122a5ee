"""What every round of learning goes by: stages that are done once, seconds of a processor that bound them, the gate."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from domain.errors import BadInput, TrimtabError
from domain.subject import Subject
from domain.units import MINUTE_S
from trainer.learning.state import State
from trainer.promotion.directory import ModelsWriter, Verify
from trainer.promotion.gate import Gate, Term, hold

Tell = Callable[[str], None]
"""Called with a line as a stage begins or ends."""


class BudgetUsed(TrimtabError):
    """The seconds of a processor are used up; what is done is kept."""


def cpu_s() -> float:
    """Return the seconds of a processor that this process and its children took."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def check_minutes(cpu_s: float) -> None:
    """Raise BadInput unless a round is given seconds of a processor."""
    if not cpu_s > 0.0:
        raise BadInput("--cpu-minutes", cpu_s / MINUTE_S, "give minutes above 0")


@dataclass(slots=True)
class Budget:
    """Seconds of a processor that this process, and those it has waited for, may still take."""

    left_s: float
    _begun_s: float = field(default_factory=cpu_s)

    @property
    def used_s(self) -> float:
        """Seconds since the begin."""
        return cpu_s() - self._begun_s

    def check(self) -> None:
        """Raise BudgetUsed when nothing is left."""
        if self.used_s >= self.left_s:
            raise BudgetUsed(
                "the seconds of a processor are used up, finished stages are kept: --cpu-minutes gives more"
            )

    def spread(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield a function's answers in the order of the items; BudgetUsed between two of them."""
        for item in items:
            self.check()
            yield work(item)


Stage = Callable[[Budget], dict[str, Any]]
"""Returns the result of a stage as JSON data."""


def go_on(
    state: State,
    stages: Mapping[str, Stage],
    cpu_s: float,
    tell: Tell,
    ends: Callable[[str, Mapping[str, Any]], bool] = lambda name, result: False,
) -> dict[str, Any]:
    """Do every stage that is not done, and return the results by stage.

    cpu_s: seconds of a processor over all resumptions. ends: whether the round is over after a stage with this result.
    Raises BudgetUsed, and what a stage raises; what is done is kept.
    """
    for name, stage in stages.items():
        if name in state.stages:
            continue
        budget = Budget(cpu_s - state.cpu_s)
        try:
            budget.check()
            tell(f"{name} ...")
            result = stage(budget)
        except BudgetUsed:
            state.spent(budget.used_s)
            raise
        state.done(name, result, budget.used_s)
        if ends(name, result):
            break
    return {name: state.stages[name] for name in stages if name in state.stages}


def not_asked(why: str) -> dict[str, Any]:
    """Return the result of the gate's stage where nothing goes to the gate, and why."""
    return {"promoted": False, "on_probation": False, "passed": None, "reasons": [why], "report": None}


def ask_gate(
    model: Path,
    name: str,
    directory: ModelsWriter,
    subject: Subject,
    verify: Verify,
    gate: Callable[[], Gate],
    budget: Budget,
    *,
    at: str,
    try_only: bool,
    term: Term | None,
) -> dict[str, Any]:
    """Hand a model to the gate, and return the result of the stage.

    name: of its file in the models directory. What the round promoted, or put on probation, before it was stopped is
    found and not repeated. Raises BudgetUsed before the gate begins, and BadInput where it refuses to compare.
    """
    champion = directory.champions().get(subject)
    if champion is not None and champion.model == name and not try_only:
        passed = directory.check(subject, champion).get("passed") is True
        about = {"promoted": passed, "on_probation": False, "passed": passed}
        return {**about, "reasons": [], "report": champion.report}
    tried = directory.probationers().get(subject)
    if tried is not None and tried.model == name and not try_only:
        directory.check_probationer(subject, tried)
        about = {"promoted": False, "on_probation": True, "passed": True}
        return {**about, "reasons": [], "report": tried.report}
    asked = gate()

    def checked(challenger: Path, beaten: Path | None) -> Any:
        budget.check()
        return asked(challenger, beaten)

    contest = hold(model, directory, subject, verify, checked, at=at, try_only=try_only, term=term)
    judged = contest.judgement
    about = {"promoted": contest.promoted, "on_probation": contest.on_probation, "passed": judged.passed}
    more = {"reasons": list(judged.reasons), "report": contest.report_name, "overall": asdict(judged.overall)}
    return plain({**about, **more})


def plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's result as JSON data: what is not finite becomes None."""
    return {str(name): _plain(value) for name, value in data.items()}


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, np.generic | np.ndarray):
        return _plain(data.tolist())
    return None if isinstance(data, float) and not math.isfinite(data) else data
