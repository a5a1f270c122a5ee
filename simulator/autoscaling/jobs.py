"""The jobs of one copy: its queue, and how they start, end and are interrupted, one by one or a run of equal ones.

The queue is a cursor over the jobs in order of arrival, and beside it the few that left this order once. Jobs are named
by their position in the order of submission; under strict first-come-first-served every interrupted job precedes every
job that has never started.
"""

from __future__ import annotations

import math

from domain.workload import WHOLE_VM
from simulator.autoscaling.configuration import CHAIN_LOSS_S, CpuSampling, RemovalMode
from simulator.autoscaling.fleet import count_busy, depart
from simulator.autoscaling.memory import (
    DRAINING,
    GONE,
    Copy,
    Record,
    fixed_at,
    gathered_at,
    job_at,
    kind_at,
    meter_at,
    pending_at,
    released_at,
    ring_at,
    running_at,
    settings_of,
    side_at,
    stage_at,
    stage_left_at,
    starting_at,
    trace_at,
    vm_at,
    wait_at,
    whole,
)
from simulator.compilation import borrowing, inlined


@borrowing
def job_of(copy: Copy, position: int) -> Record:
    """Return the job at a submitted position."""
    return job_at(copy, whole(ring_at(copy, position).job) if copy.closed_loop else position)


@borrowing
def arrived_at(copy: Copy, position: int) -> float:
    """Return when the job at a submitted position arrived."""
    return float(ring_at(copy, position).time if copy.closed_loop else job_at(copy, position).arrival_s)


@borrowing
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


@borrowing
def _move_side(copy: Copy, source: int, target: int) -> None:
    old, new = side_at(copy, source), side_at(copy, target)
    new.position, new.since, new.waited, new.remaining = old.position, old.since, old.waited, old.remaining
    new.unseen = old.unseen


@borrowing
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


@borrowing
def drop_started(copy: Copy) -> None:
    """Close the gaps in `side` that backfill left where it started a job."""
    kept = 0
    for entry in range(copy.side_head, copy.side_end):
        if side_at(copy, entry).position >= 0:
            if kept != entry:
                _move_side(copy, entry, kept)
            kept += 1
    copy.side_head, copy.side_end = 0, kept


@borrowing
def side_is_next(copy: Copy, entry: int) -> bool:
    """Whether entry `entry` of `side` is served before the jobs that have never left the queue."""
    if entry >= copy.side_end:
        return False
    if copy.head == copy.submitted:
        return True
    if not copy.keyed:
        return bool(side_at(copy, entry).position < copy.head)
    return not _before(copy, copy.head, arrived_at(copy, copy.head), entry)


@borrowing
def oldest_arrival(copy: Copy) -> float:
    """Return when the first waiting job arrived; the queue is not empty."""
    if side_is_next(copy, copy.side_head):
        first = side_at(copy, copy.side_head)
        if settings_of(copy).interrupted_to_tail:
            return float(first.since)
        return arrived_at(copy, whole(first.position))
    return arrived_at(copy, copy.head)


@borrowing
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


@borrowing
def submit_released(copy: Copy) -> None:
    """Submit the jobs of a closed loop whose pause after their release ends now."""
    while copy.pending_head < copy.pending_end and pending_at(copy, copy.pending_head).time == copy.now:
        _submit(copy, whole(pending_at(copy, copy.pending_head).job))
        copy.pending_head += 1


@borrowing
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


@borrowing
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


@borrowing
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


_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_CHECKPOINT = list(RemovalMode).index(RemovalMode.CHECKPOINT)


@inlined
def _rate(copy: Copy, slot: int, width: int) -> float:
    """Return the seconds of service done in a second on a VM."""
    vm = vm_at(copy, slot)
    speed = kind_at(copy, vm.kind).speed
    if width != WHOLE_VM:
        return float(speed)
    serial = trace_at(copy, copy.trace).serial_fraction
    return float(speed / (serial + (1.0 - serial) / vm.cores))


@borrowing
def _move_running(copy: Copy, source: int, target: int) -> None:
    old, new = running_at(copy, source), running_at(copy, target)
    new.end, new.start, new.waited, new.remaining = old.end, old.start, old.waited, old.remaining
    new.position, new.sequence, new.count, new.slot = old.position, old.sequence, old.count, old.slot


@inlined
def _begin(copy: Copy, slot: int, position: int, count: int, waited: float, remaining: float, width: int) -> None:
    """Note that jobs run from now on, in the order in which running jobs will end."""
    vm = vm_at(copy, slot)
    end = copy.now + remaining / _rate(copy, slot, width)
    place = copy.running
    while place > 0 and running_at(copy, place - 1).end > end:
        _move_running(copy, place - 1, place)
        place -= 1
    entry = running_at(copy, place)
    entry.end, entry.start, entry.waited, entry.remaining = end, copy.now, waited, remaining
    entry.position, entry.sequence, entry.count, entry.slot = position, copy.sequence, count, slot
    copy.running += 1
    copy.sequence += 1
    copy.executing += count
    vm.jobs += count


@borrowing
def _start_late(
    copy: Copy, slot: int, position: int, since: float, waited: float, remaining: float, unseen: int
) -> bool:
    """Let a job that was given its cores run after the latency of a start; return False where there is none."""
    vm, settings = vm_at(copy, slot), settings_of(copy)
    latency_s = settings.start_latency_s
    if settings.chain_loss and meter_at(copy, slot).freed_at == copy.now:
        latency_s += CHAIN_LOSS_S
    if latency_s <= 0.0:
        return False
    width = whole(job_of(copy, position).width)
    cores = vm.cores if width == WHOLE_VM else width
    time = copy.now + latency_s
    place = copy.starting
    while place > 0 and starting_at(copy, place - 1).time > time:
        _move_starting(copy, place - 1, place)
        place -= 1
    entry = starting_at(copy, place)
    entry.time, entry.since, entry.waited, entry.remaining = time, since, waited, remaining
    entry.position, entry.sequence, entry.slot, entry.unseen = position, copy.sequence, slot, unseen
    copy.starting += 1
    copy.sequence += 1
    copy.uncounted -= 1
    _find_next_start(copy)
    vm.free -= cores
    vm.starting += cores
    copy.free_cores -= cores
    return True


@borrowing
def _move_starting(copy: Copy, source: int, target: int) -> None:
    old, new = starting_at(copy, source), starting_at(copy, target)
    new.time, new.since, new.waited, new.remaining = old.time, old.since, old.waited, old.remaining
    new.position, new.sequence, new.slot, new.unseen = old.position, old.sequence, old.slot, old.unseen


@borrowing
def _find_next_start(copy: Copy) -> None:
    """Note when the next job runs that has its cores."""
    copy.next_start = starting_at(copy, 0).time if copy.starting > 0 else math.inf
    copy.next_rare = min(copy.next_reclaim, copy.next_start)


@borrowing
def run_next(copy: Copy) -> None:
    """Let the job run that is the next to do so."""
    entry = starting_at(copy, 0)
    slot, position = whole(entry.slot), whole(entry.position)
    vm = vm_at(copy, slot)
    if settings_of(copy).cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    copy.starting_head = (copy.starting_head + 1) & copy.running_mask
    copy.starting -= 1
    _find_next_start(copy)
    copy.uncounted += 1 - whole(entry.unseen)
    job = job_of(copy, position)
    width = whole(job.width)
    cores = vm.cores if width == WHOLE_VM else width
    vm.starting -= cores
    vm.used_ram_gb += job.ram_gb
    if vm.state != DRAINING:
        copy.busy_cores += cores
    _begin(copy, slot, position, 1, entry.waited + (copy.now - entry.since), entry.remaining, width)


@inlined
def start_head(copy: Copy, slot: int, most: int) -> None:
    """Start the first job that never left the queue on a VM, with up to `most` - 1 equal one-core jobs behind it."""
    vm, settings = vm_at(copy, slot), settings_of(copy)
    if settings.cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    head = copy.head
    job = job_of(copy, head)
    width, service = whole(job.width), job.service_s
    if settings.starts_late:
        if _start_late(copy, slot, head, arrived_at(copy, head), 0.0, service, whole(0)):
            copy.head = head + 1
            copy.waiting -= 1
            copy.queued_core_s = copy.queued_core_s - max(width, 1) * service if copy.waiting > 0 else 0.0
            return
        most = 1
    cores = vm.cores if width == WHOLE_VM else width
    most = min(most, copy.submitted - head) if width == 1 else 1
    work = max(width, 1) * service
    waiting, queued, used = copy.waiting, copy.queued_core_s, vm.used_ram_gb
    count = 0
    while True:
        used += job.ram_gb
        waiting -= 1
        queued = queued - work if waiting > 0 else 0.0
        count += 1
        if count >= most:
            break
        job = job_of(copy, head + count)
        if job.width != 1 or job.service_s != service:
            break
    copy.waiting, copy.queued_core_s, vm.used_ram_gb = waiting, queued, used
    copy.head = head + count
    vm.free -= cores * count
    copy.free_cores -= cores * count
    copy.busy_cores += cores * count
    _begin(copy, slot, head, count, -1.0, service, width)


@borrowing
def start_aside(copy: Copy, slot: int, place: int) -> None:
    """Start the job of entry `place` of `side` on a VM; the entry stays for the caller to drop."""
    vm, settings, entry = vm_at(copy, slot), settings_of(copy), side_at(copy, place)
    if settings.cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    position, unseen = whole(entry.position), whole(entry.unseen)
    job = job_of(copy, position)
    width = whole(job.width)
    cores = vm.cores if width == WHOLE_VM else width
    copy.waiting -= 1
    copy.queued_core_s = copy.queued_core_s - max(width, 1) * entry.remaining if copy.waiting > 0 else 0.0
    if settings.starts_late and _start_late(copy, slot, position, entry.since, entry.waited, entry.remaining, unseen):
        return
    copy.uncounted -= unseen
    vm.free -= cores
    vm.used_ram_gb += job.ram_gb
    copy.free_cores -= cores
    copy.busy_cores += cores
    waited = entry.waited + (copy.now - entry.since)
    _begin(copy, slot, position, 1, waited, entry.remaining, width)


@inlined
def finish_next(copy: Copy) -> None:
    """End the jobs that are the next to end."""
    settings = settings_of(copy)
    entry = running_at(copy, 0)
    slot, count, start, position = whole(entry.slot), whole(entry.count), entry.start, whole(entry.position)
    returned, waited = entry.waited, 0.0
    vm = vm_at(copy, slot)
    copy.running_head = (copy.running_head + 1) & (copy.running_mask)
    copy.running -= 1
    if settings.cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    now, cores = copy.now, 1
    executed, done_core_s, used, left = copy.executed_core_s, copy.finished_core_s, vm.used_ram_gb, vm.jobs
    for index in range(count):
        job = job_of(copy, position + index)
        cores = vm.cores if job.width == WHOLE_VM else job.width
        left -= 1
        used = settings.base_ram_gb if left == 0 else used - job.ram_gb
        executed += cores * (now - start)
        done_core_s += max(job.width, 1) * job.service_s
        waited = returned if returned >= 0.0 else start - arrived_at(copy, position + index)
        wait_at(copy, copy.finished + index).seconds = waited
    copy.executed_core_s, copy.finished_core_s, vm.used_ram_gb, vm.jobs = executed, done_core_s, used, left
    copy.finished += count
    copy.executing -= count
    vm.free += cores * count
    if settings.chain_loss:
        meter_at(copy, slot).freed_at = now
    vacant = vm.free == vm.cores
    if vacant:
        vm.idle_since = now
    if vm.state == DRAINING:
        if vacant:
            depart(copy, slot)
    else:
        copy.free_cores += cores * count
        copy.busy_cores -= cores * count
    if copy.closed_loop:
        for index in range(count):
            release(copy, whole(job_of(copy, position + index).stage))


@borrowing
def gather(copy: Copy, slot: int) -> int:
    """List in `gathered` the places of a VM's jobs among the running ones, in order of start; return how many."""
    found = 0
    for place in range(copy.running):
        entry = running_at(copy, place)
        if entry.slot != slot:
            continue
        after = found
        while after > 0 and running_at(copy, gathered_at(copy, after - 1).index).sequence > entry.sequence:
            gathered_at(copy, after).index = gathered_at(copy, after - 1).index
            after -= 1
        gathered_at(copy, after).index = place
        found += 1
    return found


@borrowing
def work_lost(copy: Copy, slot: int) -> float:
    """Return the core-seconds that the jobs of a VM would lose if it went now."""
    lost, now = 0.0, copy.now
    for index in range(gather(copy, slot)):
        entry = running_at(copy, gathered_at(copy, index).index)
        width = job_of(copy, whole(entry.position)).width
        cores = vm_at(copy, slot).cores if width == WHOLE_VM else width
        for _ in range(entry.count):
            lost += cores * (now - entry.start)
    return lost


@borrowing
def evict(copy: Copy, slot: int) -> None:
    """Send the jobs of a withdrawn VM back to the queue, with their progress lost or kept, and the VM away (§2.4)."""
    vm = vm_at(copy, slot)
    if vm.state == GONE:
        return
    settings, now = settings_of(copy), copy.now
    keep, unseen = settings.removal_mode == _CHECKPOINT, whole(settings.interrupted_to_tail)
    for index in range(gather(copy, slot)):
        entry = running_at(copy, gathered_at(copy, index).index)
        elapsed = now - entry.start
        for offset in range(entry.count):
            position = whole(entry.position) + offset
            width = whole(job_of(copy, position).width)
            cores = vm.cores if width == WHOLE_VM else width
            vm.free += cores
            vm.jobs -= 1
            copy.executing -= 1
            copy.interruptions += 1
            copy.executed_core_s += cores * elapsed
            remaining = entry.remaining
            if keep:
                remaining = max(remaining - elapsed * _rate(copy, slot, width), 0.0)
            else:
                copy.lost_core_s += cores * elapsed
            waited = entry.waited if entry.waited >= 0.0 else entry.start - arrived_at(copy, position)
            set_aside(copy, copy.side_head, position, now, waited, remaining, unseen)
            copy.queued_core_s += max(width, 1) * remaining
            copy.waiting += 1
            copy.uncounted += unseen
        entry.slot = -1
    _forget_interrupted(copy)
    if vm.starting > 0:
        _call_back(copy, slot)
    depart(copy, slot)


@borrowing
def _call_back(copy: Copy, slot: int) -> None:
    """Send the jobs that have cores of a VM and do not run yet back to the queue, in the order they got them."""
    while True:
        first = -1
        for place in range(copy.starting):
            entry = starting_at(copy, place)
            if entry.slot == slot and (first < 0 or entry.sequence < starting_at(copy, first).sequence):
                first = place
        if first < 0:
            break
        entry = starting_at(copy, first)
        position = whole(entry.position)
        copy.interruptions += 1
        copy.queued_core_s += max(whole(job_of(copy, position).width), 1) * entry.remaining
        set_aside(copy, copy.side_head, position, entry.since, entry.waited, entry.remaining, whole(entry.unseen))
        copy.waiting += 1
        copy.uncounted += 1
        copy.starting -= 1
        for place in range(first, copy.starting):
            _move_starting(copy, place + 1, place)
    _find_next_start(copy)


@borrowing
def _forget_interrupted(copy: Copy) -> None:
    """Close the gaps that interrupted jobs left among the running ones."""
    kept = 0
    for place in range(copy.running):
        if running_at(copy, place).slot >= 0:
            if kept != place:
                _move_running(copy, place, kept)
            kept += 1
    copy.running = kept
