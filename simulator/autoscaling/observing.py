"""obs-7 and obs-v2 of one copy, bit for bit those of `domain.observations.autoscale` on the reference simulator."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.observations.autoscale import OLDEST_WAIT_SCALE_S, QUEUE_SCALE_S
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.fleet import count_busy
from simulator.autoscaling.layout import Copy
from simulator.autoscaling.memory import count_at, kind_at, meter_at, ready_at, settings_of, vm_at, waiting_log_at
from simulator.autoscaling.orders import cooldown_left, victim
from simulator.autoscaling.waiting import oldest_arrival
from simulator.reference.configuration import CpuSampling

_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_SAMPLED = list(CpuSampling).index(CpuSampling.SAMPLED)
_BLOCK = 128


@compiled
def measured_cpu(copy: Copy, slot: int) -> float:
    """Return the CPU of a ready VM for the last step, 0..1; nan where there were too few readings."""
    settings, vm = settings_of(copy), vm_at(copy, slot)
    busy = 1.0 - vm.free / vm.cores
    if settings.cpu_sampling == _SAMPLED:
        meter = meter_at(copy, slot)
        if meter.readings < settings.samples_needed:
            return math.nan
        return float(meter.cpu_readings / meter.readings)
    if settings.cpu_sampling == _AVERAGE:
        elapsed = copy.now - max(max(copy.steps - 1, 0) * settings.step_s, vm.ready_at)
        if elapsed > 0:
            count_busy(copy, slot)
            meter = meter_at(copy, slot)
            busy = (meter.busy_core_s - meter.step_busy_core_s) / (elapsed * vm.cores)
    return float(busy + (1.0 - busy) * settings.idle_cpu)


@compiled
def measured_ram(copy: Copy, slot: int) -> float:
    """Return the share of memory used on a ready VM for the last step, where its CPU was measured."""
    settings, vm = settings_of(copy), vm_at(copy, slot)
    if settings.cpu_sampling == _SAMPLED:
        meter = meter_at(copy, slot)
        if meter.readings < settings.samples_needed:
            return math.nan
        return float(meter.ram_readings / meter.readings)
    return float(vm.used_ram_gb / kind_at(copy, vm.kind).ram_gb)


@compiled
def _sort(values: NDArray[np.float64], n: int) -> None:
    """Sort the first n values in place; they are few."""
    for index in range(1, n):
        value = values[index]
        place = index
        while place > 0 and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value


@compiled
def _sum_block(values: NDArray[np.float64], first: int, n: int) -> float:
    """Add at most 128 values in the order in which numpy adds them."""
    total = 0.0
    if n < 8:
        for index in range(first, first + n):
            total += values[index]
        return total
    a0, a1, a2, a3 = values[first], values[first + 1], values[first + 2], values[first + 3]
    a4, a5, a6, a7 = values[first + 4], values[first + 5], values[first + 6], values[first + 7]
    whole = n - n % 8
    for index in range(first + 8, first + whole, 8):
        a0 += values[index]
        a1 += values[index + 1]
        a2 += values[index + 2]
        a3 += values[index + 3]
        a4 += values[index + 4]
        a5 += values[index + 5]
        a6 += values[index + 6]
        a7 += values[index + 7]
    total = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    for index in range(first + whole, first + n):
        total += values[index]
    return total


@compiled
def _sum_pair(values: NDArray[np.float64], first: int, n: int) -> float:
    """Add up to two blocks."""
    if n <= _BLOCK:
        return _sum_block(values, first, n)
    half = n // 2 - n // 2 % 8
    return _sum_block(values, first, half) + _sum_block(values, first + half, n - half)


@compiled
def _sum(values: NDArray[np.float64], first: int, n: int) -> float:
    """Add n values pairwise by blocks, as numpy does: the same bits up to 500 values, nearly so beyond."""
    if n <= _BLOCK:
        return _sum_block(values, first, n)
    half = n // 2 - n // 2 % 8
    return _sum_pair(values, first, half) + _sum_pair(values, first + half, n - half)


@compiled
def _mean_and_p90(values: NDArray[np.float64], n: int) -> tuple[float, float]:
    """Return mean and 90th percentile of the first n values, clipped to 0..1."""
    if n == 0:
        return 0.0, 0.0
    _sort(values, n)
    rank = 0.9 * (n - 1)
    below = int(rank)
    above = min(below + 1, n - 1)
    mean = _sum(values, 0, n) / n
    p90 = values[below] + (rank - below) * (values[above] - values[below])
    return min(max(mean, 0.0), 1.0), min(max(p90, 0.0), 1.0)


@compiled
def observe(copy: Copy, extended: bool, scratch: NDArray[np.float64], out: NDArray[np.float32]) -> None:
    """Write obs-7, or obs-v2 if `extended`, of a copy (§3); scratch: shape (2, V)."""
    settings = settings_of(copy)
    cpu, ram = scratch[0], scratch[1]
    n = 0
    if copy.steps > 0:
        for place in range(copy.ready):
            slot = ready_at(copy, place).slot
            share = measured_cpu(copy, slot)
            if not math.isnan(share):
                cpu[n], ram[n] = share, measured_ram(copy, slot)
                n += 1
    out[0] = min(max(copy.ready_cores / settings.max_cores, 0.0), 1.0) if settings.max_cores > 0 else 0.0
    out[1], out[2] = _mean_and_p90(cpu, n)
    out[3], out[4] = _mean_and_p90(ram, n)
    recent = copy.submitted - copy.submitted_before
    out[5] = min(max(copy.waiting / copy.submitted, 0.0), 1.0) if copy.submitted > 0 else 0.0
    # Jobs interrupted at the step's start stand before its arrivals, so two counters tell exactly who is recent.
    out[6] = min(max(min(copy.waiting, recent) / recent, 0.0), 1.0) if recent > 0 else 0.0
    if extended:
        _observe_fleet(copy, out)


@compiled
def _observe_fleet(copy: Copy, out: NDArray[np.float32]) -> None:
    """Write the entries of obs-v2 that follow obs-7."""
    settings = settings_of(copy)
    kinds = copy.kinds
    chosen = -1
    for k in range(kinds):
        count, limit = count_at(copy, k), kind_at(copy, k).limit
        out[7 + 3 * k] = min(max(count.ready / limit, 0.0), 1.0) if limit > 0 else 0.0
        out[8 + 3 * k] = min(max(count.booting / limit, 0.0), 1.0) if limit > 0 else 0.0
        out[9 + 3 * k] = 0.0
        if settings.cooldown_s > 0.0:
            left = max(cooldown_left(copy, k, True), cooldown_left(copy, k, False))
            out[9 + 3 * k] = min(max(left / settings.cooldown_s, 0.0), 1.0)
        larger = chosen < 0 or kind_at(copy, k).cores > kind_at(copy, chosen).cores
        if count.ready > kind_at(copy, k).minimum and larger:
            chosen = k
    fleet = 7 + 3 * kinds
    out[fleet] = waiting_log_at(copy, copy.waiting).value
    out[fleet + 1] = 0.0
    if settings.max_cores > 0:
        queued = copy.queued_core_s / (settings.max_cores * QUEUE_SCALE_S)
        out[fleet + 1] = min(max(queued, 0.0), 10.0)
    oldest = copy.now - oldest_arrival(copy) if copy.waiting > 0 else 0.0
    out[fleet + 2] = min(max(oldest / OLDEST_WAIT_SCALE_S, 0.0), 1.0)
    out[fleet + 3] = 0.0
    if chosen >= 0 and copy.busy_cores > 0:
        vm = vm_at(copy, victim(copy, chosen, False))
        out[fleet + 3] = min(max((vm.cores - vm.free) / copy.busy_cores, 0.0), 1.0)
