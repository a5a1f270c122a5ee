"""What the agent that leads does for a pool each turn: jobs are received, the step is decided once, starts are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from agent.deferral.capacity import (
    NOMINAL,
    TOLERANCE,
    Outlook,
    budget_used,
    coverage,
    read_capacity,
    recent_violation,
)
from agent.deferral.deciding import StepPlan, decide
from agent.deferral.ladder import Ladder
from agent.deferral.pool import DeferralPool, open_starts
from agent.deferral.queue import DEDUPLICATED_S, ReadyQueue, Sending, SubmitQueue, in_calls
from agent.deferral.records import STEP, Comparison, JobRecord, Stage, StepDecision, step_at
from agent.deferral.shadow import Shadow
from agent.deferral.state import DEFERRAL, Change, PoolState
from agent.kernel.decision import CapacityOf
from agent.kernel.guards import held_by_pause, unmeasured_permit
from agent.kernel.text import time_text
from agent.rails.state import GuardState
from domain.decisions import Direction, Event, Reason
from domain.units import DAY_S

log = structlog.get_logger(__name__)

AT_RISK_STEPS: Final = 6
"""A waiting job whose latest start comes within so many steps is looked at."""
BUDGET_ALARM: Final = 0.8
FALLBACK_ALARM: Final = 0.05
BELIEVED_AFTER_S: Final = 180.0
"""A clock that was set forward by more than a step is gone by after so long."""
FALLBACK_DAYS: Final = 1
FALLBACK_LEAST: Final = 20
"""Decisions in that time from which on the share of fallbacks is an alarm."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is looked at in every turn. coverage: by quantile, {} where too little is known."""

    coverage: Mapping[str, float]
    budget_used: float
    fallback_share: float
    at_risk: tuple[str, ...]
    missing: str
    margin: int


class PoolTurns:
    """Turns one pool. capacity_of: what other parts know. submit, ready: None where the pool has no such queue."""

    def __init__(
        self,
        pool: DeferralPool,
        ladder: Ladder,
        shadow: Shadow | None,
        capacity_of: CapacityOf,
        submit: SubmitQueue | None,
        ready: ReadyQueue | None,
        outlook: Outlook,
        versions: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.pool, self.outlook, self.shadow = pool, outlook, shadow
        self._ladder, self._capacity_of, self._versions = ladder, capacity_of, versions
        self._submit, self._ready = submit, ready
        self._lasts: set[Reason] = set()
        self._newest: StepDecision | None = None
        self._ahead = ""
        self._offset: float | None = None
        self._doubted_s: float | None = None
        self.problem = self._send_problem = self._behind = self._shadow_problem = ""
        self.watch = Watch({}, 0.0, 0.0, (), "", 0)

    def turn(self, now: float, epoch: int) -> tuple[Event, ...]:
        """Turn once; return what is an alarm while it lasts. Raises LedgerError, or Fenced once the epoch is over."""
        if other := self.pool.other_steps(self.pool.current()):
            self.problem = f"nothing is received and decided: {other}"
            return ()
        self._ahead = self._set_forward()
        if not self.pool.advises and not self._ahead:
            # A message whose window the clock has left behind would be refused, and deleted.
            self._receive(epoch)
        if not self.pool.advises:
            # What an earlier turn, or another process, recorded and perhaps sent.
            self._send(now, epoch)
        # Queues take their time: the step to decide may have begun meanwhile, and its capacity been posted.
        now = max(now, self.pool.clock.now())
        decided = None if self._ahead else self._decide(now, epoch)
        if decided is not None:
            if not self.pool.advises and decided.made.starts:
                self._send(now, epoch, decided.made.decision_id)
            self._compare(decided, epoch)
        submit = self._submit.problem if self._submit is not None else ""
        troubles = (submit, self._send_problem, self._ahead, self._behind, self._shadow_problem)
        self.problem = "; ".join(filter(None, troubles))
        return self._lasting(now, epoch)

    def _set_forward(self) -> str:
        """Return why the clock is not believed yet, "" where it is.

        Jobs expire by it, for good: a time that came without time passing, and lies more than a step ahead, must last.
        """
        clock = self.pool.clock
        passed_s = clock.monotonic()
        offset = clock.now() - passed_s
        ahead = 0.0 if self._offset is None else offset - self._offset
        if ahead <= self.pool.settings.step_s:
            self._offset, self._doubted_s = offset, None
            return ""
        self._doubted_s = passed_s if self._doubted_s is None else self._doubted_s
        if passed_s - self._doubted_s >= BELIEVED_AFTER_S:
            self._offset, self._doubted_s = offset, None
            return ""
        log.warning("clock_set_forward", pool=self.pool.name, by_s=ahead)
        return f"the clock was set forward by {ahead:.0f} s: nothing is decided before that has lasted three minutes"

    # Receiving and sending

    def _receive(self, epoch: int) -> None:
        if self._submit is None:
            return
        for messages, receipts in self._submit.batches():
            self.pool.take_messages(messages, epoch)
            self._submit.delete(receipts)

    def _send(self, now: float, epoch: int, decided: str = "") -> None:
        """Send the starts of a decision of this turn; without one, again those of earlier turns that are open."""
        step = step_at(now, self.pool.settings.step_s)
        # What for certain never left in its own step is decided anew: its room or its window may be gone.
        open_now = [
            job
            for job in open_starts(self.pool.current())
            if decided in ("", job.decision_id) and (job.uncertain or job.start == step)
        ]
        if self._ready is None:
            # The queue was taken out of the settings: workers read the starts over HTTP.
            if open_now:
                self._note_result(
                    [job.job_id for job in open_now], Sending(tuple(job.job_id for job in open_now)), epoch
                )
            return
        permit = unmeasured_permit(
            now, self.pool.clock, partial(self.pool.ledger.controls, DEFERRAL), lambda subject: GuardState()
        )
        self._send_problem = ""
        for jobs in in_calls(open_now):
            ids = [job.job_id for job in jobs]
            if not decided:
                ids = self._note_attempt(ids, epoch)
                known = self.pool.current().jobs
                jobs = [known[name] for name in ids]
            if not jobs:
                continue
            result = self._ready.send(jobs, permit)
            self._note_result(ids, result, epoch)
            failed = {**result.unsent, **result.unknown}
            if failed:
                self._send_problem = f"{len(failed)} starts were not sent: {next(iter(failed.values()))}"

    def _note_attempt(self, ids: list[str], epoch: int) -> list[str]:
        """Record, before it is made, an attempt to send starts that an earlier one may have sent.

        Returns those to be sent: not what was cancelled meanwhile.
        """
        fifo, queue = self._ready is not None and self._ready.fifo, self.pool.settings.ready_queue_url or ""

        def work(state: PoolState, now: float) -> tuple[list[str], Change | None]:
            changed: dict[str, JobRecord | None] = {}
            step = step_at(now, self.pool.settings.step_s)
            # What a process had under way when it ended may have arrived.
            repeated = [name for name in ids if state.jobs[name].repeats]
            for name in ids:
                job = state.jobs[name]
                if job.stage is not Stage.STARTING:
                    continue
                # Another queue than the first knows nothing of what that one has seen.
                same = job.sent_to in ("", queue)
                first_at = now if job.attempted_at is None or job.uncertain == 0 or not same else job.attempted_at
                dropped = same and fifo and 0.0 <= now - first_at < DEDUPLICATED_S
                job = replace(
                    job,
                    attempts=job.attempts + 1,
                    uncertain=job.uncertain + 1,
                    attempted_at=first_at,
                    sent_to=queue,
                    repeats=job.uncertain > 0 and not dropped,
                )
                if job.free_from is not None:
                    # It may begin as late as now.
                    job = replace(job, free_from=max(job.free_from, step + job.duration))
                changed[name] = job
            return list(changed), self._counting(state, now, changed, repeated)

        return self.pool.transact(work, epoch=epoch)

    def _note_result(self, ids: list[str], result: Sending, epoch: int) -> None:
        sent = frozenset(result.sent)

        def work(state: PoolState, now: float) -> tuple[None, Change | None]:
            changed: dict[str, JobRecord | None] = {}
            # One that SQS refused for certain is no second copy.
            repeated = [name for name in ids if state.jobs[name].repeats and name not in result.unsent]
            for name in ids:
                job = replace(state.jobs[name], repeats=False)
                if name in sent:
                    changed[name] = replace(job, stage=Stage.RUNNING, detail="")
                elif name in result.unsent:
                    changed[name] = replace(job, uncertain=max(0, job.uncertain - 1), detail=result.unsent[name])
                else:
                    changed[name] = replace(job, detail=result.unknown.get(name, ""))
            return None, self._counting(state, now, changed, repeated)

        self.pool.transact(work, epoch=epoch)

    def _counting(
        self, state: PoolState, now: float, changed: Mapping[str, JobRecord | None], repeated: list[str]
    ) -> Change:
        """Return a change of jobs that counts the starts among them that may arrive twice."""
        words = "was sent again, and may arrive twice: its worker must ignore an id it has seen"
        notes = [self.pool.event(now, Reason.START_REPEATED, f"{name} {words}", name) for name in repeated]
        totals = replace(state.head.totals, repeated_starts=state.head.totals.repeated_starts + len(repeated))
        return Change(replace(state.head, totals=totals), changed, notes=notes)

    # Deciding

    def _decide(self, now: float, epoch: int) -> StepPlan | None:
        pool, settings = self.pool, self.pool.settings

        def work(state: PoolState, _: float) -> tuple[StepPlan | None, Change | None]:
            step, last = step_at(now, settings.step_s), state.head.step
            back = last is not None and step < last
            if back and not self._behind:
                log.warning("step_repeated", pool=pool.name, step=step, decided=last)
            self._behind = ""
            if last is not None and back:
                until = time_text(float((last + 1) * settings.step_s))
                self._behind = f"the clock went back: nothing is decided before {until}, after the newest step"
            held = held_by_pause(pool.ledger.controls(DEFERRAL, pool.name), (Direction.OUT,), now)
            decided = decide(
                pool.name,
                settings,
                state,
                now,
                read_capacity(settings, state, self._capacity_of, now, step),
                self.outlook,
                self._ladder,
                paused="" if held is None else held.detail,
                advice=pool.advises,
                versions=self._versions(),
            )
            return decided, None if decided is None else decided.change

        decided = pool.transact(work, epoch=epoch, beside_new_jobs=True)
        if decided is not None:
            log.info("step_decided", pool=pool.name, decision_id=decided.made.decision_id, detail=decided.made.detail)
        return decided

    def _compare(self, decided: StepPlan, epoch: int) -> None:
        """Ask the shadow about a step, and record the comparison of a day that is over."""
        if self.shadow is None:
            return
        state = self.pool.current()
        try:
            made, self._shadow_problem = self.shadow.follow(state, decided), ""
        except Exception as error:
            # It starts nothing, so nothing waits for it.
            log.exception("shadow_failed", pool=self.pool.name)
            made, self._shadow_problem = None, f"the shadow failed: {type(error).__name__}: {error}"
        if made is not None:
            self._record(made, epoch)

    def _record(self, made: Comparison, epoch: int) -> None:
        def work(state: PoolState, now: float) -> tuple[None, Change | None]:
            number = state.head.decisions + 1
            numbered = replace(made, decision_id=f"{self.pool.name}-d{number}")
            note = self.pool.event(now, made.reason, made.detail, numbered.decision_id)
            return None, Change(replace(state.head, decisions=number), made=[(numbered, b"")], notes=[note])

        self.pool.transact(work, epoch=epoch)

    # Alarms

    def _lasting(self, now: float, epoch: int) -> tuple[Event, ...]:
        state = self.pool.current()
        self.watch = self.watched(state, now, self.outlook)
        found = list(self._alarms(now))
        fresh = [event for event in found if event.reason not in self._lasts]
        self._lasts = {event.reason for event in found}
        if fresh:
            # Recorded when it begins; an alarm for as long as it is returned.
            self.pool.transact(lambda state, _: (None, Change(state.head, notes=fresh)), epoch=epoch)
        return tuple(found)

    def watched(self, state: PoolState, now: float, outlook: Outlook) -> Watch:
        """Return what is to be looked at in a pool as the ledger has it, whichever agent leads."""
        settings, rows = self.pool.settings, state.history.rows
        step = state.head.step if state.head.step is not None else step_at(now, settings.step_s)
        asked = [row for row in rows if row.asked and row.step > step - round(FALLBACK_DAYS * DAY_S / settings.step_s)]
        share = sum(row.fallback for row in asked) / len(asked) if len(asked) >= FALLBACK_LEAST else 0.0
        newest = self._newest_step(state)
        margin = 0 if newest is None else newest.margin
        # Before the first step of a process its outlook knows nothing.
        outlook.follow(rows, step + 1)
        return Watch(
            coverage(rows, step, settings.step_s),
            budget_used(settings, recent_violation(settings, rows, step)[0]),
            share,
            at_risk(state, step, outlook, margin),
            "" if newest is None or newest.capacity is not None else newest.detail,
            margin,
        )

    def _newest_step(self, state: PoolState) -> StepDecision | None:
        if self._newest is None or self._newest.step != state.head.step:
            found = self.pool.store.newest(self.pool.name, 1, STEP)
            self._newest = found[0] if found and isinstance(found[0], StepDecision) else None
        return self._newest

    def _alarms(self, now: float) -> list[Event]:
        watch, name = self.watch, self.pool.name
        found = []
        if watch.missing:
            detail = f"the capacity of {name} is missing: {watch.missing}"
            found.append(self.pool.event(now, Reason.CAPACITY_MISSING, detail))
        for quantile, share in watch.coverage.items():
            if share < NOMINAL - TOLERANCE:
                detail = (
                    f"in 7 days {share:.0%} of the steps kept the quantile {quantile} of the forecast of {name} "
                    f"(nominal {NOMINAL:.0%}): the capacity changes in another way than before; raise MARGIN"
                )
                found.append(self.pool.event(now, Reason.FORECAST_UNCOVERED, detail))
                break
        if watch.budget_used > BUDGET_ALARM:
            detail = (
                f"{watch.budget_used:.0%} of the violation budget of {name} is used: its margin is {watch.margin} cores"
            )
            found.append(self.pool.event(now, Reason.VIOLATION_BUDGET_USED, detail))
        if watch.fallback_share > FALLBACK_ALARM:
            detail = (
                f"another policy than {self.pool.settings.policy} decided {watch.fallback_share:.0%} of the last day's "
                f"steps of {name} (at most {FALLBACK_ALARM:.0%}): see trimtab status deferral {name}"
            )
            found.append(self.pool.event(now, Reason.POLICY_FELL_BACK, detail))
        if watch.at_risk:
            named = ", ".join(watch.at_risk[:8])
            detail = f"{len(watch.at_risk)} jobs of {name} may not start in their window: {named}"
            found.append(self.pool.event(now, Reason.JOBS_AT_RISK, detail))
        return found


def at_risk(state: PoolState, step: int, outlook: Outlook, margin: int) -> tuple[str, ...]:
    """Return the waiting jobs whose latest start comes within six steps and for which no room is expected until then.

    Room: jobs in the order of their latest starts take what the forecast and the margin leave, each at its first step.
    A drain leaves none to what would run beyond it.
    """
    steps = AT_RISK_STEPS
    waiting = [
        job for job in state.jobs.values() if job.stage is Stage.WAITING and step < job.latest + 1 <= step + steps + 1
    ]
    if not waiting or state.head.capacity is None:
        return ()
    path = outlook.path(steps)
    room = [int(path[k]) - margin for k in range(steps)]
    drain = state.head.drain
    for job in state.jobs.values():
        if job.start is None:
            continue
        for k in range(steps):
            if job.holds(step + 1 + k):
                room[k] -= job.cores
    found = []
    for job in sorted(waiting, key=lambda job: (job.latest, job.number)):
        for k in range(steps):
            at = step + 1 + k
            if drain is not None and at + job.duration > drain.by_step:
                continue
            if job.earliest <= at <= job.latest and room[k] >= job.cores:
                for later in range(k, min(steps, k + job.duration)):
                    room[later] -= job.cores
                break
        else:
            found.append(job.job_id)
    return tuple(found)
