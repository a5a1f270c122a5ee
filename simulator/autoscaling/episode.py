"""An episode of one copy from reset to end, and the loops over all copies that Python calls (§2.2, §5, §6)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.clock import run_until
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.dispatch import dispatch
from simulator.autoscaling.fleet import count_busy, make_ready, new_vm, owed
from simulator.autoscaling.layout import FREE_LIST, GONE, READY_LIST, Worlds
from simulator.autoscaling.observing import measured_cpu, measured_ram, observe
from simulator.autoscaling.orders import CHANGES, begin_orders, carry_out, carry_out_changes, carry_out_index
from simulator.reference.accounting import UNITS_PER_DOLLAR
from simulator.reference.configuration import Billing, CpuSampling

_BY_STEP = list(Billing).index(Billing.STEP)
_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_SAMPLED = list(CpuSampling).index(CpuSampling.SAMPLED)


@compiled
def reset_copy(w: Worlds, b: int, seed: int, trace_index: int) -> None:
    """Begin an episode: initial fleet ready, clock 0, all jobs to come."""
    copy, trace = w.copies[b], w.traces[trace_index]
    copy.now, copy.next_boot, copy.next_reading = 0.0, math.inf, math.inf
    copy.seed, copy.trace = np.uint64(seed), trace_index
    copy.first, copy.jobs, copy.closed_loop = trace.first, trace.jobs, trace.closed_loop
    copy.steps = copy.head = copy.submitted = copy.submitted_before = copy.next_fixed = 0
    copy.waiting = copy.executing = copy.finished = 0
    copy.ready = copy.booting = copy.free_cores = copy.busy_cores = copy.ready_cores = 0
    copy.next_number = copy.next_place = copy.running_head = copy.running = copy.sequence = 0
    copy.side_head = copy.side_end = copy.pending_head = copy.pending_end = copy.rate_micro = 0
    copy.queued_core_s = copy.finished_core_s = copy.executed_core_s = copy.lost_core_s = 0.0
    copy.busy_core_s = copy.ready_core_s = copy.waiting_job_s = copy.allocated = 0.0
    copy.burst_open = copy.bursts = copy.bursts_answered = 0
    copy.burst_since, copy.burst_wait_s = math.inf, 0.0
    copy.interruptions = copy.removal_draws = copy.peak_cores = 0
    copy.rent_dollars = copy.rent_units = copy.penalty_dollars = copy.penalty_units = 0
    copy.step_rent = copy.step_penalty = 0
    copy.over = trace.jobs == 0
    slots = w.vms.shape[1]
    copy.free_slots = slots
    for slot in range(slots):
        w.vms[b, slot].state = GONE
        w.slots[b, FREE_LIST, slot] = slots - 1 - slot
    for stage in range(trace.stages):
        w.stage_left[b, stage] = w.stages[trace.stage_first + stage].jobs
    for kind in range(w.kinds.shape[0]):
        count = w.counts[b, kind]
        count.present = count.ready = count.booting = count.requests = 0
        count.added_at = count.removed_at = -math.inf
        count.cooling_out = count.cooling_in = 0
        count.step_added = count.step_removed = count.step_refused = 0
        count.added = count.removed = count.refused = 0
        for _ in range(w.kinds[kind].initial):
            make_ready(w, b, new_vm(w, b, kind))


@compiled
def begin_step(w: Worlds, b: int) -> None:
    """Start a control step; the orders follow."""
    copy, settings = w.copies[b], w.settings[0]
    copy.submitted_before = copy.submitted
    copy.step_rent = 0
    if settings.cpu_sampling == _AVERAGE or settings.cpu_sampling == _SAMPLED:
        for place in range(copy.ready):
            slot = w.slots[b, READY_LIST, place]
            meter = w.meters[b, slot]
            if settings.cpu_sampling == _AVERAGE:
                count_busy(w, b, slot)
            meter.step_busy_core_s = meter.busy_core_s
            meter.readings, meter.cpu_readings, meter.ram_readings = 0, 0.0, 0.0
        if settings.cpu_sampling == _SAMPLED:
            copy.next_reading = copy.now + settings.sample_interval_s
    begin_orders(w, b)


@compiled
def end_step(w: Worlds, b: int) -> None:
    """Run the step whose orders have been carried out, and account for it."""
    copy, settings = w.copies[b], w.settings[0]
    waited_before = copy.waiting_job_s
    dispatch(w, b)
    if settings.billing == _BY_STEP:
        copy.step_rent = copy.rate_micro * settings.step_ms
    copy.steps += 1
    run_until(w, b, copy.steps * settings.step_s)
    if settings.billing != _BY_STEP:
        for slot in range(w.vms.shape[1]):
            if w.vms[b, slot].state != GONE:
                copy.step_rent += owed(w, b, slot)
    waited_ms = copy.waiting * settings.step_ms
    if settings.integral_penalty:
        waited_ms = np.int64(np.rint((copy.waiting_job_s - waited_before) * 1000))
    copy.step_penalty = settings.waiting_price_micro * waited_ms
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
    for kind in range(w.kinds.shape[0]):
        count = w.counts[b, kind]
        count.added += count.step_added
        count.removed += count.step_removed
        count.refused += count.step_refused
    copy.over = copy.finished == copy.jobs or copy.steps >= settings.max_steps


@compiled
def step_orders(w: Worlds, b: int, orders: NDArray[np.int64]) -> None:
    """Do one step of one copy with orders of shape (n, 2): type and change, in this order."""
    begin_step(w, b)
    for index in range(orders.shape[0]):
        carry_out(w, b, orders[index, 0], orders[index, 1])
    end_step(w, b)


@compiled
def first_invalid(w: Worlds, actions: NDArray[np.int64], multi: bool) -> int:
    """Return the first copy whose action does not exist, -1 when all do."""
    largest = CHANGES - 1 if multi else 2 * w.kinds.shape[0]
    for b in range(actions.shape[0]):
        for column in range(actions.shape[1]):
            if actions[b, column] < 0 or actions[b, column] > largest:
                return b
    return -1


@compiled
def step_all(
    w: Worlds,
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
    invalid: int = first_invalid(w, actions, multi)
    if invalid >= 0:
        return invalid
    copies = w.copies.shape[0]
    for b in range(copies):
        copy = w.copies[b]
        if copy.over:
            reward[b] = 0.0
            if renew:
                reset_copy(w, b, np.int64(copy.seed) + copies, (copy.trace + 1) % w.traces.shape[0])
                terminated[b] = truncated[b] = False
                observe(w, b, extended, obs[b])
            continue
        begin_step(w, b)
        if multi:
            carry_out_changes(w, b, actions[b])
        else:
            carry_out_index(w, b, actions[b, 0])
        end_step(w, b)
        observe(w, b, extended, obs[b])
        reward[b] = -(copy.step_rent / UNITS_PER_DOLLAR + copy.step_penalty / UNITS_PER_DOLLAR)
        terminated[b] = copy.finished == copy.jobs
        truncated[b] = copy.over and not terminated[b]
    return -1


@compiled
def reset_some(
    w: Worlds,
    which: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    trace_index: NDArray[np.int64],
    extended: bool,
    obs: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Begin an episode in the chosen copies and write their first observation."""
    for b in range(w.copies.shape[0]):
        if which[b]:
            reset_copy(w, b, seeds[b], trace_index[b])
            terminated[b] = w.copies[b].over
            truncated[b] = False
            observe(w, b, extended, obs[b])


@compiled
def view_vms(w: Worlds, b: int, out: NDArray[np.float64]) -> None:
    """Write type, CPU, RAM, seconds ready and seconds idle of the ready VMs in request order; shape (5, V)."""
    copy = w.copies[b]
    for place in range(copy.ready):
        slot = w.slots[b, READY_LIST, place]
        vm = w.vms[b, slot]
        out[0, place] = vm.kind
        out[1, place] = measured_cpu(w, b, slot)
        out[2, place] = measured_ram(w, b, slot)
        out[3, place] = copy.now - vm.ready_at
        out[4, place] = 0.0 if vm.jobs > 0 else copy.now - vm.idle_since
