"""An episode of one copy from reset to end, and the loops over all copies that Python calls (§2.2, §5, §6).

Time first: events in order up to a step's end, dispatch of jobs (§2.3), integrals, monitor readings.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.workload import WHOLE_VM
from simulator.autoscaling.configuration import UNITS_PER_DOLLAR, Billing, CpuSampling, Dispatch
from simulator.autoscaling.fleet import count_busy, end_boots, find_next_reclaim, make_ready, new_vm, owed, withdraw
from simulator.autoscaling.jobs import (
    arrived_at,
    drop_started,
    evict,
    finish_next,
    job_of,
    oldest_arrival,
    run_next,
    set_aside,
    side_is_next,
    start_aside,
    start_head,
    submit_fixed,
    submit_released,
)
from simulator.autoscaling.memory import (
    GONE,
    READY,
    Copy,
    Records,
    count_at,
    fixed_at,
    free_slot_at,
    job_at,
    kind_at,
    meter_at,
    pending_at,
    ready_slot,
    running_at,
    settings_of,
    side_at,
    stage_at,
    stage_left_at,
    trace_at,
    vm_at,
    whole,
)
from simulator.autoscaling.observation import measured_cpu, measured_ram, observe
from simulator.autoscaling.orders import (
    CHANGES,
    begin_orders,
    carry_out,
    carry_out_changes,
    carry_out_index,
    cooldown_left,
)
from simulator.compilation import borrowing, inlined

_FIRST_FIT, _BEST_FIT = list(Dispatch).index(Dispatch.FIRST_FIT), list(Dispatch).index(Dispatch.BEST_FIT)
_ANY_WIDTH = 1 << 62
_TAKEN = -1


@inlined
def _choose(copy: Copy, width: int, scan_from: int) -> int:
    """Return the place among the ready VMs of the one for a job, -1 for none; see the reference's choose_machine."""
    order = settings_of(copy).dispatch
    start = scan_from if order == _FIRST_FIT else 0
    chosen, fewest = -1, _ANY_WIDTH
    for place in range(start, copy.ready):
        vm = vm_at(copy, ready_slot(copy, place))
        if vm.free < (vm.cores if width == WHOLE_VM else width):
            continue
        if order == _FIRST_FIT:
            return place
        if order == _BEST_FIT:
            free = 0 if width == WHOLE_VM else vm.free
            if free < fewest:
                chosen, fewest = place, free
        elif vm.number >= copy.next_place:
            return place
        elif chosen < 0:
            chosen = place
    return chosen


@borrowing
def dispatch(copy: Copy) -> None:
    """Start waiting jobs in their order, and note whether some are left without a core: a burst."""
    if copy.waiting > 0 and copy.free_cores > 0:
        if settings_of(copy).backfill:
            _dispatch_with_backfill(copy)
        else:
            _dispatch_in_order(copy)
    if copy.waiting == 0:
        copy.burst_open = 0
    elif not copy.burst_open:
        copy.burst_open = 1
        copy.burst_since = copy.now
        copy.bursts += 1


@inlined
def _dispatch_in_order(copy: Copy) -> None:
    """Start waiting jobs in order of (arrival, id) until the first of them fits nowhere."""
    settings = settings_of(copy)
    scan_from, widest_tried = 0, _ANY_WIDTH
    while copy.waiting > 0 and copy.free_cores > 0:
        aside = side_is_next(copy, copy.side_head)
        width = whole(job_of(copy, whole(side_at(copy, copy.side_head).position) if aside else copy.head).width)
        if width == WHOLE_VM or width < widest_tried:
            scan_from = 0
        widest_tried = _ANY_WIDTH if width == WHOLE_VM else width
        place = _choose(copy, width, scan_from)
        if place < 0:
            return
        slot = ready_slot(copy, place)
        vm = vm_at(copy, slot)
        copy.next_place = vm.number
        if aside:
            start_aside(copy, slot, copy.side_head)
            copy.side_head += 1
            if copy.side_head == copy.side_end:
                copy.side_head = copy.side_end = 0
        else:
            # Whatever the order, one-core jobs fill the VM that took the first of them.
            start_head(copy, slot, whole(vm.free) if copy.side_head == copy.side_end else 1)
        if settings.dispatch == _FIRST_FIT:
            scan_from = place


@borrowing
def _dispatch_with_backfill(copy: Copy) -> None:
    """Start waiting jobs in order of (arrival, id), passing over those that fit nowhere."""
    entry, passed = copy.side_head, 0
    while copy.waiting > passed and copy.free_cores > 0:
        aside = side_is_next(copy, entry)
        position = whole(side_at(copy, entry).position) if aside else copy.head
        job = job_of(copy, position)
        place = _choose(copy, whole(job.width), 0)
        if place >= 0:
            slot = ready_slot(copy, place)
            copy.next_place = vm_at(copy, slot).number
            if aside:
                start_aside(copy, slot, entry)
                side_at(copy, entry).position = _TAKEN
                entry += 1
            else:
                start_head(copy, slot, 1)
            continue
        passed += 1
        if not aside:
            copy.head += 1
            set_aside(copy, entry, position, arrived_at(copy, position), 0.0, job.service_s, whole(0))
        entry += 1
    drop_started(copy)


@inlined
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


@borrowing
def _first_due(copy: Copy, taken: bool) -> int:
    """Return the slot of the first VM requested that is noticed, or taken back, now; -1 for none."""
    first = -1
    for slot in range(copy.vm_slots):
        meter, vm = meter_at(copy, slot), vm_at(copy, slot)
        due = meter.taken_at if taken else meter.notice_at
        if vm.state >= READY and due == copy.now and (first < 0 or vm.number < vm_at(copy, first).number):
            first = slot
    return first


@borrowing
def reclaim(copy: Copy) -> None:
    """Give notice to the spot VMs that are due, then take back those whose notice has expired (§12.2)."""
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


@borrowing
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


@inlined
def _move_clock(copy: Copy, time: float) -> None:
    while copy.next_reading < time:
        _read_monitors(copy)
    passed = time - copy.now
    copy.busy_core_s += copy.busy_cores * passed
    copy.ready_core_s += copy.ready_cores * passed
    copy.waiting_job_s += (copy.waiting - copy.uncounted) * passed
    copy.now = time


@inlined
def _end_jobs(copy: Copy) -> None:
    while copy.running > 0 and running_at(copy, 0).end == copy.now:
        finish_next(copy)


@borrowing
def _run_started(copy: Copy) -> None:
    """Let the jobs run whose latency ends now; one that ends at once goes before the next of them."""
    while copy.next_start == copy.now:
        run_next(copy)
        _end_jobs(copy)
        if copy.closed_loop:
            submit_released(copy)


@borrowing
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


_BY_STEP = list(Billing).index(Billing.STEP)
_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_SAMPLED = list(CpuSampling).index(CpuSampling.SAMPLED)


@borrowing
def reset_copy(copy: Copy, seed: int, trace_index: int) -> None:
    """Begin an episode: initial fleet ready, clock 0, all jobs to come."""
    trace = trace_at(copy, trace_index)
    copy.now, copy.next_boot, copy.next_reading, copy.next_reclaim = 0.0, math.inf, math.inf, math.inf
    copy.next_start = copy.next_rare = math.inf
    copy.starting_head = copy.starting = copy.uncounted = 0
    copy.seed, copy.trace = np.uint64(seed), trace_index
    copy.jobs_at, copy.jobs, copy.closed_loop = trace.jobs_at, trace.jobs, trace.closed_loop
    copy.keyed = trace.closed_loop or settings_of(copy).interrupted_to_tail
    copy.timed = trace.fixed if trace.closed_loop else trace.jobs
    if settings_of(copy).arrivals_by_minute:
        copy.timed = 0
    copy.steps = copy.head = copy.submitted = copy.submitted_before = copy.next_fixed = 0
    copy.waiting = copy.executing = copy.finished = 0
    copy.ready = copy.booting = copy.free_cores = copy.busy_cores = copy.ready_cores = 0
    copy.next_number = copy.next_place = copy.running_head = copy.running = copy.sequence = 0
    copy.side_head = copy.side_end = copy.pending_head = copy.pending_end = copy.rate_micro = 0
    copy.queued_core_s = copy.finished_core_s = copy.executed_core_s = copy.lost_core_s = 0.0
    copy.busy_core_s = copy.ready_core_s = copy.waiting_job_s = copy.allocated = 0.0
    copy.burst_open = copy.bursts = copy.bursts_answered = 0
    copy.burst_since, copy.burst_wait_s = math.inf, 0.0
    copy.interruptions = copy.reclaimed = copy.removal_draws = copy.peak_cores = 0
    copy.rent_dollars = copy.rent_units = copy.penalty_dollars = copy.penalty_units = 0
    copy.step_rent = copy.step_penalty = 0
    copy.over = trace.jobs == 0
    copy.free_slots = copy.vm_slots
    for slot in range(copy.vm_slots):
        vm_at(copy, slot).state = GONE
        free_slot_at(copy, slot).slot = copy.vm_slots - 1 - slot
    for stage in range(trace.stages):
        stage_left_at(copy, stage).index = stage_at(copy, stage).jobs
    for kind in range(copy.kinds):
        count = count_at(copy, kind)
        count.present = count.ready = count.booting = count.requests = count.made = 0
        count.added_at = count.removed_at = -math.inf
        count.cooling_out = count.cooling_in = 0
        count.step_added = count.step_removed = count.step_refused = 0
        count.added = count.removed = count.refused = 0
        for _ in range(kind_at(copy, kind).initial):
            make_ready(copy, new_vm(copy, kind))
    if settings_of(copy).offset_clock:
        _run_to_offset(copy)


@borrowing
def _run_to_offset(copy: Copy) -> None:
    """Run to the start of the first step where the clock is offset (compat row 1)."""
    settings = settings_of(copy)
    if settings.arrivals_by_minute:
        submit_fixed(copy)
    dispatch(copy)
    run_until(copy, settings.clock_offset_s)
    copy.step_rent = 0
    copy.over = copy.finished == copy.jobs


@borrowing
def begin_step(copy: Copy) -> None:
    """Start a control step; the orders follow."""
    settings = settings_of(copy)
    copy.submitted_before = copy.submitted
    copy.step_rent = 0
    if settings.cpu_sampling == _AVERAGE or settings.cpu_sampling == _SAMPLED:
        for place in range(copy.ready):
            slot = ready_slot(copy, place)
            meter = meter_at(copy, slot)
            if settings.cpu_sampling == _AVERAGE:
                count_busy(copy, slot)
            meter.step_busy_core_s = meter.busy_core_s
            meter.readings, meter.cpu_readings, meter.ram_readings = 0, 0.0, 0.0
        if settings.cpu_sampling == _SAMPLED:
            copy.next_reading = copy.now + settings.sample_interval_s
    begin_orders(copy)


@borrowing
def end_step(copy: Copy) -> None:
    """Run the step whose orders have been carried out, and account for it."""
    settings = settings_of(copy)
    waited_before = copy.waiting_job_s
    if settings.arrivals_by_minute:
        submit_fixed(copy)
    dispatch(copy)
    if settings.billing == _BY_STEP:
        copy.step_rent = copy.rate_micro * settings.step_ms
    copy.steps += 1
    run_until(copy, copy.steps * settings.step_s + settings.clock_offset_s)
    if settings.billing != _BY_STEP:
        for slot in range(copy.vm_slots):
            if vm_at(copy, slot).state != GONE:
                copy.step_rent += owed(copy, slot)
    waited_ms = (copy.waiting - copy.uncounted) * settings.step_ms
    if settings.integral_penalty:
        waited_ms = np.int64(np.rint((copy.waiting_job_s - waited_before) * 1000))
    copy.step_penalty = settings.waiting_price_micro * waited_ms
    if settings.free_last_step and copy.finished == copy.jobs:
        copy.step_rent = copy.step_penalty = 0
    copy.rent_units += copy.step_rent
    copy.penalty_units += copy.step_penalty
    if copy.rent_units >= UNITS_PER_DOLLAR:
        copy.rent_dollars += copy.rent_units // UNITS_PER_DOLLAR
        copy.rent_units %= UNITS_PER_DOLLAR
    if copy.penalty_units >= UNITS_PER_DOLLAR:
        copy.penalty_dollars += copy.penalty_units // UNITS_PER_DOLLAR
        copy.penalty_units %= UNITS_PER_DOLLAR
    copy.allocated += copy.ready_cores / settings.max_cores
    copy.peak_cores = max(copy.peak_cores, copy.ready_cores)
    copy.over = copy.finished == copy.jobs or copy.steps >= settings.max_steps


@borrowing
def step_orders(copies: Records, orders: NDArray[np.int64]) -> None:
    """Do one step of the first copy with orders of shape (n, 2): type and change, in this order."""
    copy = copies[0]
    begin_step(copy)
    for index in range(orders.shape[0]):
        carry_out(copy, orders[index, 0], orders[index, 1])
    end_step(copy)


@borrowing
def _first_invalid(actions: NDArray[np.int64], choices: int) -> int:
    """Return the first copy whose action does not exist, -1 when all do."""
    for b in range(actions.shape[0]):
        for column in range(actions.shape[1]):
            if actions[b, column] < 0 or actions[b, column] >= choices:
                return b
    return -1


@borrowing
def step_all(
    copies: Records,
    actions: NDArray[np.int64],
    multi: bool,
    extended: bool,
    renew: bool,
    obs: NDArray[np.float32],
    reward: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> int:
    """Do one step of every copy and write the results; return the first copy with an impossible action, or -1.

    Nothing is done when an action is impossible. A copy that is over rests, or if `renew` begins its next episode.
    """
    total = copies.shape[0]
    invalid: int = _first_invalid(actions, CHANGES if multi else 1 + 2 * copies[0].kinds)
    if invalid >= 0:
        return invalid
    for b in range(total):
        copy = copies[b]
        if copy.over:
            reward[b] = 0.0
            if renew:
                reset_copy(copy, np.int64(copy.seed) + total, (copy.trace + 1) % copy.traces)
                terminated[b] = truncated[b] = False
                observe(copy, extended, obs, b)
            continue
        begin_step(copy)
        if multi:
            carry_out_changes(copy, actions, b)
        else:
            carry_out_index(copy, actions[b, 0])
        end_step(copy)
        observe(copy, extended, obs, b)
        reward[b] = -(copy.step_rent / UNITS_PER_DOLLAR + copy.step_penalty / UNITS_PER_DOLLAR)
        terminated[b] = copy.finished == copy.jobs
        truncated[b] = copy.over and not terminated[b]
    return -1


@borrowing
def reset_some(
    copies: Records,
    which: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    trace_index: NDArray[np.int64],
    extended: bool,
    obs: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Begin an episode in the chosen copies and write their first observation."""
    for b in range(copies.shape[0]):
        if which[b]:
            copy = copies[b]
            reset_copy(copy, seeds[b], trace_index[b])
            terminated[b] = copy.over
            truncated[b] = False
            observe(copy, extended, obs, b)


@borrowing
def show(copies: Records, extended: bool, out: NDArray[np.float32]) -> None:
    """Write the observation of every copy."""
    for b in range(copies.shape[0]):
        observe(copies[b], extended, out, b)


@borrowing
def view(copies: Records, b: int, cooldowns: NDArray[np.float64], out: NDArray[np.float64]) -> float:
    """Write what an outside policy may see of a copy, and return when the oldest waiting job arrived, nan for none.

    cooldowns: shape (2, N), seconds until a type may grow and shrink. out: shape (5, V), type, CPU, RAM, seconds ready
    and seconds idle of the ready VMs in request order.
    """
    copy = copies[b]
    for kind in range(copy.kinds):
        cooldowns[0, kind], cooldowns[1, kind] = cooldown_left(copy, kind, True), cooldown_left(copy, kind, False)
    for place in range(copy.ready):
        slot = ready_slot(copy, place)
        vm = vm_at(copy, slot)
        out[0, place] = vm.kind
        out[1, place] = measured_cpu(copy, slot)
        out[2, place] = measured_ram(copy, slot)
        out[3, place] = copy.now - vm.ready_at
        out[4, place] = copy.now - vm.idle_since if vm.free == vm.cores else 0.0
    return oldest_arrival(copy) if copy.waiting > 0 else math.nan
