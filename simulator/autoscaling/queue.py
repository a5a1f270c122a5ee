"""The queue of one copy: a cursor over the jobs in order of arrival, and beside it the few that left this order once.

Jobs are named by their position in the order of submission; under strict first-come-first-served every interrupted job
stands before every job that has never started.
"""

from __future__ import annotations

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.layout import Copy, Record
from simulator.autoscaling.memory import (
    fixed_at,
    job_at,
    pending_at,
    released_at,
    ring_at,
    settings_of,
    side_at,
    stage_at,
    stage_left_at,
    trace_at,
    whole,
)


@compiled
def job_of(copy: Copy, position: int) -> Record:
    """Return the job at a submitted position."""
    return job_at(copy, whole(ring_at(copy, position).job) if copy.closed_loop else position)


@compiled
def arrived_at(copy: Copy, position: int) -> float:
    """Return when the job at a submitted position arrived."""
    return float(ring_at(copy, position).time if copy.closed_loop else job_at(copy, position).arrival_s)


@compiled
def _before(copy: Copy, position: int, since: float, entry: int) -> bool:
    """Whether a submitted position is served before an entry of `side`: by (arrival, id).

    With compat row 6 a job's place is that of when it began to wait, `since`, which is its arrival until it has run.
    """
    other = side_at(copy, entry)
    place = whole(other.position)
    if not copy.keyed:
        return bool(position < place)
    tail = settings_of(copy).interrupted_to_tail
    first = since if tail else arrived_at(copy, position)
    second = other.since if tail else arrived_at(copy, place)
    if first != second:
        return bool(first < second)
    return bool(job_of(copy, position).job_id < job_of(copy, place).job_id)


@compiled
def _move_side(copy: Copy, source: int, target: int) -> None:
    old, new = side_at(copy, source), side_at(copy, target)
    new.position, new.since, new.waited, new.remaining = old.position, old.since, old.waited, old.remaining
    new.unseen = old.unseen


@compiled
def set_aside(
    copy: Copy, lowest: int, position: int, since: float, waited: float, remaining: float, unseen: int
) -> None:
    """Put a job into `side` at its place in the order of service, not before entry `lowest`."""
    if copy.side_head > 0 and copy.side_end == copy.side_size:
        for entry in range(copy.side_head, copy.side_end):
            _move_side(copy, entry, entry - copy.side_head)
        copy.side_end -= copy.side_head
        lowest -= copy.side_head
        copy.side_head = 0
    lowest = max(lowest, copy.side_head)
    place = copy.side_end
    while place > lowest and _before(copy, position, since, place - 1):
        _move_side(copy, place - 1, place)
        place -= 1
    new = side_at(copy, place)
    new.position, new.since, new.waited, new.remaining, new.unseen = position, since, waited, remaining, unseen
    copy.side_end += 1


@compiled
def drop_started(copy: Copy) -> None:
    """Close the gaps in `side` that backfill left where it started a job."""
    kept = 0
    for entry in range(copy.side_head, copy.side_end):
        if side_at(copy, entry).position >= 0:
            if kept != entry:
                _move_side(copy, entry, kept)
            kept += 1
    copy.side_head, copy.side_end = 0, kept


@compiled
def side_is_next(copy: Copy, entry: int) -> bool:
    """Whether entry `entry` of `side` is served before the jobs that have never left the queue."""
    if entry >= copy.side_end:
        return False
    if copy.head == copy.submitted:
        return True
    if not copy.keyed:
        return bool(side_at(copy, entry).position < copy.head)
    return not _before(copy, copy.head, arrived_at(copy, copy.head), entry)


@compiled
def oldest_arrival(copy: Copy) -> float:
    """Return when the first waiting job arrived; the queue is not empty."""
    if side_is_next(copy, copy.side_head):
        first = side_at(copy, copy.side_head)
        if settings_of(copy).interrupted_to_tail:
            return float(first.since)
        return arrived_at(copy, whole(first.position))
    return arrived_at(copy, copy.head)


@compiled
def submit_fixed(copy: Copy) -> None:
    """Submit the jobs whose own arrival is now."""
    if copy.closed_loop:
        fixed = trace_at(copy, copy.trace).fixed
        while copy.next_fixed < fixed and job_at(copy, fixed_at(copy, copy.next_fixed).index).arrival_s == copy.now:
            _submit(copy, whole(fixed_at(copy, copy.next_fixed).index))
            copy.next_fixed += 1
        return
    now, next_fixed, queued = copy.now, copy.next_fixed, copy.queued_core_s
    while next_fixed < copy.jobs:
        job = job_at(copy, next_fixed)
        if job.arrival_s != now:
            break
        queued += job.submitted_core_s
        next_fixed += 1
    new = next_fixed - copy.next_fixed
    copy.queued_core_s, copy.next_fixed = queued, next_fixed
    copy.submitted += new
    copy.waiting += new


@compiled
def submit_released(copy: Copy) -> None:
    """Submit the jobs of a closed loop whose pause after their release ends now."""
    while copy.pending_head < copy.pending_end and pending_at(copy, copy.pending_head).time == copy.now:
        _submit(copy, whole(pending_at(copy, copy.pending_head).job))
        copy.pending_head += 1


@compiled
def _submit(copy: Copy, index: int) -> None:
    """Submit a job of a closed loop now; jobs of one instant queue by id."""
    job = job_at(copy, index)
    place = copy.submitted
    while place > copy.head:
        before = ring_at(copy, place - 1)
        if before.time != copy.now or job_at(copy, before.job).job_id < job.job_id:
            break
        after = ring_at(copy, place)
        after.time, after.job = before.time, before.job
        place -= 1
    new = ring_at(copy, place)
    new.time, new.job = copy.now, index
    copy.queued_core_s += max(job.width, 1) * job.service_s
    copy.submitted += 1
    copy.waiting += 1


@compiled
def release(copy: Copy, stage: int) -> None:
    """Count one finished job of a stage; with the last one, let the jobs it holds back arrive after their pause."""
    left = stage_left_at(copy, stage)
    left.index -= 1
    if left.index > 0:
        return
    ended = stage_at(copy, stage)
    for place in range(ended.released_first, ended.released_first + ended.released):
        job = whole(released_at(copy, place).index)
        _expect(copy, copy.now + job_at(copy, job).pause_s, job)


@compiled
def _expect(copy: Copy, time: float, job: int) -> None:
    """Put a released job in its place among those to come: by (time, job)."""
    place = copy.pending_end
    while place > copy.pending_head:
        before = pending_at(copy, place - 1)
        if before.time < time or (before.time == time and before.job < job):
            break
        after = pending_at(copy, place)
        after.time, after.job = before.time, before.job
        place -= 1
    new = pending_at(copy, place)
    new.time, new.job = time, job
    copy.pending_end += 1
