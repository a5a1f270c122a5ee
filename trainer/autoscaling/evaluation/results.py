"""Runs contenders on cases, step by step, and keeps a row of measures for each in a CSV that grows row by row (§11).

Beyond `simulator.autoscaling.view.Measures` a row has the idle shutdown (§12.6).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import MINUTE_S
from simulator.autoscaling.view import Measures, StepInfo, StepResult
from trainer.autoscaling.evaluation.contenders import Contender
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies import AnySimulation, SimulatedPolicy, run_policy
from trainer.autoscaling.policy_names import policy_of
from trainer.kit import files
from trainer.kit.jobs import HERE, Pool, Workers

Ints = NDArray[np.int64]

IDLE_STRETCH_S = 1800.0
"""A stretch without jobs counts for the idle shutdown when it lasts at least so long."""


@dataclass(frozen=True, slots=True)
class Idle:
    """How long the fleet stayed above its minimum after the jobs had ended.

    stretches: how often nothing waited or ran for half an hour or longer. worst_min: minutes from the end of the step
    in which the last job ended until only the minimum was left, the longest of them; None without a stretch. released:
    whether the minimum was reached in every stretch; otherwise worst_min is that of the next job at least.
    """

    stretches: int = 0
    worst_min: float | None = None
    released: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of one episode. truncated: the step limit came before the last job's end."""

    measures: Measures
    idle: Idle
    truncated: bool


@dataclass(slots=True)
class IdleWatch:
    """Follows an episode and measures its idle stretches."""

    minimum: tuple[int, ...]
    step_s: float
    _submitted: int = 0
    _idle_steps: int = 0
    _released_after: int | None = None
    _found: list[tuple[float, bool]] = field(default_factory=list)

    def see(self, info: StepInfo) -> None:
        """Take note of a step's end."""
        # A short job may come and go within a step: only the count of submitted jobs shows it.
        worked = info.waiting > 0 or info.executing > 0 or info.submitted > self._submitted
        self._submitted = info.submitted
        if worked:
            self._close()
        if info.waiting > 0 or info.executing > 0 or info.finished == 0:
            return
        others = sum(info.booting) + sum(info.draining)
        if self._released_after is None and others == 0 and info.ready == self.minimum:
            self._released_after = self._idle_steps
        self._idle_steps += 1

    def _close(self) -> None:
        if self._idle_steps * self.step_s >= IDLE_STRETCH_S:
            released = self._released_after is not None
            steps = self._released_after if self._released_after is not None else self._idle_steps
            self._found.append((steps * self.step_s / MINUTE_S, released))
        self._idle_steps, self._released_after = 0, None

    def result(self) -> Idle:
        """Return the idle stretches that a later job has ended."""
        if not self._found:
            return Idle()
        return Idle(len(self._found), max(minutes for minutes, _ in self._found), all(r for _, r in self._found))


def run_episode(policy: SimulatedPolicy, case: Case, steps: list[StepInfo] | None = None) -> Run:
    """Run one policy on one case from its start, and add its steps to a list; BadInput when it does not fit."""
    idle = IdleWatch(case.config.minimum, case.config.step_s)

    def seen(_: AnySimulation, result: StepResult) -> None:
        idle.see(result.info)
        if steps is not None:
            steps.append(result.info)

    measures = run_policy(policy, case.config, case.trace, case.seed, seen)
    return Run(measures, idle.result(), truncated=measures.jobs_finished < case.trace.jobs)


SOURCES = (
    "domain",
    "simulator/autoscaling",
    "trainer/autoscaling/baselines",
    "trainer/autoscaling/model_policies.py",
    "trainer/autoscaling/policies.py",
    "trainer/autoscaling/policy_names.py",
    "trainer/autoscaling/evaluation/results.py",
)
"""Folders and files whose code decides the figures of a run; a change makes stored rows stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Measures):
    """One policy on one case, with the measures of the run.

    policy: as given. policy_key: identifies a policy by content (a model file by its SHA-256). case_key:
    `suite.Case.key`. code: `code_version`. Tuples are per VM type. idle_*: see `Idle`; worst: None without an
    idle stretch.
    """

    policy: str
    policy_key: str
    case: str
    family: str
    world: str
    seed: int
    case_key: str
    code: str
    truncated: bool
    idle_stretches: int
    idle_worst_min: float | None
    idle_released: bool

    @property
    def identity(self) -> tuple[str, str, str]:
        """The identity of a row: policy, case, code."""
        return self.policy_key, self.case_key, self.code

    @classmethod
    def of(cls, policy: str, policy_key: str, case: Case, run: Run) -> Self:
        """Build the row of a run."""
        return cls(
            policy=policy,
            policy_key=policy_key,
            case=case.name,
            family=case.family,
            world=case.world,
            seed=case.seed,
            case_key=case.key,
            code=code_version(),
            truncated=run.truncated,
            idle_stretches=run.idle.stretches,
            idle_worst_min=run.idle.worst_min,
            idle_released=run.idle.released,
            **asdict(run.measures),
        )


_MEASURED = len(fields(Measures))
_FIELDS = fields(Row)[_MEASURED:-3] + fields(Row)[:_MEASURED] + fields(Row)[-3:]
_COLUMNS: Mapping[str, str] = {field.name: str(field.type) for field in _FIELDS}
"""The columns by name and type: the run, the measures, and the idle stretches."""


def code_version() -> str:
    """Return the version of the code that decides results."""
    return files.code_version(SOURCES)


class Results:
    """A results file: rows are appended as they come and survive an interruption.

    A last line that was cut is dropped. Raises BadInput for another file.
    """

    def __init__(self, path: Path | None, *, resume: bool = True) -> None:
        """Open the file (None: keep rows in memory only); without `resume` a file with rows is refused."""
        self._file = None if path is None else files.GrowingFile(path)
        self._rows: dict[tuple[str, str, str], Row] = {}
        if path is None or self._file is None:
            return
        if path.exists():
            self._rows = {row.identity: row for row in read_rows(path)}
        if self._rows and not resume:
            raise BadInput("--results", str(path), "it holds rows already: give --resume, or another file")
        if not self._file.read():
            self._file.append(_line(_COLUMNS))

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def get(self, policy_key: str, case: Case) -> Row | None:
        """Return the stored row of this policy on this case by the present code, None when it has not been run."""
        return self._rows.get((policy_key, case.key, code_version()))

    def add(self, row: Row) -> None:
        """Store a row; it is on the disk when this returns."""
        self._rows[row.identity] = row
        if self._file is not None:
            self._file.append(_row_text(row))


def read_rows(path: Path) -> list[Row]:
    """Read a CSV table; BadInput names line and column of a wrong value. A cut last line is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput("results file", str(path), f"{fault}: give a table of this program") from None
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not lines:
        return []
    if lines[0] != list(_COLUMNS):
        raise BadInput("results file", str(path), "its columns are not those of this version: give another file")
    return [_row(path, number, line) for number, line in enumerate(lines[1:], start=2)]


def _row(path: Path, number: int, line: Sequence[str]) -> Row:
    if len(line) != len(_COLUMNS):
        raise BadInput(f"{path.name} line {number}", len(line), f"give {len(_COLUMNS)} fields")
    values: dict[str, Any] = {}
    for (name, kind), text in zip(_COLUMNS.items(), line, strict=True):
        try:
            values[name] = _READERS[kind](text)
        except (ValueError, KeyError):
            raise BadInput(f"{path.name} line {number}: {name}", text, f"give a value of kind {kind}") from None
    return Row(**values)


_READERS: Mapping[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
    "bool": {"true": True, "false": False}.__getitem__,
    "tuple[int, ...]": lambda text: tuple(int(part) for part in text.split()),
}


def _row_text(row: Row) -> str:
    return _line(_text(getattr(row, name)) for name in _COLUMNS)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(list(cells))
    return text.getvalue()


CHUNK = 8
"""Cases that one task of a worker runs: policies are loaded once for all of them."""

OnCases = Callable[[str, int], None]
"""Called with a contender's label and how many more of its cases have results."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a contender has no result on a case: a clairvoyant plan that cannot be had, a model for another fleet."""

    label: str
    case: str
    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The rows, contender by contender in the order of the suite, and which contenders are missing where."""

    rows: tuple[Row, ...]
    absences: tuple[Absence, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    label: str
    text: str
    key: str
    cases: tuple[Case, ...]


def evaluate(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    results: Results,
    *,
    workers: Workers = HERE,
    on_cases: OnCases = lambda label, cases: None,
) -> Evaluation:
    """Run the cases without a row in the results, and return all rows.

    A policy that cannot run on a case is reported as absent there. Raises BadInput for a wrong
    policy.
    """
    tasks, kept = _tasks(contenders, cases, results, on_cases)
    absences: list[Absence] = []
    new: dict[tuple[str, str], Row] = {}
    with Pool(_run, workers, name=lambda task: f"{task.label} on {task.cases[0].name}") as pool:
        for task, answers in zip(tasks, pool.run(tasks), strict=True):
            for case, answer in zip(task.cases, answers, strict=True):
                if isinstance(answer, Row):
                    results.add(answer)
                    new[task.label, case.key] = answer
                else:
                    absences.append(Absence(task.label, case.name, case.family, answer))
            on_cases(task.label, len(task.cases))
    both = kept | new
    ordered = [both[c.label, case.key] for c in contenders for case in cases if (c.label, case.key) in both]
    return Evaluation(tuple(ordered), tuple(sorted(absences, key=lambda a: (a.label, a.family, a.case))))


def _tasks(
    contenders: Sequence[Contender], cases: Sequence[Case], results: Results, on_cases: OnCases
) -> tuple[list[_Task], dict[tuple[str, str], Row]]:
    tasks: list[_Task] = []
    kept: dict[tuple[str, str], Row] = {}
    keys: dict[str, str] = {}
    for contender in contenders:
        waiting: dict[str, list[Case]] = {}
        for case in cases:
            text = contender.text(case.group)
            if text is None:
                continue
            if text not in keys:
                keys[text] = policy_of(text).name
            row = results.get(keys[text], case)
            if row is None:
                waiting.setdefault(text, []).append(case)
            else:
                # The same policy may have been run under another label.
                kept[contender.label, case.key] = replace(row, policy=contender.label, case=case.name)
                on_cases(contender.label, 1)
        for text, left in waiting.items():
            chunks = (tuple(left[start : start + CHUNK]) for start in range(0, len(left), CHUNK))
            tasks += [_Task(contender.label, text, keys[text], chunk) for chunk in chunks]
    return tasks, kept


def _run(task: _Task) -> list[Row | str]:
    policy = policy_of(task.text)
    answers: list[Row | str] = []
    for case in task.cases:
        try:
            answers.append(Row.of(task.label, task.key, case, run_episode(policy, case)))
        except BadInput as refusal:
            answers.append(str(refusal))
    return answers
