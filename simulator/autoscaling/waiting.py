"""The queue of one copy: a cursor over the jobs in order of arrival, and beside it the few that left this order once.

Jobs are named by their position in the order of submission; under strict first-come-first-served every interrupted job
stands before every job that has never started.
"""

from __future__ import annotations

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.layout import Worlds


@compiled
def job_at(w: Worlds, b: int, position: int) -> int:
    """Return the row in `jobs` of the job at a submitted position."""
    copy = w.copies[b]
    if copy.closed_loop:
        return int(copy.first + w.ring[b, position].job)
    return int(copy.first + position)


@compiled
def arrived_at(w: Worlds, b: int, position: int) -> float:
    """Return when the job at a submitted position arrived."""
    copy = w.copies[b]
    if copy.closed_loop:
        return float(w.ring[b, position].time)
    return float(w.jobs[copy.first + position].arrival_s)


@compiled
def _before(w: Worlds, b: int, one: int, other: int) -> bool:
    """Whether a submitted position is served before another: by (arrival, id)."""
    copy = w.copies[b]
    if not copy.closed_loop:
        return one < other
    first, second = w.ring[b, one], w.ring[b, other]
    if first.time != second.time:
        return bool(first.time < second.time)
    return bool(w.jobs[copy.first + first.job].job_id < w.jobs[copy.first + second.job].job_id)


@compiled
def set_aside(
    w: Worlds, b: int, lowest: int, position: int, since: float, waited: float, remaining: float
) -> None:
    """Put a job into `side` at its place in the order of service, not before entry `lowest`."""
    copy = w.copies[b]
    side = w.side[b]
    if copy.side_head > 0 and copy.side_end == side.shape[0]:
        for entry in range(copy.side_head, copy.side_end):
            side[entry - copy.side_head] = side[entry]
        copy.side_end -= copy.side_head
        lowest -= copy.side_head
        copy.side_head = 0
    place = copy.side_end
    while place > max(lowest, copy.side_head) and _before(w, b, position, side[place - 1].position):
        side[place] = side[place - 1]
        place -= 1
    entry = side[place]
    entry.position, entry.since, entry.waited, entry.remaining = position, since, waited, remaining
    copy.side_end += 1


@compiled
def side_is_next(w: Worlds, b: int, entry: int) -> bool:
    """Whether entry `entry` of `side` is served before the jobs that have never left the queue."""
    copy = w.copies[b]
    if entry >= copy.side_end:
        return False
    return copy.head == copy.submitted or _before(w, b, w.side[b, entry].position, copy.head)


@compiled
def oldest_arrival(w: Worlds, b: int) -> float:
    """Return when the first waiting job arrived; the queue is not empty."""
    copy = w.copies[b]
    if side_is_next(w, b, copy.side_head):
        return arrived_at(w, b, w.side[b, copy.side_head].position)
    return arrived_at(w, b, copy.head)


@compiled
def submit_fixed(w: Worlds, b: int) -> None:
    """Submit the jobs whose own arrival is now."""
    copy = w.copies[b]
    now = copy.now
    if copy.closed_loop:
        trace = w.traces[copy.trace]
        while copy.next_fixed < trace.fixed:
            job = w.fixed_jobs[trace.fixed_first + copy.next_fixed]
            if w.jobs[copy.first + job].arrival_s != now:
                return
            submit_released(w, b, job)
            copy.next_fixed += 1
        return
    first, next_fixed, queued = copy.first, copy.next_fixed, copy.queued_core_s
    while next_fixed < copy.jobs and w.jobs[first + next_fixed].arrival_s == now:
        queued += w.jobs[first + next_fixed].submitted_core_s
        next_fixed += 1
    new = next_fixed - copy.next_fixed
    copy.queued_core_s, copy.next_fixed = queued, next_fixed
    copy.submitted += new
    copy.waiting += new


@compiled
def submit_released(w: Worlds, b: int, job: int) -> None:
    """Submit a job of a closed loop now; jobs of one instant queue by id."""
    copy = w.copies[b]
    row = w.jobs[copy.first + job]
    ring = w.ring[b]
    place = copy.submitted
    while (
        place > copy.head
        and ring[place - 1].time == copy.now
        and w.jobs[copy.first + ring[place - 1].job].job_id > row.job_id
    ):
        ring[place] = ring[place - 1]
        place -= 1
    ring[place].time = copy.now
    ring[place].job = job
    copy.queued_core_s += max(row.width, 1) * row.service_s
    copy.submitted += 1
    copy.waiting += 1


@compiled
def release(w: Worlds, b: int, stage: int) -> None:
    """Count one finished job of a stage; with the last one, let the stages it holds back arrive after their pause."""
    copy = w.copies[b]
    w.stage_left[b, stage] -= 1
    if w.stage_left[b, stage] > 0:
        return
    ended = w.stages[w.traces[copy.trace].stage_first + stage]
    pending = w.pending[b]
    for index in range(ended.released_first, ended.released_first + ended.released):
        job = w.released_jobs[index]
        time = copy.now + w.jobs[copy.first + job].pause_s
        place = copy.pending_end
        while place > copy.pending_head and (
            pending[place - 1].time > time or (pending[place - 1].time == time and pending[place - 1].job > job)
        ):
            pending[place] = pending[place - 1]
            place -= 1
        pending[place].time = time
        pending[place].job = job
        copy.pending_end += 1
