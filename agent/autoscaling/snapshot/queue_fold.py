"""The job queue over one minute: its length, what was submitted, and where one live episode gives way to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import LoopState
from collectors.intake import Claims
from domain.samples import QueueMetric
from domain.snapshot import QueueSnapshot

EPISODE_GAP_S = 600.0
"""A new episode begins when nothing has waited or run for so long at the minimum fleet, or after a gap as long."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Jobs submitted: the counter's last reading (None: never read), since the episode began, in the last minute."""

    seen: float | None
    in_episode: float
    recent: float
    late: bool


def growth(readings: Sequence[float], before: float | None) -> float:
    """Return by how much a counter grew over its readings, from `before` (None: its first reading is where it starts).

    A reading below the one before means that the counter restarted at zero (autoscaler specification §14).
    """
    grown = 0.0
    for reading in readings:
        if before is not None:
            grown += reading - before if reading >= before else reading
        before = reading
    return grown


def submitted_from_counter(
    readings: Sequence[tuple[float, float]], start: float, state: LoopState, in_episode: float, claims: Claims
) -> Submitted:
    """Count from the job source's own counter: (time, value) pairs up to the end of the minute that began at `start`.

    A counter never read before counts in full: the job source began with us, or its past is not to be told apart. Where
    that, or what was submitted since a former start of ours, is more than the source may claim, it is where counting
    begins: nothing of it counts.
    """
    since = start if state.last_bin_end is None else state.last_bin_end
    new = [value for at, value in readings if at > since]
    inside = [value for at, value in readings if at > start]
    earlier = [value for at, value in readings if at <= start]
    seen = state.submitted_seen
    # What came before in this process was held to the reading before it when it arrived.
    if (
        new
        and len(new) == len(readings)
        and new[0] - (seen or 0.0) > claims.growth(0.0 if seen is None else readings[-1][0] - since)
    ):
        seen = new[0]
    before_minute = earlier[-1] if earlier else seen
    if seen is None:
        in_episode += readings[-1][1]
    else:
        in_episode += growth(new, seen)
    return Submitted(readings[-1][1], in_episode, growth(inside, before_minute), late=not inside)


def submitted_from_depth(depth_before: float | None, depth: float, state: LoopState, in_episode: float) -> Submitted:
    """Count from the queue's depth alone: a lower bound, since what came and went in the minute is not seen."""
    recent = 0.0 if depth_before is None else max(0.0, depth - depth_before)
    return Submitted(state.submitted_seen, max(in_episode + recent, depth), recent, late=True)


def queue_snapshot(
    store: SeriesStore, fleet: str, start: float, end: float, state: LoopState, in_episode: float
) -> tuple[QueueSnapshot | None, Submitted]:
    """Return the queue at `end` and what was submitted; no queue without a reading of both waiting and running.

    `in_episode` is what the current episode had before this minute.
    """

    def series(metric: QueueMetric) -> list[tuple[float, float]]:
        return store.readings(store.queue_row(fleet, metric), end)

    def last(metric: QueueMetric, after: float, until: float) -> float | None:
        inside = [value for at, value in series(metric) if after < at <= until]
        return inside[-1] if inside else None

    waiting = last(QueueMetric.WAITING, start, end)
    running = last(QueueMetric.RUNNING, start, end)
    if waiting is None or running is None:
        return None, Submitted(state.submitted_seen, in_episode, 0.0, late=True)
    counter = series(QueueMetric.SUBMITTED_TOTAL)
    if counter:
        submitted = submitted_from_counter(counter, start, state, in_episode, store.claims(fleet))
    else:
        since = start - (end - start)
        waited, ran = last(QueueMetric.WAITING, since, start), last(QueueMetric.RUNNING, since, start)
        before = None if waited is None or ran is None else waited + ran
        submitted = submitted_from_depth(before, waiting + running, state, in_episode)
    snapshot = QueueSnapshot(
        waiting=round(waiting),
        running=round(running),
        submitted=round(submitted.in_episode),
        submitted_recent=round(submitted.recent),
        oldest_wait_s=last(QueueMetric.OLDEST_WAIT_SECONDS, start, end),
        job_core_s=last(QueueMetric.JOB_CORE_SECONDS, float("-inf"), end),
        submitted_is_late=submitted.late,
    )
    return snapshot, submitted


def begins_episode(
    state: LoopState, start: float, end: float, busy: bool, at_minimum: bool, gap_s: float = EPISODE_GAP_S
) -> bool:
    """Return whether (start, end] belongs to a new episode; `busy` says whether something waited or ran in it."""
    if state.last_bin_end is not None and end - state.last_bin_end > gap_s:
        return True
    if state.last_busy_at is None or not at_minimum:
        return False
    return (start if busy else end) - state.last_busy_at >= gap_s
