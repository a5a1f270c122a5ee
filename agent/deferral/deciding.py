"""A step of a pool: what time did to its jobs, what starts, and everything about it as it is recorded.

A pure function of the pool as it is, the capacity that was read, and the ladder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.deferral.capacity import EffectiveCapacity, Outlook, Reading, believed, margin_in_force
from agent.deferral.ladder import Ladder, LearnedRung, PolicyChoice, ladder_of, ranked
from agent.deferral.pool import given_back
from agent.deferral.records import (
    FINAL,
    History,
    JobRecord,
    JobScore,
    Stage,
    Start,
    StepDecision,
    StepRow,
    Totals,
    step_at,
)
from agent.deferral.settings import LEARNED, DeferralSettings
from agent.deferral.state import DEFERRAL, Change, PoolState
from agent.deferral.views import HISTORY_DAYS, IndexedView, document_of, seen_by, seen_in
from agent.kernel.decision import ReplayResult
from agent.kernel.store import Record
from agent.kernel.text import counted
from agent.ledger import codec
from domain.decisions import Event, Reason
from domain.rules.deferral.jobs import W1
from domain.rules.deferral.rolling import MARGIN, STEPS
from domain.rules.deferral.tokens import WINDOW
from domain.subject import Subject
from domain.units import DAY_S

Floats = NDArray[np.float64]

SHOWN: Final = 200
"""Jobs of a decision whose scores are recorded, and ids of those that expired."""
QUEUE_KEEPS_S: Final = 14 * DAY_S
"""SQS keeps a message for so long at most."""
LONGEST_DELAY: Final = 6
"""Delays of this and more are counted as one."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step that was decided, with what is to be written. path: the capacity that a plan counted on."""

    made: StepDecision
    change: Change
    seen: IndexedView | None
    chosen: PolicyChoice | None
    believed: EffectiveCapacity
    path: Floats


def decide(
    pool: str,
    settings: DeferralSettings,
    state: PoolState,
    now: float,
    reading: Reading,
    outlook: Outlook,
    ladder: Ladder,
    *,
    paused: str = "",
    advice: bool = False,
    versions: Mapping[str, str] | None = None,
) -> StepPlan | None:
    """Return what the step in which `now` lies brings; None where it is decided already, or lies in the past.

    paused: why nothing may start, "" where it may. advice: jobs are started in the books alone.
    """
    step = step_at(now, settings.step_s)
    head, rows = state.head, state.history.rows
    if head.step is not None and step <= head.step:
        return None
    skipped = 0 if head.step is None else step - head.step - 1
    changed, expired, totals, notes = _aged(pool, settings, state, step, now, advice=advice)
    jobs = {**state.jobs, **{name: job for name, job in changed.items() if job is not None}}
    for name in [name for name, job in changed.items() if job is None]:
        del jobs[name]
    outlook.follow(rows, step)
    cores = believed(reading, state, step, outlook.spread)
    held = sum(job.cores for job in jobs.values() if job.holds(step))
    violation = max(0, held - cores.cores) if cores.measured and cores.cores is not None else 0
    margin, _ = margin_in_force(settings, rows, step, cores.cores or 0)
    number = head.decisions + 1
    decision_id = f"{pool}-d{number}"
    seen: IndexedView | None = None
    chosen: PolicyChoice | None = None
    starts: tuple[Start, ...] = ()
    drain_by = None if head.drain is None else head.drain.by_step
    path = np.empty(0)
    if cores.cores is not None:
        outlook.follow(rows, step, cores.cores)
        # No policy looks further back, and each decision records what it was made on.
        recent = rows[-WINDOW:]
        seen = seen_by(jobs.values(), recent, step, cores.cores - margin, settings.step_s, drain_by)
        path = planned_path(outlook, margin)
        if not paused:
            chosen = ladder.decide(seen.view, path)
            starts = _starts(seen, chosen, jobs)
    for start in starts:
        changed[start.job_id] = jobs[start.job_id] = _begun(
            jobs[start.job_id],
            step,
            now,
            decision_id,
            queue="" if advice else settings.ready_queue_url or "",
            advice=advice,
        )
    waiting = [job for job in jobs.values() if job.stage is Stage.WAITING and job.latest >= step]
    able = 0 if seen is None else seen.view.cur.size
    asked = chosen is not None and bool(chosen.tried)
    fallback = chosen is not None and chosen.fell_back
    totals = _counted(totals, starts, violation, skipped, fallback)
    reason, detail = _words(cores, starts, chosen, paused, able, held, margin, advice)
    document = (
        {}
        if seen is None
        else {"seen": document_of(seen), "path": path.tolist(), "first": ladder.first, "paused": paused}
    )
    inputs = codec.encode_mapping(document) if document else b""
    made = StepDecision(
        decision_id,
        pool,
        now,
        step,
        reason,
        detail,
        cores.cores,
        cores.measured,
        reading.source,
        margin,
        0 if seen is None else max(0, seen.view.free),
        held,
        "" if chosen is None else chosen.policy,
        () if chosen is None else chosen.tried,
        starts,
        _best(seen, chosen),
        len([job for job in waiting if job.earliest <= step]),
        len([job for job in waiting if job.earliest > step]),
        tuple(expired[:SHOWN]),
        skipped,
        violation,
        drain_by,
        advice,
        hashlib.sha256(inputs).hexdigest()[:16] if inputs else "",
        dict(versions or {}),
    )
    row = _row(state.history, step, cores, held, starts, violation, seen, asked, fallback)
    coming = outlook.expected(1)[0] if cores.measured else None
    first = step - round(HISTORY_DAYS * DAY_S / settings.step_s)
    history = History(
        (*(one for one in rows if one.step > first), row),
        None if coming is None else coming.step,
        None if coming is None else coming.cores,
        None if coming is None else coming.low,
        None if coming is None else coming.high,
    )
    head = replace(head, step=step, decisions=number, totals=totals)
    if cores.measured:
        head = replace(head, capacity=cores.cores, capacity_step=step)
    notes.append(Event(Subject(DEFERRAL, pool), now, reason, f"{decision_id}: {detail}", decision_id))
    if skipped:
        detail = f"{skipped} steps before step {step} were not decided: no agent ran, or the clock was set"
        notes.append(Event(Subject(DEFERRAL, pool), now, Reason.STEPS_SKIPPED, detail, decision_id))
    change = Change(head, changed, history, [(made, inputs)], notes)
    return StepPlan(made, change, seen, chosen, cores, path)


def _aged(
    pool: str, settings: DeferralSettings, state: PoolState, step: int, now: float, *, advice: bool
) -> tuple[dict[str, JobRecord | None], list[str], Totals, list[Event]]:
    """Return the jobs that time changed: ended, expired, forgotten, or waiting again since they were never sent."""
    changed: dict[str, JobRecord | None] = {}
    expired: list[str] = []
    totals, notes = state.head.totals, list[Event]()
    for name, job in state.jobs.items():
        if (
            job.advice
            and not advice
            and (job.stage is Stage.RUNNING or (job.stage is Stage.ENDED and job.latest >= step))
        ):
            # It started in the books alone, and the pool starts jobs now.
            job = replace(job, stage=Stage.WAITING, start=None, free_from=None, ended_at=None, advice=False)
            changed[name] = job
        if job.stage in FINAL:
            # Within its window its message, if it could not be deleted, would make it a new job.
            over = (job.latest < step or now - job.at > QUEUE_KEEPS_S) and not job.holds(step)
            if over and job.ended_at is not None and now - job.ended_at > settings.keep_days * DAY_S:
                changed[name] = None
            continue
        if job.stage is Stage.STARTING and job.uncertain == 0:
            job, totals = given_back(job, totals)
            changed[name] = job
        if job.stage is Stage.WAITING and job.latest < step:
            changed[name] = replace(job, stage=Stage.EXPIRED, ended_at=now, detail="not started in its window")
            expired.append(name)
            totals = replace(
                totals,
                expired=totals.expired + 1,
                expired_core_steps=totals.expired_core_steps + job.cores * job.duration,
            )
        elif job.stage is Stage.RUNNING and job.free_from is not None and job.free_from <= step:
            changed[name] = replace(job, stage=Stage.ENDED, ended_at=now)
            totals = replace(totals, ended=totals.ended + 1)
    if expired:
        number = counted(len(expired), "job was", "jobs were")
        named = ", ".join(expired[:8]) + (f" and {len(expired) - 8} more" if len(expired) > 8 else "")
        notes.append(
            Event(
                Subject(DEFERRAL, pool),
                now,
                Reason.JOB_EXPIRED,
                f"{number} not started in time: {named}",
            )
        )
    return changed, expired, totals, notes


def _starts(seen: IndexedView, chosen: PolicyChoice, jobs: Mapping[str, JobRecord]) -> tuple[Start, ...]:
    place = {position: rank for rank, position in enumerate(ranked(chosen), 1)}
    found = []
    for position in chosen.positions.tolist():
        name = seen.ids[int(seen.view.cur.job[position])]
        job = jobs[name]
        score = round(float(chosen.scores[position]), 6)
        delay = seen.view.step - job.earliest
        found.append(Start(name, job.cores, job.duration, delay, score, place[position]))
    return tuple(found)


def _begun(job: JobRecord, step: int, now: float, decision_id: str, *, queue: str, advice: bool) -> JobRecord:
    sent = not queue
    return replace(
        job,
        stage=Stage.RUNNING if sent else Stage.STARTING,
        start=step,
        free_from=step + job.duration,
        decision_id=decision_id,
        advice=advice,
        # From here on it may have been sent, whatever becomes of this process.
        attempts=0 if sent else 1,
        uncertain=0 if sent else 1,
        attempted_at=None if sent else now,
        sent_to=queue,
    )


def class_of(cores: int) -> int:
    """Return the class of cores by which starts are counted: the power of two at or above it."""
    return 1 << (cores - 1).bit_length()


def _counted(totals: Totals, starts: tuple[Start, ...], violation: int, skipped: int, fallback: bool) -> Totals:
    delays = dict(totals.delays)
    for start in starts:
        key = f"{class_of(start.cores)}/{min(start.delay, LONGEST_DELAY)}"
        delays[key] = delays.get(key, 0) + 1
    return replace(
        totals,
        started=totals.started + len(starts),
        started_core_steps=totals.started_core_steps + sum(one.cores * one.duration for one in starts),
        violation_steps=totals.violation_steps + (violation > 0),
        violation_core_steps=totals.violation_core_steps + violation,
        skipped_steps=totals.skipped_steps + skipped,
        fallbacks=totals.fallbacks + fallback,
        delays=delays,
    )


def _words(
    cores: EffectiveCapacity,
    starts: tuple[Start, ...],
    chosen: PolicyChoice | None,
    paused: str,
    able: int,
    held: int,
    margin: int,
    advice: bool,
) -> tuple[Reason, str]:
    room = f"{cores.detail}, {held} taken" + (f", {margin} kept free" if margin else "")
    lead = "advice: " if advice else ""
    if cores.cores is None:
        return Reason.CAPACITY_MISSING, f"{lead}nothing starts: {cores.detail}"
    if paused:
        return Reason.PAUSED, f"{lead}nothing starts: {paused}; {room}"
    if starts:
        by = "" if chosen is None else f" by {chosen.policy}"
        taken = sum(one.cores for one in starts)
        return Reason.JOBS_STARTED, f"{lead}{len(starts)} of {able} jobs start with {taken} cores{by}; {room}"
    why = "no job could start" if not able else f"none of {able} jobs starts"
    return Reason.NO_JOB_STARTED, f"{lead}{why}; {room}"


def _best(seen: IndexedView | None, chosen: PolicyChoice | None) -> tuple[JobScore, ...]:
    if seen is None or chosen is None:
        return ()
    return tuple(
        JobScore(seen.ids[int(seen.view.cur.job[position])], round(float(chosen.scores[position]), 6))
        for position in ranked(chosen)[:SHOWN]
    )


def _row(
    history: History,
    step: int,
    cores: EffectiveCapacity,
    held: int,
    starts: tuple[Start, ...],
    violation: int,
    seen: IndexedView | None,
    asked: bool,
    fallback: bool,
) -> StepRow:
    forecast_of_it = history.next_step == step
    cur = None if seen is None else seen.view.cur
    return StepRow(
        step,
        cores.cores if cores.measured else None,
        held,
        held + sum(one.cores for one in starts),
        violation,
        history.next_low if forecast_of_it else None,
        history.next_high if forecast_of_it else None,
        0 if cur is None else cur.size,
        0.0 if cur is None or not cur.size else round(float(cur.cores.mean()), 6),
        0.0 if cur is None or not cur.size else round(float(cur.duration.mean()), 6),
        len(starts),
        asked,
        fallback,
    )


def total_of(revenue: int, delay: int, violation: int, violation_charge: float) -> float:
    """Return what starts earned, in core-steps: revenue less the charges for delay and violation."""
    return revenue - W1 * delay - violation_charge * violation


def planned_path(outlook: Outlook, margin: int) -> Floats:
    """Return the capacity that a plan counts on in the steps after this one, (STEPS - 1,), rounded as it is recorded.

    A plan's own margin for errors of the forecast, and the pool's.
    """
    return np.round((outlook.path(STEPS - 1, MARGIN) - margin).clip(0.0), 6)


def replay_step(record: Record, learned: LearnedRung | None) -> ReplayResult:
    """Return a recorded step decided again by the policy that decided it; learned: the model, None where none is here.

    Policies that were passed over are not asked again: that they were late cannot come out the same.
    """
    made = codec.decode(StepDecision, record.body)
    if made.policy == LEARNED and (learned is None or learned.digest != made.versions.get("model")):
        wanted = made.versions.get("model", "")[:12]
        return ReplayResult(made.decision_id, False, f"the model that decided, {wanted}, is not in use here")
    if hashlib.sha256(record.inputs).hexdigest()[:16] != made.state_hash:
        return ReplayResult(
            made.decision_id, False, "its inputs are not those of its state hash: the ledger was changed"
        )
    inputs = codec.decode_mapping(record.inputs)
    again: list[str] = []
    if made.policy:
        seen = seen_in(inputs["seen"])
        patient = DeferralSettings(rolling_within_ms=10_000, learned_within_ms=10_000)
        ladder = ladder_of(patient, made.policy, {} if learned is None else {LEARNED: learned}, {})
        chosen = ladder.decide(seen.view, np.array(inputs["path"], dtype=np.float64))
        again = [seen.ids[int(seen.view.cur.job[position])] for position in chosen.positions.tolist()]
    before, now = sorted(one.job_id for one in made.starts), sorted(again)
    words = f"it started {', '.join(before) or 'nothing'}; again {', '.join(now) or 'nothing'}"
    return ReplayResult(made.decision_id, before == now, "" if before == now else words)
