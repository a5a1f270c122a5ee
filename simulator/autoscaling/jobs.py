"""Starting, ending and interrupting jobs in one copy, one by one or a run of equal ones at a time."""

from __future__ import annotations

from domain.workload import WHOLE_VM
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.fleet import count_busy, depart
from simulator.autoscaling.layout import DRAINING, Worlds
from simulator.autoscaling.waiting import arrived_at, job_at, release, set_aside
from simulator.reference.configuration import CpuSampling, RemovalMode

_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_CHECKPOINT = list(RemovalMode).index(RemovalMode.CHECKPOINT)


@compiled
def _rate(w: Worlds, b: int, slot: int, width: int) -> float:
    """Return the seconds of service done in a second on a VM."""
    vm = w.vms[b, slot]
    speed = w.kinds[vm.kind].speed
    if width != WHOLE_VM:
        return float(speed)
    serial = w.traces[w.copies[b].trace].serial_fraction
    return float(speed / (serial + (1.0 - serial) / vm.cores))


@compiled
def _begin(
    w: Worlds, b: int, slot: int, position: int, count: int, waited: float, remaining: float, width: int
) -> None:
    """Note that jobs run from now on, in the order in which running jobs will end."""
    copy, vm = w.copies[b], w.vms[b, slot]
    running = w.running[b]
    end = copy.now + remaining / _rate(w, b, slot, width)
    mask = running.shape[0] - 1
    place = copy.running
    while place > 0 and running[(copy.running_head + place - 1) & mask].end > end:
        running[(copy.running_head + place) & mask] = running[(copy.running_head + place - 1) & mask]
        place -= 1
    entry = running[(copy.running_head + place) & mask]
    entry.end, entry.start, entry.waited, entry.remaining = end, copy.now, waited, remaining
    entry.position, entry.sequence, entry.count, entry.slot = position, copy.sequence, count, slot
    copy.running += 1
    copy.sequence += 1
    copy.executing += count
    vm.jobs += count


@compiled
def start_head(w: Worlds, b: int, slot: int, most: int) -> None:
    """Start the first job that never left the queue on a VM, with up to `most` - 1 equal one-core jobs behind it."""
    copy, vm, settings = w.copies[b], w.vms[b, slot], w.settings[0]
    if settings.cpu_sampling == _AVERAGE:
        count_busy(w, b, slot)
    head = copy.head
    job = w.jobs[job_at(w, b, head)]
    width, service = job.width, job.service_s
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
        job = w.jobs[job_at(w, b, head + count)]
        if job.width != 1 or job.service_s != service:
            break
    copy.waiting, copy.queued_core_s, vm.used_ram_gb = waiting, queued, used
    copy.head = head + count
    vm.free -= cores * count
    copy.free_cores -= cores * count
    copy.busy_cores += cores * count
    _begin(w, b, slot, head, count, -1.0, service, width)


@compiled
def start_aside(w: Worlds, b: int, slot: int, place: int) -> None:
    """Start the job of entry `place` of `side` on a VM; the entry stays for the caller to drop."""
    copy, vm, settings, entry = w.copies[b], w.vms[b, slot], w.settings[0], w.side[b, place]
    if settings.cpu_sampling == _AVERAGE:
        count_busy(w, b, slot)
    job = w.jobs[job_at(w, b, entry.position)]
    width = job.width
    cores = vm.cores if width == WHOLE_VM else width
    vm.free -= cores
    vm.used_ram_gb += job.ram_gb
    copy.free_cores -= cores
    copy.busy_cores += cores
    copy.waiting -= 1
    copy.queued_core_s = copy.queued_core_s - max(width, 1) * entry.remaining if copy.waiting > 0 else 0.0
    waited = entry.waited + (copy.now - entry.since)
    _begin(w, b, slot, entry.position, 1, waited, entry.remaining, width)


@compiled
def finish_next(w: Worlds, b: int) -> None:
    """End the jobs that are the next to end."""
    copy, settings = w.copies[b], w.settings[0]
    entry = w.running[b, copy.running_head]
    slot, count, start, position = entry.slot, entry.count, entry.start, entry.position
    returned, waited = entry.waited, 0.0
    vm = w.vms[b, slot]
    copy.running_head = (copy.running_head + 1) & (w.running.shape[1] - 1)
    copy.running -= 1
    if settings.cpu_sampling == _AVERAGE:
        count_busy(w, b, slot)
    now, cores = copy.now, 1
    executed, done_core_s, used, left = copy.executed_core_s, copy.finished_core_s, vm.used_ram_gb, vm.jobs
    for index in range(count):
        job = w.jobs[job_at(w, b, position + index)]
        cores = vm.cores if job.width == WHOLE_VM else job.width
        left -= 1
        used = settings.base_ram_gb if left == 0 else used - job.ram_gb
        executed += cores * (now - start)
        done_core_s += max(job.width, 1) * job.service_s
        waited = returned if returned >= 0.0 else start - arrived_at(w, b, position + index)
        w.waits[b, copy.finished + index] = waited
    copy.executed_core_s, copy.finished_core_s, vm.used_ram_gb, vm.jobs = executed, done_core_s, used, left
    copy.finished += count
    copy.executing -= count
    vm.free += cores * count
    if left == 0:
        vm.idle_since = now
    if vm.state == DRAINING:
        if left == 0:
            depart(w, b, slot)
    else:
        copy.free_cores += cores * count
        copy.busy_cores -= cores * count
    if copy.closed_loop:
        for index in range(count):
            release(w, b, w.jobs[job_at(w, b, position + index)].stage)


@compiled
def gather(w: Worlds, b: int, slot: int) -> int:
    """List in `gathered` where in `running` the jobs of a VM stand, in order of start; return how many entries."""
    copy, running, found = w.copies[b], w.running[b], w.gathered
    mask = running.shape[0] - 1
    count = 0
    for offset in range(copy.running):
        index = (copy.running_head + offset) & mask
        if running[index].slot == slot:
            place = count
            while place > 0 and running[found[place - 1]].sequence > running[index].sequence:
                found[place] = found[place - 1]
                place -= 1
            found[place] = index
            count += 1
    return count


@compiled
def work_lost(w: Worlds, b: int, slot: int) -> float:
    """Return the core-seconds that the jobs of a VM would lose if it went now."""
    lost, now = 0.0, w.copies[b].now
    for index in range(gather(w, b, slot)):
        entry = w.running[b, w.gathered[index]]
        width = w.jobs[job_at(w, b, entry.position)].width
        cores = w.vms[b, slot].cores if width == WHOLE_VM else width
        for _ in range(entry.count):
            lost += cores * (now - entry.start)
    return lost


@compiled
def interrupt_all(w: Worlds, b: int, slot: int) -> None:
    """Send the jobs of a VM back to the queue, with their progress lost or kept (§2.4)."""
    copy, vm, running = w.copies[b], w.vms[b, slot], w.running[b]
    now, keep = copy.now, w.settings[0].removal_mode == _CHECKPOINT
    for index in range(gather(w, b, slot)):
        entry = running[w.gathered[index]]
        elapsed = now - entry.start
        for offset in range(entry.count):
            position = entry.position + offset
            width = w.jobs[job_at(w, b, position)].width
            cores = vm.cores if width == WHOLE_VM else width
            vm.free += cores
            vm.jobs -= 1
            copy.busy_cores -= cores
            copy.executing -= 1
            copy.interruptions += 1
            copy.executed_core_s += cores * elapsed
            remaining = entry.remaining
            if keep:
                remaining = max(remaining - elapsed * _rate(w, b, slot, width), 0.0)
            else:
                copy.lost_core_s += cores * elapsed
            waited = entry.waited if entry.waited >= 0.0 else entry.start - arrived_at(w, b, position)
            set_aside(w, b, copy.side_head, position, now, waited, remaining)
            copy.queued_core_s += max(width, 1) * remaining
            copy.waiting += 1
        entry.slot = -1
    _forget_interrupted(w, b)


@compiled
def _forget_interrupted(w: Worlds, b: int) -> None:
    """Close the gaps that interrupted jobs left among the running ones."""
    copy, running = w.copies[b], w.running[b]
    mask = running.shape[0] - 1
    kept = 0
    for offset in range(copy.running):
        index = (copy.running_head + offset) & mask
        if running[index].slot >= 0:
            if kept != offset:
                running[(copy.running_head + kept) & mask] = running[index]
            kept += 1
    copy.running = kept
