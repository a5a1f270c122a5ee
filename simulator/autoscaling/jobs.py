"""Starting, ending and interrupting jobs in one copy, one by one or a run of equal ones at a time."""

from __future__ import annotations

from domain.workload import WHOLE_VM
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.fleet import count_busy, depart
from simulator.autoscaling.layout import DRAINING, GONE, Copy
from simulator.autoscaling.memory import (
    gathered_at,
    kind_at,
    running_at,
    settings_of,
    side_at,
    trace_at,
    vm_at,
    wait_at,
    whole,
)
from simulator.autoscaling.waiting import arrived_at, job_of, release, set_aside
from simulator.reference.configuration import CpuSampling, RemovalMode

_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_CHECKPOINT = list(RemovalMode).index(RemovalMode.CHECKPOINT)


@compiled
def _rate(copy: Copy, slot: int, width: int) -> float:
    """Return the seconds of service done in a second on a VM."""
    vm = vm_at(copy, slot)
    speed = kind_at(copy, vm.kind).speed
    if width != WHOLE_VM:
        return float(speed)
    serial = trace_at(copy, copy.trace).serial_fraction
    return float(speed / (serial + (1.0 - serial) / vm.cores))


@compiled
def _move_running(copy: Copy, source: int, target: int) -> None:
    old, new = running_at(copy, source), running_at(copy, target)
    new.end, new.start, new.waited, new.remaining = old.end, old.start, old.waited, old.remaining
    new.position, new.sequence, new.count, new.slot = old.position, old.sequence, old.count, old.slot


@compiled
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


@compiled
def start_head(copy: Copy, slot: int, most: int) -> None:
    """Start the first job that never left the queue on a VM, with up to `most` - 1 equal one-core jobs behind it."""
    vm, settings = vm_at(copy, slot), settings_of(copy)
    if settings.cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    head = copy.head
    job = job_of(copy, head)
    width, service = whole(job.width), job.service_s
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


@compiled
def start_aside(copy: Copy, slot: int, place: int) -> None:
    """Start the job of entry `place` of `side` on a VM; the entry stays for the caller to drop."""
    vm, settings, entry = vm_at(copy, slot), settings_of(copy), side_at(copy, place)
    if settings.cpu_sampling == _AVERAGE:
        count_busy(copy, slot)
    job = job_of(copy, entry.position)
    width = whole(job.width)
    cores = vm.cores if width == WHOLE_VM else width
    vm.free -= cores
    vm.used_ram_gb += job.ram_gb
    copy.free_cores -= cores
    copy.busy_cores += cores
    copy.waiting -= 1
    copy.queued_core_s = copy.queued_core_s - max(width, 1) * entry.remaining if copy.waiting > 0 else 0.0
    waited = entry.waited + (copy.now - entry.since)
    _begin(copy, slot, entry.position, 1, waited, entry.remaining, width)


@compiled
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
    if left == 0:
        vm.idle_since = now
    if vm.state == DRAINING:
        if left == 0:
            depart(copy, slot)
    else:
        copy.free_cores += cores * count
        copy.busy_cores -= cores * count
    if copy.closed_loop:
        for index in range(count):
            release(copy, whole(job_of(copy, position + index).stage))


@compiled
def gather(copy: Copy, slot: int) -> int:
    """List in `gathered` where the jobs of a VM stand among the running ones, in order of start; return how many."""
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


@compiled
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


@compiled
def evict(copy: Copy, slot: int) -> None:
    """Send the jobs of a withdrawn VM back to the queue, with their progress lost or kept, and the VM away (§2.4)."""
    vm = vm_at(copy, slot)
    if vm.state == GONE:
        return
    now, keep = copy.now, settings_of(copy).removal_mode == _CHECKPOINT
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
            set_aside(copy, copy.side_head, position, now, waited, remaining)
            copy.queued_core_s += max(width, 1) * remaining
            copy.waiting += 1
        entry.slot = -1
    _forget_interrupted(copy)
    depart(copy, slot)


@compiled
def _forget_interrupted(copy: Copy) -> None:
    """Close the gaps that interrupted jobs left among the running ones."""
    kept = 0
    for place in range(copy.running):
        if running_at(copy, place).slot >= 0:
            if kept != place:
                _move_running(copy, place, kept)
            kept += 1
    copy.running = kept
