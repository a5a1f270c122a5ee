"""What may become of a job: its chance of a start within its window, the delay to expect, and what it waits for.

The jobs that are known, and jobs such as came in the last week, are started by the knapsack on capacities that the
forecast draws. Nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.deferral.capacity import Outlook, margin_in_force
from agent.deferral.pool import DeferralPool
from agent.deferral.records import JobOrder, JobRecord, Stage, StepDecision, step_at
from agent.deferral.store import PoolState
from domain.rules.deferral.choosing import Group, History, View, knapsack, knapsack_values, take_in_order
from domain.rules.deferral.jobs import Ints
from domain.units import DAY_S

ROLLOUTS: Final = 200
LONGEST: Final = 72
"""Steps that are looked ahead; a window that ends later counts as if it ended then."""
EXACT: Final = 40
"""Up to so many jobs the knapsack is solved exactly, beyond by value for each core."""
ARRIVALS_DAYS: Final = 7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quote:
    """What to expect of a job.

    probability: of a start within its window. delay_steps: where it starts. likely_at: the median start, epoch seconds.
    discount: share of the price that a start saves, times the chance. late, unlikely: as they would stand in its
    record. looked_ahead: steps.
    """

    pool: str
    job_id: str
    at: float
    rollouts: int
    probability: float
    delay_steps: float | None
    likely_at: float | None
    discount: float
    late: bool
    unlikely: bool
    looked_ahead: int


@dataclass(frozen=True, slots=True)
class JobExplained:
    """Why a job is where it is. score, rank, of: in the newest decision, None where it was not looked at in it.

    expected_at: its first step by the forecast, epoch seconds, None where none is expected in its window.
    """

    pool: str
    job: JobRecord
    score: float | None
    rank: int | None
    of: int
    decision_id: str
    expected_at: float | None
    waits_for: str


def quote(pool: DeferralPool, outlook: Outlook, order: JobOrder, seed: int = 0) -> Quote:
    """Return what to expect of a job that would be submitted now; BadInput as `DeferralPool.submit`."""
    state, now, settings = pool.current(), pool.clock.now(), pool.settings
    others = {name: one for name, one in state.jobs.items() if name != order.job_id}
    job, _ = pool.taken(state.head, others, state.history, order, now)
    first = next_step(state, now, settings.step_s)
    steps = min(LONGEST, job.latest - first + 1)
    margin, _ = margin_in_force(settings, state.history.rows, first, state.head.capacity or 0)
    outlook.follow(state.history.rows, first)
    paths = np.floor(outlook.rollouts(steps, ROLLOUTS, seed)).astype(np.int64) - margin
    draws = np.random.default_rng(seed + 1)
    week = round(ARRIVALS_DAYS * DAY_S / settings.step_s)
    lasting = [*others.values(), job]
    starts = []
    for path in paths:
        coming = _arrivals(state, first, steps, week, draws)
        starts.append(played([*lasting, *coming], first, path).get(job.number, -1))
    found = np.array(starts)
    begun = found[found >= 0]
    probability = begun.size / ROLLOUTS
    return Quote(
        pool.name,
        order.job_id,
        now,
        ROLLOUTS,
        probability,
        float((begun - job.earliest).mean()) if begun.size else None,
        float(np.median(begun)) * settings.step_s if begun.size else None,
        probability * settings.discount,
        job.late,
        job.unlikely,
        steps,
    )


def next_step(state: PoolState, now: float, step_s: int) -> int:
    """Return the first step that is not decided."""
    step = step_at(now, step_s)
    return step if state.head.step is None else max(step, state.head.step + 1)


def _arrivals(state: PoolState, first: int, steps: int, week: int, draws: np.random.Generator) -> list[JobRecord]:
    """Return jobs such as were submitted in the last week, as they may come in the steps ahead."""
    recent = [job for job in state.jobs.values() if job.submitted >= first - week]
    if not recent:
        return []
    since = min(job.submitted for job in recent)
    rate = len(recent) / max(1, first - since)
    made = []
    number = state.head.jobs + 2
    for step in range(first + 1, first + steps):
        for _ in range(int(draws.poisson(rate))):
            like = recent[int(draws.integers(len(recent)))]
            lead, window = max(0, like.earliest - like.submitted), like.latest - like.earliest
            begins = step + lead
            made.append(JobRecord("", number, "", like.cores, like.duration, begins, begins + window, step, 0.0))
            number += 1
    return made


def played(jobs: Sequence[JobRecord], first: int, path: Ints) -> Mapping[int, int]:
    """Return the step in which each waiting job starts, by its number; path: cores in the steps from `first` on."""
    steps = path.size
    taken = np.zeros(steps, dtype=np.int64)
    rows = []
    for job in jobs:
        if job.stage is Stage.WAITING:
            rows.append((job.number, job.cores, job.duration, job.earliest, job.latest, job.submitted, job.duration))
        elif job.start is not None and job.free_from is not None:
            taken[max(0, job.start - first) : max(0, job.free_from - first)] += job.cores
    table = np.array(rows, dtype=np.int64).reshape(-1, len(Group._fields))
    waiting = np.ones(table.shape[0], dtype=np.bool_)
    starts: dict[int, int] = {}
    for k in range(steps):
        step = first + k
        free = int(path[k] - taken[k])
        if free <= 0:
            continue
        # Submitted, and within its window.
        able = np.flatnonzero(waiting & (table[:, 5] <= step) & (table[:, 3] <= step) & (table[:, 4] >= step))
        if not able.size:
            continue
        own = table[able]
        for position in _chosen(own, step, free).tolist():
            number, cores, duration = (int(value) for value in own[position, :3])
            starts[number] = step
            taken[k : k + duration] += cores
            waiting[able[position]] = False
    return starts


def _chosen(own: Ints, step: int, free: int) -> Ints:
    group = Group(*(own[:, column] for column in range(own.shape[1])))
    empty = Group(*(own[:0, column] for column in range(own.shape[1])))
    blank = np.empty(0, dtype=np.int64)
    nothing = np.empty(0)
    history = History(blank, blank, blank, nothing, nothing, blank, blank, blank)
    values = knapsack_values(View(step, 0, 0, free, group, empty, empty, history))
    if own.shape[0] <= EXACT:
        return knapsack(values, group.cores, free)
    order = np.argsort(-values / group.cores, kind="stable")
    return take_in_order(order[values[order] > 0.0], group.cores, free, "skip")


def explain_job(pool: DeferralPool, outlook: Outlook, job_id: str, paused: str, problem: str) -> JobExplained:
    """Return why a job is where it is, and when it is expected to start; UnknownName.

    paused: why nothing may start. problem: why the capacity is not known.
    """
    state, now, settings = pool.current(), pool.clock.now(), pool.settings
    job = pool.job(job_id)
    newest = pool.store.newest(pool.name, 1, "step")
    last = newest[0] if newest and isinstance(newest[0], StepDecision) else None
    best = [] if last is None else [one.job_id for one in last.best]
    rank = best.index(job_id) + 1 if job_id in best else None
    score = None if rank is None or last is None else last.best[rank - 1].score
    expected: float | None = None
    words = _over(job, settings.step_s)
    if job.stage is Stage.WAITING:
        first = next_step(state, now, settings.step_s)
        steps = max(0, min(LONGEST, job.latest - first + 1))
        margin, _ = margin_in_force(settings, state.history.rows, first, state.head.capacity or 0)
        outlook.follow(state.history.rows, first)
        path = np.floor(outlook.path(steps)).astype(np.int64) - margin
        start = played(list(state.jobs.values()), first, path).get(job.number)
        expected = None if start is None else float(start * settings.step_s)
        words = _waits_for(job, state, last, rank, paused, problem, settings.step_s, first)
    return JobExplained(
        pool.name, job, score, rank, len(best), "" if last is None else last.decision_id, expected, words
    )


def _over(job: JobRecord, step_s: int) -> str:
    if job.stage is Stage.STARTING:
        return "the ready queue: its start is recorded, and is sent until it has arrived"
    if job.stage is Stage.RUNNING:
        return "nothing: it runs"
    return f"nothing: it is {job.stage}" + (f" ({job.detail})" if job.detail else "")


def _waits_for(
    job: JobRecord,
    state: PoolState,
    last: StepDecision | None,
    rank: int | None,
    paused: str,
    problem: str,
    step_s: int,
    first: int,
) -> str:
    drain = state.head.drain
    if paused:
        return f"the end of a pause: {paused}"
    if drain is not None and max(first, job.earliest) + job.duration > drain.by_step:
        return f"the end of a drain: it would run beyond step {drain.by_step} ({drain.owner}: {drain.reason})"
    if job.earliest >= first and job.earliest > first:
        return f"its earliest start, step {job.earliest}"
    if last is None or job.submitted > last.step:
        return f"the next decision, in step {first}"
    if last.capacity is None or problem:
        return f"the capacity, which is not known: {problem or last.detail}"
    if job.unlikely and job.cores > (last.capacity - last.margin):
        return f"more capacity than was seen in 28 days: it needs {job.cores} cores"
    if job.cores > last.free:
        return f"room: it needs {job.cores} cores, {last.free} were free in step {last.step}"
    if rank is not None:
        taken = sum(one.cores for one in last.starts)
        return (
            f"jobs before it: it was number {rank} of {len(last.best)} in step {last.step}, those that started took "
            f"{taken} of {last.free} free cores"
        )
    return f"the next decision, in step {first}"
