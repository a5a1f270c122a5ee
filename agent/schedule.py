"""Runs the tick once a minute on APScheduler, with a monotonic watchdog for the day somebody sets the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

log = structlog.get_logger(__name__)

JOB = "tick"


class TickSchedule:
    """Calls `turn` every `interval_s` of wall time, aligned so that one call falls on wall time `first_at`.

    One call at a time: a turn that overruns makes the next one late, never double, and missed ones are not caught up.
    APScheduler waits for a wall-clock time, so a clock set back an hour would stall it for that hour; the watchdog
    counts on the monotonic clock and schedules a turn itself when one and a half intervals have passed without any.
    """

    def __init__(self, turn: Callable[[], None], interval_s: float, first_at: float | None = None) -> None:
        self._turn = turn
        self._interval_s = interval_s
        self._first_at = first_at if first_at is not None else time.time()
        self._last_started = time.monotonic()
        self._running = False
        self._stopping = Event()
        self.turns = 0
        self.failures = 0
        self.rescued = 0
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": max(1, round(2 * interval_s)),
            },
        )
        self._watchdog = Thread(target=self._watch, name="tick watchdog", daemon=True)

    def start(self) -> None:
        """Begin; the first turn comes at the next aligned time."""
        trigger = IntervalTrigger(seconds=self._interval_s, start_date=_utc(self._first_at), timezone=UTC)
        self._scheduler.add_job(self._run, trigger, id=JOB)
        self._last_started = time.monotonic() + max(0.0, self._first_at - time.time())
        self._scheduler.start()
        self._watchdog.start()

    def stop(self, wait: bool = True) -> None:
        """End; with `wait`, after the turn that is under way."""
        self._stopping.set()
        self._scheduler.shutdown(wait=wait)
        self._watchdog.join(timeout=self._interval_s)

    def seconds_since_turn(self) -> float:
        """Return how long ago the last turn began, on the monotonic clock: the fact behind liveness."""
        return time.monotonic() - self._last_started

    def _run(self) -> None:
        self._last_started = time.monotonic()
        self._running = True
        try:
            self._turn()
            self.turns += 1
        except Exception:
            self.failures += 1
            log.exception("tick_failed")
        finally:
            self._running = False

    def _watch(self) -> None:
        while not self._stopping.wait(self._interval_s / 4):
            job = self._scheduler.get_job(JOB)
            if job is None or self._running or self.seconds_since_turn() < 1.5 * self._interval_s:
                continue
            self.rescued += 1
            self._last_started = time.monotonic()
            log.warning("tick_rescheduled", detail="no turn for one and a half intervals: the clock was probably set")
            # One turn now, the next ones on the old beat of the clock as it now reads.
            beats = (time.time() - self._first_at) // self._interval_s
            aligned = _utc(self._first_at + beats * self._interval_s)
            trigger = IntervalTrigger(seconds=self._interval_s, start_date=aligned, timezone=UTC)
            self._scheduler.reschedule_job(JOB, trigger=trigger)
            self._scheduler.modify_job(JOB, next_run_time=_utc(time.time()))


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=at)
