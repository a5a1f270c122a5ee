"""Time in one copy: events in order up to a step's end, integrals over time, and the readings of a monitor."""

from __future__ import annotations

import math

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.dispatch import dispatch
from simulator.autoscaling.fleet import end_boots
from simulator.autoscaling.jobs import finish_next
from simulator.autoscaling.layout import READY_LIST, Worlds
from simulator.autoscaling.waiting import submit_fixed, submit_released


@compiled
def _next_time(w: Worlds, b: int) -> float:
    """Return the time of the next event, inf when there is none."""
    copy = w.copies[b]
    time = float(copy.next_boot)
    if copy.running > 0:
        time = min(time, w.running[b, copy.running_head].end)
    if not copy.closed_loop:
        if copy.next_fixed < copy.jobs:
            time = min(time, w.jobs[copy.first + copy.next_fixed].arrival_s)
        return time
    trace = w.traces[copy.trace]
    if copy.pending_head < copy.pending_end:
        time = min(time, w.pending[b, copy.pending_head].time)
    if copy.next_fixed < trace.fixed:
        job = w.fixed_jobs[trace.fixed_first + copy.next_fixed]
        time = min(time, w.jobs[copy.first + job].arrival_s)
    return time


@compiled
def _read_monitors(w: Worlds, b: int) -> None:
    """Take one reading of CPU and RAM of every ready VM."""
    copy, settings = w.copies[b], w.settings[0]
    for place in range(copy.ready):
        slot = w.slots[b, READY_LIST, place]
        vm, meter = w.vms[b, slot], w.meters[b, slot]
        meter.readings += 1
        busy = 1.0 - vm.free / vm.cores
        meter.cpu_readings += busy + (1.0 - busy) * settings.idle_cpu
        meter.ram_readings += vm.used_ram_gb / w.kinds[vm.kind].ram_gb
    copy.next_reading += settings.sample_interval_s


@compiled
def _move_clock(w: Worlds, b: int, time: float) -> None:
    copy = w.copies[b]
    while copy.next_reading < time:
        _read_monitors(w, b)
    passed = time - copy.now
    copy.busy_core_s += copy.busy_cores * passed
    copy.ready_core_s += copy.ready_cores * passed
    copy.waiting_job_s += copy.waiting * passed
    copy.now = time


@compiled
def run_until(w: Worlds, b: int, end: float) -> None:
    """Process all events up to and including `end`: at one instant ends, boots, arrivals, one dispatch (§2.2)."""
    copy = w.copies[b]
    while True:
        time = _next_time(w, b)
        if time > end or time == math.inf:
            break
        _move_clock(w, b, time)
        while copy.running > 0 and w.running[b, copy.running_head].end == time:
            finish_next(w, b)
        if copy.next_boot == time:
            end_boots(w, b)
        while copy.pending_head < copy.pending_end and w.pending[b, copy.pending_head].time == time:
            copy.pending_head += 1
            submit_released(w, b, w.pending[b, copy.pending_head - 1].job)
        submit_fixed(w, b)
        dispatch(w, b)
    _move_clock(w, b, end)
    if copy.next_reading <= end:
        _read_monitors(w, b)
