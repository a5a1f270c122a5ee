"""Runs jobs in their intervals on APScheduler, with a monotonic watchdog for the day the clock is set."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

log = structlog.get_logger(__name__)

TICK = "tick"
AFTER_BIN_S = 0.25
"""A turn comes this long after the minute's grace, so that rounding never makes it come before."""
_CHORE_THREADS = 2


@dataclass(slots=True)
class Job:
    """Something called every `interval_s` of wall time, so that one call falls on wall time `first_at`.

    deadline_s: a call that lasts longer is logged and counted. turns, failures: calls that ended, and that raised.
    rescued: calls that the watchdog had to schedule. started: monotonic time of the last call.
    """

    name: str
    call: Callable[[], None]
    interval_s: float
    first_at: float
    deadline_s: float
    turns: int = 0
    failures: int = 0
    rescued: int = 0
    overruns: int = 0
    started: float = 0.0
    running: bool = False
    overrun_noted: bool = False


class Schedule:
    """Calls jobs in their intervals, each in one thread at a time and the tick in a thread of its own.

    A call that overruns makes the next one late, never double, and missed ones are not caught up. APScheduler waits for
    a wall-clock time, so a clock set back an hour would stall it for that hour; the watchdog counts on the monotonic
    clock and schedules a call itself when one and a half intervals have passed without any.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(_CHORE_THREADS), TICK: ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        self._watchdog = threading.Thread(target=self._watch, name="schedule watchdog", daemon=True)

    def add(
        self,
        name: str,
        call: Callable[[], None],
        interval_s: float,
        first_at: float | None = None,
        deadline_s: float | None = None,
    ) -> Job:
        """Take in a job before `start`; without `first_at` it is called at once, without `deadline_s` it has 80 %."""
        at = time.time() if first_at is None else first_at
        job = Job(name, call, interval_s, at, 0.8 * interval_s if deadline_s is None else deadline_s)
        self._jobs[name] = job
        return job

    def start(self) -> None:
        """Begin; each job's first call comes at its next aligned time."""
        now = time.time()
        for job in self._jobs.values():
            job.started = time.monotonic() + max(0.0, job.first_at - now)
            self._scheduler.add_job(
                self._run,
                self._trigger(job, job.first_at),
                args=[job],
                id=job.name,
                executor=TICK if job.name == TICK else "default",
                misfire_grace_time=max(1, round(2 * job.interval_s)),
                # A first time that has passed meanwhile is now, not an interval later.
                next_run_time=_utc(max(now, job.first_at)),
            )
        self._scheduler.start()
        self._watchdog.start()

    def stop(self, within_s: float | None = None) -> bool:
        """End: no call begins any more, and those under way get `within_s` seconds (None: any) to return.

        Return whether all did.
        """
        first = not self._stopping.is_set()
        self._stopping.set()
        if first and self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        with self._idle:
            return self._idle.wait_for(lambda: not any(job.running for job in self._jobs.values()), within_s)

    def _run(self, job: Job) -> None:
        with self._idle:
            if self._stopping.is_set():
                return
            job.started, job.overrun_noted, job.running = time.monotonic(), False, True
        try:
            job.call()
            job.turns += 1
        except Exception:
            job.failures += 1
            log.exception("job_failed", job=job.name)
        finally:
            self._note_overrun(job)
            with self._idle:
                job.running = False
                self._idle.notify_all()

    def _watch(self) -> None:
        pause_s = min((job.interval_s for job in self._jobs.values()), default=1.0) / 4
        while not self._stopping.wait(pause_s):
            for job in self._jobs.values():
                if job.running:
                    self._note_overrun(job)
                elif time.monotonic() - job.started >= 1.5 * job.interval_s:
                    self._rescue(job)

    def _note_overrun(self, job: Job) -> None:
        lasted = time.monotonic() - job.started
        if lasted > job.deadline_s and not job.overrun_noted:
            job.overrun_noted = True
            job.overruns += 1
            log.warning("job_overran", job=job.name, deadline_s=job.deadline_s, lasted_s=round(lasted, 3))

    def _rescue(self, job: Job) -> None:
        if self._scheduler.get_job(job.name) is None:
            return
        job.rescued += 1
        job.started = time.monotonic()
        detail = "no call for one and a half intervals: the clock was probably set"
        log.warning("job_rescheduled", job=job.name, detail=detail)
        # One call now, the next ones on the old beat of the clock as it now reads.
        beats = (time.time() - job.first_at) // job.interval_s
        self._scheduler.reschedule_job(job.name, trigger=self._trigger(job, job.first_at + beats * job.interval_s))
        self._scheduler.modify_job(job.name, next_run_time=_utc(time.time()))

    def _trigger(self, job: Job, start_at: float) -> IntervalTrigger:
        return IntervalTrigger(seconds=job.interval_s, start_date=_utc(start_at), timezone=UTC)


def seconds_since(job: Job) -> float:
    """Return how long ago a job's last call began, on the monotonic clock; negative before its first is due."""
    return time.monotonic() - job.started


def next_turn_at(now: float, interval_s: float, grace_s: float) -> float:
    """Return the first time after `now` that lies `grace_s` and a moment after a multiple of `interval_s`."""
    offset = grace_s + AFTER_BIN_S
    return (math.floor((now - offset) / interval_s) + 1.0) * interval_s + offset


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=at)
