"""Time in one copy: events in order up to a step's end, integrals over time, and the readings of a monitor."""

from __future__ import annotations

import math

import numpy as np

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.dispatch import dispatch
from simulator.autoscaling.fleet import end_boots, find_next_reclaim, withdraw
from simulator.autoscaling.jobs import evict, finish_next, run_next
from simulator.autoscaling.layout import READY, Copy
from simulator.autoscaling.memory import (
    fixed_at,
    job_at,
    kind_at,
    meter_at,
    pending_at,
    ready_slot,
    running_at,
    settings_of,
    vm_at,
)
from simulator.autoscaling.queue import submit_fixed, submit_released


@compiled
def _next_time(copy: Copy) -> float:
    """Return the time of the next event, inf when there is none."""
    time: float = min(copy.next_boot, copy.next_rare)
    if copy.running > 0:
        time = min(time, running_at(copy, 0).end)
    if not copy.closed_loop:
        if copy.next_fixed < copy.timed:
            time = min(time, job_at(copy, copy.next_fixed).arrival_s)
        return time
    if copy.pending_head < copy.pending_end:
        time = min(time, pending_at(copy, copy.pending_head).time)
    if copy.next_fixed < copy.timed:
        time = min(time, job_at(copy, fixed_at(copy, copy.next_fixed).index).arrival_s)
    return time


@compiled
def _first_due(copy: Copy, taken: bool) -> int:
    """Return the slot of the first VM requested that is noticed, or taken back, now; -1 for none."""
    first = -1
    for slot in range(copy.vm_slots):
        meter, vm = meter_at(copy, slot), vm_at(copy, slot)
        due = meter.taken_at if taken else meter.notice_at
        if vm.state >= READY and due == copy.now and (first < 0 or vm.number < vm_at(copy, first).number):
            first = slot
    return first


@compiled
def reclaim(copy: Copy) -> None:
    """Give notice to the spot VMs whose time has come, then take back those whose notice has run out (§12.2)."""
    slot = _first_due(copy, False)
    while slot >= 0:
        copy.reclaimed += 1
        meter = meter_at(copy, slot)
        meter.notice_at, meter.taken_at = math.inf, copy.now + settings_of(copy).reclaim_notice_s
        if vm_at(copy, slot).state == READY:
            withdraw(copy, slot)
        slot = _first_due(copy, False)
    slot = _first_due(copy, True)
    while slot >= 0:
        evict(copy, slot)
        slot = _first_due(copy, True)
    find_next_reclaim(copy)


@compiled
def _read_monitors(copy: Copy) -> None:
    """Take one reading of CPU and RAM of every ready VM."""
    settings = settings_of(copy)
    for place in range(copy.ready):
        slot = ready_slot(copy, place)
        vm, meter = vm_at(copy, slot), meter_at(copy, slot)
        meter.readings += 1
        busy = 1.0 - (vm.free + vm.starting) / vm.cores
        meter.cpu_readings += busy + (1.0 - busy) * settings.idle_cpu
        meter.ram_readings += vm.used_ram_gb / kind_at(copy, vm.kind).ram_gb
    copy.next_reading += settings.sample_interval_s


@compiled
def _move_clock(copy: Copy, time: float) -> None:
    while copy.next_reading < time:
        _read_monitors(copy)
    passed = time - copy.now
    copy.busy_core_s += copy.busy_cores * passed
    copy.ready_core_s += copy.ready_cores * passed
    copy.waiting_job_s += (copy.waiting - copy.uncounted) * passed
    copy.now = time


@compiled
def _end_jobs(copy: Copy) -> None:
    while copy.running > 0 and running_at(copy, 0).end == copy.now:
        finish_next(copy)


@compiled
def _run_started(copy: Copy) -> None:
    """Let the jobs run whose latency ends now; one that ends at once goes before the next of them."""
    while copy.next_start == copy.now:
        run_next(copy)
        _end_jobs(copy)
        if copy.closed_loop:
            submit_released(copy)


@compiled
def run_until(copy: Copy, end: float) -> None:
    """Process all events up to `end`: at one instant ends, boots, arrivals, starts, one dispatch (§2.2).

    Those at `end` belong to the next step where the clock is offset (compat row 1).
    """
    last = np.nextafter(end, -np.inf) if settings_of(copy).offset_clock else end
    while True:
        time = _next_time(copy)
        if time > last or time == math.inf:
            break
        _move_clock(copy, time)
        _end_jobs(copy)
        if copy.next_boot == time:
            end_boots(copy)
        if copy.closed_loop:
            submit_released(copy)
        if copy.next_rare == time:
            _run_started(copy)
            if copy.next_reclaim == time:
                reclaim(copy)
        if copy.next_fixed < copy.timed:
            submit_fixed(copy)
        dispatch(copy)
    _move_clock(copy, end)
    if copy.next_reading <= end:
        _read_monitors(copy)
