"""Questions to one pool, which change nothing: its figures, its forecast, and why a job is where it is.

A job's expected start is that of the knapsack on the mean of the forecast. Nothing is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import numpy as np

from agent.deferral.capacity import ExpectedCores, Outlook, believed, margin_in_force, read_capacity
from agent.deferral.ladder import Ladder, LearnedRung, ladder_of
from agent.deferral.pool import DeferralPool, reserved_cores
from agent.deferral.queue import ReadyQueue, SubmitQueue
from agent.deferral.records import Drain, JobRecord, Stage, StepDecision, Totals, step_at
from agent.deferral.settings import LEARNED, DeferralSettings, PoolMode
from agent.deferral.shadow import Shadow
from agent.deferral.state import DEFERRAL, PoolState
from agent.deferral.turn import PoolTurns, Watch
from agent.kernel.decision import Host
from agent.kernel.guards import held_by_pause
from agent.kernel.leads import Led
from agent.kernel.text import time_text
from agent.models.directory import ModelsDirectory
from agent.settings import Settings
from domain.decisions import Direction
from domain.rules.deferral.choosing import Group, History, View, knapsack, knapsack_values, take_in_order
from domain.rules.deferral.jobs import W1, Ints

LONGEST: Final = 72
"""Steps that are looked ahead; a window that ends later counts as if it ended then."""
EXACT: Final = 40
"""Up to so many jobs the knapsack is solved exactly, beyond by value for each core."""

_DURATION, _EARLIEST, _LATEST, _SUBMITTED = 2, 3, 4, 5
"""Columns of a row, in the order of `Group`."""


@dataclass(frozen=True, slots=True)
class PoolView(Led):
    """A pool now. step: the newest that was decided, None before the first; next_at: when the next one is.

    capacity: cores that the pool goes by, None where it knows none; margin: of them kept free; running: cores of jobs;
    free: what starts could take. jobs: by stage. coverage: of the forecast, by quantile. at_risk: jobs that may not
    start in their window. budget_used: share of the violation budget. problem: what a person should look into.
    expected: what is forecast of the step after `step`.
    """

    pool: str
    mode: PoolMode
    at: float
    step: int | None
    next_at: float
    capacity: int | None
    measured: bool
    source: str
    margin: int
    running: int
    free: int
    policy: str
    shadow: str
    jobs: Mapping[str, int]
    totals: Totals
    budget_used: float
    coverage: Mapping[str, float]
    fallback_share: float
    at_risk: tuple[str, ...]
    drain: Drain | None
    decision_ms: float
    last: str
    problem: str
    expected: ExpectedCores | None


@dataclass(frozen=True, slots=True)
class CapacityForecast:
    """What is forecast of a pool's capacity, for each step from the next one on.

    by_calendar: by hour and weekday; before two days are known, every step is forecast to be as the newest one.
    """

    pool: str
    at: float
    by_calendar: bool
    steps: tuple[ExpectedCores, ...]


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


class PoolService(DeferralPool):
    """One pool with its policies, queues and turns; any thread may ask, `turns` are the loop's."""

    def __init__(self, name: str, settings: DeferralSettings, host: Host, agent: Settings) -> None:
        super().__init__(name, settings, host.ledger, host.clock, agent.mode)
        self._capacity_of, session = host.capacity, host.session
        self.learned = LearnedRung(name, settings, ModelsDirectory(agent.models_directory, agent.promotion_key))
        self._ladder, shadow = self._ladder_from(settings.policy), None
        if settings.shadow is not None and settings.shadow != settings.policy:
            beside = self._ladder_from(settings.shadow)
            shadow = Shadow(name, settings.step_s, settings.policy, settings.shadow, beside)
        submit, ready = settings.submit_queue_url, settings.ready_queue_url
        self.turns = PoolTurns(
            self,
            self._ladder,
            shadow,
            host.capacity,
            SubmitQueue(session, submit, host.clock) if session is not None and submit is not None else None,
            ReadyQueue(session, name, settings) if session is not None and ready else None,
            Outlook(settings.step_s),
            self._versions,
        )
        self._asked = Outlook(settings.step_s)
        self._asking = threading.Lock()
        # Of its own: whoever looks at the pool, as admission does, waits for no explanation.
        self._looked = Outlook(settings.step_s)
        self._looking = threading.Lock()
        self._watched: tuple[PoolState, Watch] | None = None

    def _ladder_from(self, first: str) -> Ladder:
        return ladder_of(self.settings, first, {LEARNED: self.learned}, {})

    def _versions(self) -> Mapping[str, str]:
        found = {"trimtab": version("trimtab")}
        return {**found, "model": self.learned.digest} if self.learned.digest else found

    def look(self) -> None:
        """Read the model again, where the pool has one."""
        if LEARNED in (self.settings.policy, self.settings.shadow):
            self.learned.look()

    def explain(self, job_id: str) -> JobExplained:
        """Return why a job is where it is; UnknownName."""
        missing = self.watch().missing
        with self._asking:
            return explain_job(self, self._asked, job_id, self.paused(), missing)

    def watch(self) -> Watch:
        """Return what is to be looked at, from the ledger: this agent may not be the one that leads."""
        with self._looking:
            state = self.current()
            if self._watched is None or self._watched[0] is not state:
                self._watched = state, self.turns.watched(state, self.clock.now(), self._looked)
            return self._watched[1]

    def forecast(self, steps: int) -> CapacityForecast:
        """Return what is forecast of the steps after the newest that was decided."""
        with self._asking:
            state, now = self.current(), self.clock.now()
            step = state.head.step
            known = step_at(now, self.settings.step_s) if step is None else step + 1
            self._asked.follow(state.history.rows, known)
            made = self._asked.expected(steps) if state.history.rows else []
            return CapacityForecast(self.name, now, self._asked.forecast is not None, tuple(made))

    def paused(self) -> str:
        """Return why operators let nothing start now, "" where they do."""
        held = held_by_pause(self.ledger.controls(DEFERRAL, self.name), (Direction.OUT,), self.clock.now())
        return "" if held is None else held.detail

    def last_step(self) -> StepDecision | None:
        """Return the newest decision of a step."""
        newest = self.store.newest(self.name, 1, "step")
        return newest[0] if newest and isinstance(newest[0], StepDecision) else None

    def problem(self) -> str:
        """Return what a person should look into."""
        learned = self.learned.problem if LEARNED in (self.settings.policy, self.settings.shadow) else ""
        return "; ".join(filter(None, (self.turns.problem, self.watch().missing, learned, self.ladder_problem())))

    def ladder_problem(self) -> str:
        """Return why the pool's policy, or its shadow, cannot run at all, "" where both can."""
        shadow = None if self.turns.shadow is None else self.turns.shadow.problem
        return "; ".join(filter(None, (self._ladder.problem, shadow)))

    def view(self) -> PoolView:
        """Return the pool now."""
        state, now, settings = self.current(), self.clock.now(), self.settings
        step = step_at(now, settings.step_s)
        reading = read_capacity(settings, state, self._capacity_of, now, step)
        cores = believed(reading, state, step, self.turns.outlook.spread)
        margin, used = margin_in_force(settings, state.history.rows, step, cores.cores or 0)
        running = reserved_cores(state, step)
        watch, last = self.watch(), self.last_step()
        counts = {stage.value: 0 for stage in Stage}
        for job in state.jobs.values():
            counts[job.stage.value] += 1
        coming, expected = state.history, None
        if coming.next_step is not None and coming.next_mean is not None:
            expected = ExpectedCores(coming.next_step, coming.next_mean, coming.next_low, coming.next_high)
        return PoolView(
            self.name,
            PoolMode.OBSERVE if self.advises else PoolMode.ENFORCE,
            now,
            state.head.step,
            float(next_step(state, now, settings.step_s) * settings.step_s),
            cores.cores,
            cores.measured,
            settings.capacity,
            margin,
            running,
            max(0, (cores.cores or 0) - margin - running),
            settings.policy,
            settings.shadow or "",
            counts,
            state.head.totals,
            used,
            watch.coverage,
            watch.fallback_share,
            watch.at_risk,
            state.head.drain,
            sum(one.took_ms for one in last.tried) if last is not None else 0.0,
            f"{last.decision_id} {time_text(last.at)}: {last.detail}" if last is not None else "",
            self.problem(),
            expected,
        )


def next_step(state: PoolState, now: float, step_s: int) -> int:
    """Return the first step that is not decided."""
    step = step_at(now, step_s)
    return step if state.head.step is None else max(step, state.head.step + 1)


def _rows(jobs: Sequence[JobRecord]) -> Ints:
    rows = [
        (job.number, job.cores, job.duration, job.earliest, job.latest, job.submitted, job.duration) for job in jobs
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, len(Group._fields))


def _taken(jobs: Iterable[JobRecord], first: int, steps: int) -> Ints:
    taken = np.zeros(steps, dtype=np.int64)
    for job in jobs:
        if job.start is not None and job.free_from is not None and job.free_from > first:
            taken[max(0, job.start - first) : job.free_from - first] += job.cores
    return taken


def _waiting(jobs: Iterable[JobRecord], drain: Drain | None) -> Ints:
    """Return the jobs that wait as `_rows`; under a drain none may start so late that it would run beyond it."""
    rows = _rows([job for job in jobs if job.stage is Stage.WAITING])
    if drain is not None:
        rows[:, _LATEST] = np.minimum(rows[:, _LATEST], drain.by_step - rows[:, _DURATION])
    return rows


def played(jobs: Collection[JobRecord], first: int, path: Ints, drain: Drain | None = None) -> dict[int, int]:
    """Return the step in which each waiting job starts, by its number; path: cores in the steps from `first` on."""
    rows, taken = _waiting(jobs, drain), _taken(jobs, first, path.size)
    rows = rows[rows[:, _SUBMITTED].argsort(kind="stable")]
    # Submitted by the end of each step: the first so many rows.
    known = np.searchsorted(rows[:, _SUBMITTED], first + np.arange(path.size), side="right")
    waiting, seen = np.empty(0, dtype=np.int64), 0
    starts: dict[int, int] = {}
    for k in range(path.size):
        step = first + k
        waiting, seen = np.concatenate((waiting, np.arange(seen, known[k]))), known[k]
        waiting = waiting[rows[waiting, _LATEST] >= step]
        free = int(path[k] - taken[k])
        if free <= 0:
            continue
        able = waiting[rows[waiting, _EARLIEST] <= step]
        if not able.size:
            continue
        begun = able[_chosen(rows[able], step, free)]
        for number, cores, duration in rows[begun, :_EARLIEST].tolist():
            starts[number] = step
            taken[k : k + duration] += cores
        waiting = waiting[~np.isin(waiting, begun)]
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
    worth = -values / group.cores
    # Each start takes a core or more: of thousands only the best can be among them.
    most = 2 * free + EXACT
    best = np.argpartition(worth, most)[:most] if worth.size > most else np.arange(worth.size)
    order = best[np.lexsort((best, worth[best]))]
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
        start = played(state.jobs.values(), first, path, state.head.drain).get(job.number)
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
    if job.cores * job.duration < W1 * (first - job.earliest):
        return f"nothing: its delay of {first - job.earliest} steps would cost more than its start earns"
    if job.cores > last.free:
        return f"room: it needs {job.cores} cores, {last.free} were free in step {last.step}"
    if rank is not None:
        taken = sum(one.cores for one in last.starts)
        return (
            f"jobs before it: it was number {rank} of {len(last.best)} in step {last.step}, the started "
            f"jobs took {taken} of {last.free} free cores"
        )
    return f"the next decision, in step {first}"
