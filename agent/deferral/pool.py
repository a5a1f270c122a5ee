"""One deferral pool: jobs are submitted to it, cancelled and looked up; its capacity is posted, its drains are ordered.

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. Several agents may serve one pool on a shared ledger: after a write of another one an agent reads
and decides again. Only the leader starts jobs (`agent.deferral.turn`).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from agent.deferral.records import (
    FINAL,
    LATEST_AT,
    LONGEST_PAYLOAD,
    MOST_CORES,
    CancellationResult,
    Drain,
    History,
    JobOrder,
    JobRecord,
    PoolHead,
    RefusedMessage,
    Report,
    Stage,
    SubmissionResult,
    Totals,
    step_at,
)
from agent.deferral.settings import HTTP, DeferralSettings, PoolMode
from agent.deferral.state import DEFERRAL, HEADS, Change, DeferralStore, PoolState
from agent.kernel.transaction import Conflict, retried
from agent.ledger import Ledger
from domain.clock import Clock
from domain.decisions import Event, Mode, Reason
from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.deferral.jobs import check_job
from domain.subject import Subject

log = structlog.get_logger(__name__)

REPORT_AHEAD_S: Final = 60.0
"""A reported capacity may be so far in the future of this agent's clock."""
MOST_REFUSED: Final = 10_000
"""Keys of messages that were refused and are not recorded again, should they not be deleted."""

T = TypeVar("T")


class JobExpired(BadInput):
    """The latest start of a job has passed when it is submitted."""


@dataclass(frozen=True, slots=True)
class FromQueue:
    """A message of the submit queue: its id, its text, the job in it or why it is refused, and when it was sent."""

    message_id: str
    body: str
    order: JobOrder | BadInput
    sent_at: float | None = None

    @property
    def key(self) -> str:
        """Identifies the message, also among messages of the same id."""
        return hashlib.sha256(f"{self.message_id} {self.body}".encode()).hexdigest()[:32]


class DeferralPool:
    """One pool; every method may be called from any thread and raises LedgerUnavailable when the ledger cannot be used.

    mode: of the agent; in observe mode nothing is started in any mode of the pool.
    """

    def __init__(self, name: str, settings: DeferralSettings, ledger: Ledger, clock: Clock, mode: Mode) -> None:
        self.name, self.settings, self.clock, self.ledger = name, settings, clock, ledger
        self.store = DeferralStore(ledger)
        self.advises = mode is not Mode.ACT or settings.mode is PoolMode.OBSERVE
        """Whether it only records what it would start."""
        self.alarms: deque[Event] = deque()
        self._lock = threading.RLock()
        self._state: PoolState | None = None
        self._refusals: dict[str, None] = {}

    # Reading and writing

    def current(self) -> PoolState:
        """Return the pool as the ledger has it now."""
        with self._lock:
            stored = self.store.stored_head(self.name)
            if self._state is None or stored != self._state.stored:
                self._state = self.store.read(self.name)
            return self._state

    def transact(
        self,
        work: Callable[[PoolState, float], tuple[T, Change | None]],
        *,
        epoch: int | None = None,
        beside_new_jobs: bool = False,
    ) -> T:
        """Do work on the pool and write its change; again on the new state when another process wrote first.

        beside_new_jobs: its change holds where only jobs were submitted meanwhile. Fenced when an `epoch` is given and
        over. StateConflict where its jobs are counted in other steps.
        """

        def attempt() -> T:
            before = self.current()
            if other := self.other_steps(before):
                raise StateConflict("STEP_S", self.settings.step_s, other)
            answer, change = work(before, self.clock.now())
            if change is None:
                return answer
            head = replace(change.head, revision=before.head.revision + 1, step_s=self.settings.step_s)
            change = replace(change, head=head)
            # Written or not, if the write fails: read again.
            self._state = None
            try:
                stored = self.store.write(self.name, before.stored, change, epoch=epoch)
            except Conflict:
                if not beside_new_jobs or not self._wrote_beside(before.head, change, epoch):
                    raise
            else:
                jobs = {**before.jobs, **{name: job for name, job in change.jobs.items() if job is not None}}
                for name in [name for name, job in change.jobs.items() if job is None]:
                    jobs.pop(name, None)
                self._state = PoolState(change.head, stored, change.history or before.history, jobs)
            self.alarms += change.notes
            return answer

        with self._lock:
            return retried(f"pool {self.name}", attempt)

    def _wrote_beside(self, before: PoolHead, change: Change, epoch: int | None) -> bool:
        """Write a change beside jobs that were submitted since `before`; return whether nothing else has happened.

        Long work would else come too late again and again where another agent takes many jobs.
        """

        def attempt() -> bool:
            stored = self.store.stored_head(self.name)
            head = HEADS.decoded(stored)
            if before != _with_jobs_of(before, replace(head, revision=before.revision)):
                return False
            merged = replace(_with_jobs_of(head, change.head), revision=head.revision + 1)
            self.store.write(self.name, stored, replace(change, head=merged), epoch=epoch)
            return True

        return retried(f"pool {self.name}", attempt)

    def other_steps(self, state: PoolState) -> str:
        """Return what to do where the ledger counts in steps of another length: every window would be wrong."""
        known = state.head.step_s
        if known in (0, self.settings.step_s):
            return ""
        return f"the jobs of {self.name} are counted in steps of {known} s: set it back to that, or name another pool"

    def event(self, now: float, reason: Reason, detail: str, about: str = "") -> Event:
        """Return an event of the pool."""
        return Event(Subject(DEFERRAL, self.name), now, reason, detail, about)

    # Jobs

    def submit(self, order: JobOrder) -> SubmissionResult:
        """Take a job; the same id with the same content gets the same answer.

        BadInput names the wrong field; JobExpired where its window is over; StateConflict for the id of another job.
        """

        def work(state: PoolState, now: float) -> tuple[SubmissionResult, Change | None]:
            job, head = self.taken(state.head, state.jobs, state.history, order, now)
            if head is None:
                return SubmissionResult(True, job), None
            return SubmissionResult(False, job), Change(head, {job.job_id: job}, notes=[self._submitted(job, now)])

        made = self.transact(work)
        log.info("job_submitted", pool=self.name, job=made.job.job_id, already=made.already)
        return made

    def take_messages(self, messages: Sequence[FromQueue], epoch: int) -> tuple[Event, ...]:
        """Record the jobs in messages of the submit queue, all at once; then they may be deleted.

        A refused message is recorded whole with the reason, and only once if it could not be deleted and comes again.
        Returns the notes. Fenced when the epoch is over.
        """
        fresh = [message for message in messages if message.key not in self._refusals]

        def work(state: PoolState, now: float) -> tuple[tuple[Event, ...], Change | None]:
            head, jobs = state.head, dict(state.jobs)
            refused.clear()
            changed: dict[str, JobRecord | None] = {}
            notes: list[Event] = []
            made: list[tuple[RefusedMessage, bytes]] = []
            for message in fresh:
                if message.key in refused:
                    continue
                try:
                    if isinstance(message.order, BadInput):
                        raise message.order
                    job, after = self.taken(head, jobs, state.history, message.order, now, message.sent_at)
                except BadInput as error:
                    totals = replace(head.totals, refused=head.totals.refused + 1)
                    head = replace(head, decisions=head.decisions + 1, totals=totals)
                    decision_id, detail = f"{self.name}-d{head.decisions}", f"message {message.message_id}: {error}"
                    refused.append(message.key)
                    made.append((self._refused(decision_id, now, message, detail), b""))
                    notes.append(self.event(now, Reason.JOB_REFUSED, detail, decision_id))
                    continue
                if after is None:
                    job = replace(job, duplicates=job.duplicates + 1)
                    head = replace(head, totals=replace(head.totals, duplicates=head.totals.duplicates + 1))
                else:
                    head = after
                    notes.append(self._submitted(job, now))
                changed[job.job_id] = jobs[job.job_id] = job
            return tuple(notes), Change(head, changed, made=made, notes=notes)

        refused: list[str] = []
        notes = self.transact(work, epoch=epoch) if fresh else ()
        self._refusals.update(dict.fromkeys(refused))
        for name in list(self._refusals)[:-MOST_REFUSED]:
            del self._refusals[name]
        return notes

    def _refused(self, decision_id: str, now: float, message: FromQueue, detail: str) -> RefusedMessage:
        return RefusedMessage(decision_id, self.name, now, message.message_id, message.body, Reason.JOB_REFUSED, detail)

    def _submitted(self, job: JobRecord, now: float) -> Event:
        size = f"{job.cores} cores for {job.duration} steps"
        flags = "".join((", late" if job.late else "", ", larger than any capacity seen" if job.unlikely else ""))
        return self.event(now, Reason.JOB_SUBMITTED, f"{job.job_id}: {size}{flags}", job.job_id)

    def taken(
        self,
        head: PoolHead,
        jobs: Mapping[str, JobRecord],
        history: History,
        order: JobOrder,
        now: float,
        sent_at: float | None = None,
    ) -> tuple[JobRecord, PoolHead | None]:
        """Return the job of an order, and the head with it; None for the head where it was taken before.

        sent_at: when it was put on a queue; one that was in time then is late by no fault of its sender.
        """
        if order.earliest_at is not None and order.latest_at < order.earliest_at:
            remedy = f"give the earliest start, {order.earliest_at:.0f}, or a later time"
            raise BadInput("latest_at", order.latest_at, remedy)
        if len(order.payload.encode()) > LONGEST_PAYLOAD:
            raise BadInput("payload", order.payload, f"give at most {LONGEST_PAYLOAD} bytes")
        before = jobs.get(order.job_id)
        if before is not None:
            if before.fingerprint != order.fingerprint:
                remedy = f"it belongs to another job ({before.cores} cores, {before.duration} steps): use another id"
                raise StateConflict("job_id", order.job_id, remedy)
            return before, None
        step_s = self.settings.step_s
        submitted = max(step_at(now, step_s), head.step if head.step is not None else 0)
        earliest = submitted if order.earliest_at is None else math.ceil(order.earliest_at / step_s)
        latest = step_at(order.latest_at, step_s)
        if latest < submitted:
            raise JobExpired("latest_at", order.latest_at, f"expired: give a time from {submitted * step_s} on")
        if latest <= (head.step if head.step is not None else -1):
            remedy = f"expired: the step in which it lies is decided; give a time from {(latest + 1) * step_s} on"
            raise JobExpired("latest_at", order.latest_at, remedy)
        if latest < earliest:
            remedy = f"no step begins between it and the earliest start: give a time from {earliest * step_s} on"
            raise BadInput("latest_at", order.latest_at, remedy)
        in_time = sent_at is not None and earliest >= step_at(sent_at, step_s)
        clamp = in_time or self.settings.clamp_late if order.clamp_late is None else order.clamp_late
        if earliest < submitted and not clamp:
            remedy = f"it has passed: give a time from {submitted * step_s} on, leave it out, or set clamp_late"
            raise BadInput("earliest_at", order.earliest_at, remedy)
        seen = [row.capacity for row in history.rows if row.capacity is not None]
        fields = {
            "cores": order.cores,
            "duration": order.duration_steps,
            "earliest": earliest,
            "latest": latest,
            "submitted": submitted,
        }
        checked, _ = check_job(fields, clamp_late=clamp)
        job = JobRecord(
            order.job_id,
            head.jobs + 1,
            order.fingerprint,
            *checked,
            now,
            late=earliest < submitted,
            unlikely=bool(seen) and checked.cores > max(seen),
            requested_by=order.requested_by,
            payload=order.payload,
        )
        totals = replace(head.totals, submitted=head.totals.submitted + 1, unlikely=head.totals.unlikely + job.unlikely)
        return job, replace(head, jobs=head.jobs + 1, totals=totals)

    def cancel(self, job_id: str, by: str = "") -> CancellationResult:
        """Take a job back: a waiting one at once, of a running one the cores are free from the next step on.

        UnknownName for a job that is not known, StateConflict for one that is over or whose start may have been sent.
        """

        def work(state: PoolState, now: float) -> tuple[CancellationResult, Change | None]:
            job = self._known(state, job_id)
            if job.stage is Stage.CANCELLED:
                return CancellationResult(True, job, used(job)), None
            if job.stage in FINAL:
                raise StateConflict("job_id", job_id, f"it is over: {job.stage}")
            totals = state.head.totals
            if job.stage is Stage.STARTING:
                if job.uncertain:
                    raise StateConflict("job_id", job_id, "its start is being sent: cancel it again in a minute")
                job, totals = given_back(job, totals)
            after = replace(
                job, stage=Stage.CANCELLED, ended_at=now, detail=f"cancelled by {by}" if by else "cancelled"
            )
            if job.start is not None and job.free_from is not None:
                step = max(job.start, step_at(now, self.settings.step_s), state.head.step or 0)
                after = replace(after, free_from=min(job.free_from, step + 1))
            totals = replace(
                totals,
                cancelled=totals.cancelled + 1,
                cancelled_core_steps=totals.cancelled_core_steps + used(after),
            )
            note = self.event(
                now,
                Reason.JOB_CANCELLED,
                f"{job_id} is cancelled; {used(after)} core-steps used",
                job_id,
            )
            change = Change(replace(state.head, totals=totals), {job_id: after}, notes=[note])
            return CancellationResult(False, after, used(after)), change

        return self.transact(work)

    def job(self, job_id: str) -> JobRecord:
        """Return a job; UnknownName."""
        return self._known(self.current(), job_id)

    def jobs(self, stage: Stage | None = None, since_step: int | None = None, after: int = 0) -> list[JobRecord]:
        """Return jobs in the order of their submission: of one stage, started from a step on, after a number."""
        found = [
            job
            for job in self.current().jobs.values()
            if job.number > after
            and stage in (None, job.stage)
            and (since_step is None or (job.start is not None and job.start >= since_step))
        ]
        return sorted(found, key=lambda job: job.number)

    def _known(self, state: PoolState, job_id: str) -> JobRecord:
        found = state.jobs.get(job_id)
        if found is None:
            raise UnknownName("job_id", job_id, f"the pool {self.name} knows no job of this id")
        return found

    # Orders and reports

    def report(self, cores: float, at: float | None = None, by: str = "") -> Report:
        """Take the number of cores that other work leaves over now, or left over at a time.

        BadInput for what is no number of cores, StateConflict where the pool reads its capacity elsewhere.
        """
        if self.settings.capacity != HTTP:
            raise StateConflict("cores", cores, f"the pool reads its capacity from {self.settings.capacity}")
        if isinstance(cores, bool) or not math.isfinite(cores) or not 0.0 <= cores <= MOST_CORES:
            raise BadInput("cores", cores, f"give a number of cores from 0 to {MOST_CORES}")

        def work(state: PoolState, now: float) -> tuple[Report, Change | None]:
            moment = now if at is None else at
            if not math.isfinite(moment) or moment > now + REPORT_AHEAD_S:
                raise BadInput("at", at, "give a time that has passed")
            before = state.head.report
            # One that lies ahead of a clock that was set back is no later one.
            if before is not None and moment < before.at <= now + REPORT_AHEAD_S:
                raise StateConflict("at", at, f"a number of a later time, {before.at:.0f}, is known already")
            made = Report(float(cores), moment, by)
            return made, Change(replace(state.head, report=made))

        return self.transact(work)

    def drain(self, by_at: float | None, owner: str, reason: str) -> Drain | None:
        """Start no job from now on that would run beyond a time, or (None) let every job start again."""

        def work(state: PoolState, now: float) -> tuple[Drain | None, Change | None]:
            made = None
            if by_at is not None:
                if not math.isfinite(by_at) or not 0.0 <= by_at <= LATEST_AT:
                    raise BadInput("by_at", by_at, "give a time in seconds since the epoch")
                made = Drain(step_at(by_at, self.settings.step_s), owner, reason, now)
            words = "every job may start again" if made is None else f"no job may run beyond step {made.by_step}"
            note = self.event(now, Reason.OPERATOR, f"{owner}: {words}: {reason}")
            return made, Change(replace(state.head, drain=made), notes=[note])

        return self.transact(work)

    def taken_alarms(self) -> tuple[Event, ...]:
        """Return the events recorded since the last call."""
        return tuple(self.alarms.popleft() for _ in range(len(self.alarms)))


def _with_jobs_of(submitted: PoolHead, head: PoolHead) -> PoolHead:
    totals = replace(head.totals, submitted=submitted.totals.submitted, unlikely=submitted.totals.unlikely)
    return replace(head, jobs=submitted.jobs, totals=totals)


def given_back(job: JobRecord, totals: Totals) -> tuple[JobRecord, Totals]:
    """Return a job whose start for certain was not sent as one that waits again, and the counts without the start."""
    waiting = replace(job, stage=Stage.WAITING, start=None, free_from=None, attempts=0, attempted_at=None)
    core_steps = job.cores * job.duration
    return waiting, replace(
        totals,
        unsent_starts=totals.unsent_starts + 1,
        unsent_core_steps=totals.unsent_core_steps + core_steps,
        started=totals.started - 1,
        started_core_steps=totals.started_core_steps - core_steps,
    )


def used(job: JobRecord) -> int:
    """Return the core-steps that a job has used or will, 0 for one that never started."""
    return 0 if job.start is None or job.free_from is None else job.cores * (job.free_from - job.start)


def reserved_cores(state: PoolState, step: int, *, advised: bool = True) -> int:
    """Return the cores of jobs that hold theirs in a step; advised: also those that started in the books alone."""
    return sum(job.cores for job in state.jobs.values() if job.holds(step) and (advised or not job.advice))


def open_starts(state: PoolState) -> list[JobRecord]:
    """Return the jobs whose start is recorded and not yet known to be sent, in the order of submission."""
    found = [job for job in state.jobs.values() if job.stage is Stage.STARTING]
    return sorted(found, key=lambda job: job.number)
