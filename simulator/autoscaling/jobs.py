"""Starting, ending and interrupting jobs in one copy, one by one or a run of equal ones at a time."""

from __future__ import annotations

import math

from domain.workload import WHOLE_VM
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.fleet import count_busy, depart
from simulator.autoscaling.layout import DRAINING, GONE, Copy
from simulator.autoscaling.memory import (
    gathered_at,
    kind_at,
    meter_at,
    running_at,
    settings_of,
    side_at,
    starting_at,
    trace_at,
    vm_at,
    wait_at,
    whole,
)
from simulator.autoscaling.queue import arrived_at, job_of, release, set_aside
from simulator.autoscaling.reference.compat import CHAIN_LOSS_S
from simulator.autoscaling.reference.configuration import CpuSampling, RemovalMode

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


@compiled
def _move_starting(copy: Copy, source: int, target: int) -> None:
    old, new = starting_at(copy, source), starting_at(copy, target)
    new.time, new.since, new.waited, new.remaining = old.time, old.since, old.waited, old.remaining
    new.position, new.sequence, new.slot, new.unseen = old.position, old.sequence, old.slot, old.unseen


@compiled
def _find_next_start(copy: Copy) -> None:
    """Note when the next job runs that has its cores."""
    copy.next_start = starting_at(copy, 0).time if copy.starting > 0 else math.inf
    copy.next_rare = min(copy.next_reclaim, copy.next_start)


@compiled
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


@compiled
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


@compiled
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


@compiled
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
