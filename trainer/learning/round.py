"""One round of learning for any subject: stages within a budget, from a record to a report and the gate.

The result of a stage is a frozen dataclass, and later stages read it by its type. A round resumes with the first stage
without a result, wherever it was stopped. No model is in use before the gate has let it pass, and the gate changes the
pointer whole or not at all. The adapters are `fleet`, `cluster`, `pool` and `placement`.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agent.models.directory import read_model_file
from domain.errors import BadInput, TrimtabError
from domain.subject import Subject
from domain.units import MINUTE_S
from trainer.kit.intervals import Comparison
from trainer.learning.state import DATA_FILE, PAGE_FILE, StageResult, State, write_folder
from trainer.promotion.directory import ModelsWriter, Verify
from trainer.promotion.gate import Gate, Term, Verdict, hold


class BudgetUsed(TrimtabError):
    """The seconds of a processor are used up; results are kept."""


def cpu_s() -> float:
    """Return the seconds of a processor that this process and its children took."""
    found = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


@dataclass(slots=True)
class Budget:
    """Seconds of a processor that this process, and the children that it waited for, may still take."""

    total_s: float
    _begun_s: float = field(default_factory=cpu_s)

    @property
    def used_s(self) -> float:
        """Seconds since the begin."""
        return cpu_s() - self._begun_s

    @property
    def left_s(self) -> float:
        """Seconds, 0 where the budget is used up."""
        return max(self.total_s - self.used_s, 0.0)

    def check(self) -> None:
        """Raise BudgetUsed when nothing is left."""
        if self.used_s >= self.total_s:
            raise BudgetUsed(
                "the seconds of a processor are used up, finished stages are kept: --cpu-minutes gives more"
            )

    def affordable(self, each_s: float, limits: tuple[int, int], reserved_s: float = 0.0) -> int:
        """Return how many calls of `each_s` seconds the rest allows, within limits; reserved_s: for later stages."""
        fewest, most = limits
        return min(max(int((self.left_s - reserved_s) / each_s), fewest), most)

    def spread(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield a function's answers in the order of the items; BudgetUsed between two of them."""
        for item in items:
            self.check()
            yield work(item)


@dataclass(frozen=True, slots=True)
class Truth(StageResult):
    """Whether the simulator is true to the record. quantities: as recorded and as replayed, by name."""

    STAGE: ClassVar = "fidelity"

    holds: bool
    off: float | None
    named: str
    quantities: Mapping[str, Mapping[str, str | float | None]]
    sentence: str


@dataclass(frozen=True, slots=True)
class Report(StageResult):
    """The names of the files for people."""

    STAGE: ClassVar = "report"

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GateResult(StageResult):
    """The judgement of the gate. passed: None where it was not asked, for the reason in `reasons`. report: its file."""

    STAGE: ClassVar = "gate"

    promoted: bool
    on_probation: bool
    passed: bool | None
    reasons: tuple[str, ...]
    report: str | None
    overall: Comparison | None = None


Stages = Mapping[type[StageResult], Callable[[Budget], StageResult]]


@dataclass(slots=True, kw_only=True)
class Round:
    """A round under way in the folder of its state.

    cpu_s: seconds of a processor over all resumptions. directory: the models; verify: raises BadInput for a file that
    cannot decide. at: the time for the record of the gate. announce: called with a line at the begin of a stage.
    term: of the probation after the gate, None for none.
    """

    state: State
    cpu_s: float
    directory: ModelsWriter
    verify: Verify
    at: str
    try_only: bool = False
    announce: Callable[[str], None] = lambda line: None
    term: Term | None = None

    def __post_init__(self) -> None:
        if not self.cpu_s > 0.0:
            raise BadInput("--cpu-minutes", self.cpu_s / MINUTE_S, "give minutes above 0")

    @property
    def subject(self) -> Subject:
        """The subject that is learnt for."""
        raise NotImplementedError

    def stages(self) -> Stages:
        """Return the stages before the report, in order."""
        raise NotImplementedError

    def page(self) -> str:
        """Return the page of the report."""
        raise NotImplementedError

    def files(self) -> Mapping[str, str]:
        """Return more files of the report, text by name."""
        return {}

    def challenger(self) -> Path | str:
        """Return the file for the gate, or the reason why there is none."""
        raise NotImplementedError

    def gate(self, budget: Budget) -> Gate:
        """Return the gate for a challenger."""
        raise NotImplementedError

    def wait(self, challenger: Path | None = None) -> str:
        """Return why no test can be made now, and when, "" where one can; challenger: of the test, None for any."""
        return ""

    def go_on(self) -> dict[str, Any]:
        """Do every stage without a result, and return the results by stage as JSON data.

        Ends after the fidelity check where the simulator is not true. Raises BudgetUsed, TooLittle, and BadInput where
        the gate refuses to compare; results are kept.
        """
        return self.do({**self.stages(), Report: self._report, GateResult: self._gate})

    def do(self, stages: Stages) -> dict[str, Any]:
        """Do these stages, as `go_on` does."""
        found = self.state.stages
        for kind, work in stages.items():
            if kind.STAGE not in found:
                self._do(kind.STAGE, work)
                found = self.state.stages
            if kind.STAGE == "fidelity" and not found["fidelity"]["holds"]:
                break
        return {kind.STAGE: found[kind.STAGE] for kind in stages if kind.STAGE in found}

    def _do(self, name: str, work: Callable[[Budget], StageResult]) -> None:
        budget = Budget(self.cpu_s - self.state.cpu_s)
        try:
            budget.check()
            self.announce(f"{name} ...")
            result = work(budget)
        except BudgetUsed:
            self.state.spent(budget.used_s)
            raise
        self.state.done(name, result.as_data(), budget.used_s)

    def _report(self, _: Budget) -> Report:
        files = {**self.files(), PAGE_FILE: self.page()}
        write_folder(self.state.folder, files, {"facts": self.state.facts, **self.state.stages})
        return Report((*files, DATA_FILE))

    def _gate(self, budget: Budget) -> GateResult:
        """Hand the challenger to the gate; a promotion or probation of this very round is found, not repeated."""
        model = self.challenger()
        if isinstance(model, str):
            return GateResult(False, False, None, (model,), None)
        name = read_model_file(model).name
        if not self.try_only:
            champion = self.directory.champions().get(self.subject)
            if champion is not None and champion.model == name:
                passed = self.directory.check(self.subject, champion).get("passed") is True
                return GateResult(passed, False, passed, (), champion.report)
            probationer = self.directory.probationers().get(self.subject)
            if probationer is not None and probationer.model == name:
                self.directory.check_probationer(self.subject, probationer)
                return GateResult(False, True, True, (), probationer.report)
        if why := self.wait(model):
            return GateResult(False, False, None, (why,), None)
        gate = self.gate(budget)

        def within_budget(challenger: Path, champion: Path | None) -> Verdict:
            budget.check()
            return gate(challenger, champion)

        contest = hold(
            *(model, self.directory, self.subject, self.verify, within_budget),
            at=self.at,
            try_only=self.try_only,
            term=self.term,
        )
        judged = contest.judgement
        return GateResult(
            contest.promoted,
            contest.on_probation,
            judged.passed,
            judged.reasons if judged.passed else (*judged.reasons, *filter(None, [self.wait()])),
            contest.report_name,
            judged.overall,
        )
