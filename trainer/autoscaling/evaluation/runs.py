"""Runs every contender on every case, over the cores, keeping each row as it comes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from domain.errors import BadInput
from trainer.autoscaling.evaluation.contenders import Contender
from trainer.autoscaling.evaluation.episode import run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.evaluation.table import Results, Row
from trainer.autoscaling.policies.registry import policy_of

CHUNK = 8
"""Cases that one task of a worker runs: policies are loaded once for all of them."""

Told = Callable[[str, int], None]
"""Is told a contender's label and how many more of its cases are there."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a contender has no result on a case: a clairvoyant plan that cannot be had, a model for another fleet."""

    label: str
    case: str
    family: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rows, contender by contender in the order of the suite, and who is missing where."""

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
    workers: int = 1,
    told: Told = lambda label, cases: None,
) -> Evaluated:
    """Run what the results do not hold yet, and return all rows.

    A policy that cannot run on a case is reported as absent there. workers: processes. Raises BadInput for a text that
    is no policy.
    """
    tasks, kept = _tasks(contenders, cases, results, told)
    absences: list[Absence] = []
    new: dict[tuple[str, str], Row] = {}
    for task, answers in _answers(tasks, workers):
        for case, answer in zip(task.cases, answers, strict=True):
            if isinstance(answer, Row):
                results.add(answer)
                new[task.label, case.key] = answer
            else:
                absences.append(Absence(task.label, case.name, case.family, answer))
        told(task.label, len(task.cases))
    both = kept | new
    ordered = [both[c.label, case.key] for c in contenders for case in cases if (c.label, case.key) in both]
    return Evaluated(tuple(ordered), tuple(sorted(absences, key=lambda a: (a.label, a.family, a.case))))


def _tasks(
    contenders: Sequence[Contender], cases: Sequence[Case], results: Results, told: Told
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
                told(contender.label, 1)
        for text, left in waiting.items():
            chunks = (tuple(left[start : start + CHUNK]) for start in range(0, len(left), CHUNK))
            tasks += [_Task(contender.label, text, keys[text], chunk) for chunk in chunks]
    return tasks, kept


def _answers(tasks: Iterable[_Task], workers: int) -> Iterator[tuple[_Task, list[Row | str]]]:
    if workers <= 1:
        for task in tasks:
            yield task, _run(task)
        return
    # A forked child would inherit the threads of ONNX Runtime and numba half alive.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_run, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _run(task: _Task) -> list[Row | str]:
    policy = policy_of(task.text)
    answers: list[Row | str] = []
    for case in task.cases:
        try:
            answers.append(Row.of(task.label, task.key, case, run_episode(policy, case)))
        except BadInput as refusal:
            answers.append(str(refusal))
    return answers
