"""An episode of one copy from reset to end, and the loops over all copies that Python calls (§2.2, §5, §6)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.clock import run_until
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.dispatch import dispatch
from simulator.autoscaling.fleet import count_busy, make_ready, new_vm, owed
from simulator.autoscaling.layout import GONE, Copy, Records
from simulator.autoscaling.memory import (
    count_at,
    free_slot_at,
    kind_at,
    meter_at,
    ready_slot,
    settings_of,
    stage_at,
    stage_left_at,
    trace_at,
    vm_at,
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
from simulator.autoscaling.queue import oldest_arrival, submit_fixed
from simulator.autoscaling.reference.accounting import UNITS_PER_DOLLAR
from simulator.autoscaling.reference.configuration import Billing, CpuSampling

_BY_STEP = list(Billing).index(Billing.STEP)
_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_SAMPLED = list(CpuSampling).index(CpuSampling.SAMPLED)


@compiled
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


@compiled
def _run_to_offset(copy: Copy) -> None:
    """Run to the start of the first step where the clock is offset (compat row 1)."""
    settings = settings_of(copy)
    if settings.arrivals_by_minute:
        submit_fixed(copy)
    dispatch(copy)
    run_until(copy, settings.clock_offset_s)
    copy.step_rent = 0
    copy.over = copy.finished == copy.jobs


@compiled
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


@compiled
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


@compiled
def step_orders(copies: Records, orders: NDArray[np.int64]) -> None:
    """Do one step of the first copy with orders of shape (n, 2): type and change, in this order."""
    copy = copies[0]
    begin_step(copy)
    for index in range(orders.shape[0]):
        carry_out(copy, orders[index, 0], orders[index, 1])
    end_step(copy)


@compiled
def _first_invalid(actions: NDArray[np.int64], choices: int) -> int:
    """Return the first copy whose action does not exist, -1 when all do."""
    for b in range(actions.shape[0]):
        for column in range(actions.shape[1]):
            if actions[b, column] < 0 or actions[b, column] >= choices:
                return b
    return -1


@compiled
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


@compiled
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


@compiled
def show(copies: Records, extended: bool, out: NDArray[np.float32]) -> None:
    """Write the observation of every copy."""
    for b in range(copies.shape[0]):
        observe(copies[b], extended, out, b)


@compiled
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
