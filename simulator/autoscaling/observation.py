"""obs-7 and obs-v2 of one copy, bit for bit those of the reference simulator, its published mode (§8) included."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.observations.autoscaling import OLDEST_WAIT_SCALE_S, QUEUE_SCALE_S
from simulator.autoscaling.configuration import LOW_PERCENTILE, CpuSampling
from simulator.autoscaling.fleet import count_busy
from simulator.autoscaling.jobs import oldest_arrival
from simulator.autoscaling.memory import (
    Copy,
    count_at,
    kind_at,
    meter_at,
    ready_slot,
    settings_of,
    share_at,
    vm_at,
    waiting_log_at,
)
from simulator.autoscaling.orders import cooldown_left, victim
from simulator.compilation import borrowing, inlined

_LOW_SHARE = LOW_PERCENTILE / 100.0


@borrowing
def _lowest(shares: int, n: int) -> float:
    """Return the 0.9th percentile of n sorted shares at rank 0.009 (n + 1), counted from 1."""
    rank = _LOW_SHARE * (n + 1)
    if rank < 1.0:
        return float(share_at(shares, 0).share)
    below = int(rank)
    low, high = share_at(shares, below - 1).share, share_at(shares, min(below + 1, n) - 1).share
    return float(low + (rank - below) * (high - low))


@borrowing
def _ninetieth(shares: int, n: int) -> float:
    """Return the 90th percentile of n sorted shares as numpy rounds it: from the nearer of its neighbours."""
    rank = (n - 1) * 0.9
    below = int(rank)
    low, high = share_at(shares, below).share, share_at(shares, min(below + 1, n - 1)).share
    beyond = rank - below
    return float(low + (high - low) * beyond if beyond < 0.5 else high - (high - low) * (1.0 - beyond))


@borrowing
def _percentile(copy: Copy, shares: int, n: int) -> float:
    if n == 0:
        return 0.0
    share: float = _lowest(shares, n) if settings_of(copy).low_percentile else _ninetieth(shares, n)
    return min(max(share, 0.0), 1.0)


@borrowing
def publish(copy: Copy, n: int, last_ram: float, out: NDArray[np.float32], row: int) -> None:
    """Change the obs-7 in a row of `out`; n VMs were measured, their shares lie sorted in the scratch space.

    last_ram: share of memory used on the last of them in request order.
    """
    settings, cpu, ram = settings_of(copy), copy.cpu_shares_at, copy.ram_shares_at
    if copy.steps == 0 and settings.blank_first_observation:
        for entry in range(7):
            out[row, entry] = 0.0
        return
    if settings.single_ram_slot and n > 0:
        for place in range(n - 1):
            share_at(ram, place).share = 0.0
        share_at(ram, n - 1).share = last_ram
        out[row, 3] = min(max(last_ram / n, 0.0), 1.0)
    if settings.low_percentile or settings.single_ram_slot:
        out[row, 2], out[row, 4] = _percentile(copy, cpu, n), _percentile(copy, ram, n)
    if settings.recent_minus_vms:
        counted = copy.submitted - copy.next_number
        still = min(copy.waiting - copy.uncounted, copy.submitted - copy.submitted_before)
        out[row, 6] = min(max(still / counted, 0.0), 1.0) if counted > 0 else 0.0
    if settings.single_limit:
        out[row, 0] = min(max(copy.ready_cores / settings.one_limit_cores, 0.0), 1.0)


_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_SAMPLED = list(CpuSampling).index(CpuSampling.SAMPLED)
_BLOCK = 128


@inlined
def measured_cpu(copy: Copy, slot: int) -> float:
    """Return the CPU of a ready VM for the last step, 0..1; nan where there were too few readings."""
    settings, vm = settings_of(copy), vm_at(copy, slot)
    busy = 1.0 - (vm.free + vm.starting) / vm.cores
    if settings.cpu_sampling == _SAMPLED:
        meter = meter_at(copy, slot)
        if meter.readings < settings.samples_needed:
            return math.nan
        return float(meter.cpu_readings / meter.readings)
    if settings.cpu_sampling == _AVERAGE:
        elapsed = copy.now - max(max(copy.steps - 1, 0) * settings.step_s + settings.clock_offset_s, vm.ready_at)
        if elapsed > 0:
            count_busy(copy, slot)
            meter = meter_at(copy, slot)
            busy = (meter.busy_core_s - meter.step_busy_core_s) / (elapsed * vm.cores)
    return float(busy + (1.0 - busy) * settings.idle_cpu)


@inlined
def measured_ram(copy: Copy, slot: int) -> float:
    """Return the share of memory used on a ready VM for the last step, where its CPU was measured."""
    settings, vm = settings_of(copy), vm_at(copy, slot)
    if settings.cpu_sampling == _SAMPLED:
        meter = meter_at(copy, slot)
        if meter.readings < settings.samples_needed:
            return math.nan
        return float(meter.ram_readings / meter.readings)
    return float(vm.used_ram_gb / kind_at(copy, vm.kind).ram_gb)


@inlined
def _sort(shares: int, n: int) -> None:
    """Sort n shares in place; they are few, and often equal."""
    for index in range(1, n):
        value = share_at(shares, index).share
        place = index
        while place > 0 and share_at(shares, place - 1).share > value:
            share_at(shares, place).share = share_at(shares, place - 1).share
            place -= 1
        share_at(shares, place).share = value


@borrowing
def _sum_block(shares: int, first: int, n: int) -> float:
    """Add at most 128 shares in the order in which numpy adds them."""
    whole_rows = n // 8 if n >= 8 else 0
    total = 0.0
    if whole_rows > 0:
        a0, a1 = share_at(shares, first).share, share_at(shares, first + 1).share
        a2, a3 = share_at(shares, first + 2).share, share_at(shares, first + 3).share
        a4, a5 = share_at(shares, first + 4).share, share_at(shares, first + 5).share
        a6, a7 = share_at(shares, first + 6).share, share_at(shares, first + 7).share
        for row in range(1, whole_rows):
            index = first + 8 * row
            a0 += share_at(shares, index).share
            a1 += share_at(shares, index + 1).share
            a2 += share_at(shares, index + 2).share
            a3 += share_at(shares, index + 3).share
            a4 += share_at(shares, index + 4).share
            a5 += share_at(shares, index + 5).share
            a6 += share_at(shares, index + 6).share
            a7 += share_at(shares, index + 7).share
        total = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    for index in range(first + 8 * whole_rows, first + n):
        total += share_at(shares, index).share
    return total


@borrowing
def _sum(shares: int, n: int) -> float:
    """Add n shares by halves of at most 128, as numpy does: the same bits up to 500 of them, nearly so beyond."""
    if n <= _BLOCK:
        return _sum_block(shares, 0, n)
    half = n // 2 - n // 2 % 8
    total = 0.0
    for first, size in ((0, half), (half, n - half)):
        if size <= _BLOCK:
            total += _sum_block(shares, first, size)
        else:
            quarter = size // 2 - size // 2 % 8
            total += _sum_block(shares, first, quarter) + _sum_block(shares, first + quarter, size - quarter)
    return total


@inlined
def _write_mean_and_p90(shares: int, n: int, out: NDArray[np.float32], row: int, column: int) -> None:
    """Write mean and 90th percentile of n shares, clipped to 0..1; 0 where there is none."""
    out[row, column] = out[row, column + 1] = 0.0
    if n == 0:
        return
    _sort(shares, n)
    rank = 0.9 * (n - 1)
    below = int(rank)
    low, high = share_at(shares, below).share, share_at(shares, min(below + 1, n - 1)).share
    out[row, column] = min(max(_sum(shares, n) / n, 0.0), 1.0)
    out[row, column + 1] = min(max(low + (rank - below) * (high - low), 0.0), 1.0)


@borrowing
def observe(copy: Copy, extended: bool, out: NDArray[np.float32], row: int) -> None:
    """Write obs-7, or obs-v2 if `extended`, of a copy into a row of `out` (§3)."""
    settings, waiting = settings_of(copy), copy.waiting - copy.uncounted
    cpu, ram = copy.cpu_shares_at, copy.ram_shares_at
    n = 0
    if copy.steps > 0:
        for place in range(copy.ready):
            slot = ready_slot(copy, place)
            share = measured_cpu(copy, slot)
            if not math.isnan(share):
                share_at(cpu, n).share, share_at(ram, n).share = share, measured_ram(copy, slot)
                n += 1
    last_ram = share_at(ram, n - 1).share if n > 0 else 0.0
    out[row, 0] = min(max(copy.ready_cores / settings.max_cores, 0.0), 1.0) if settings.max_cores > 0 else 0.0
    _write_mean_and_p90(cpu, n, out, row, 1)
    _write_mean_and_p90(ram, n, out, row, 3)
    recent = copy.submitted - copy.submitted_before
    out[row, 5] = min(max(waiting / copy.submitted, 0.0), 1.0) if copy.submitted > 0 else 0.0
    # Jobs interrupted at the step's start precede its arrivals, so two counters give the recent jobs exactly.
    out[row, 6] = min(max(min(waiting, recent) / recent, 0.0), 1.0) if recent > 0 else 0.0
    if settings.published:
        publish(copy, n, last_ram, out, row)
    if extended:
        _observe_fleet(copy, out, row)


@borrowing
def _observe_fleet(copy: Copy, out: NDArray[np.float32], row: int) -> None:
    """Write the entries of obs-v2 that follow obs-7."""
    settings = settings_of(copy)
    kinds = copy.kinds
    chosen = -1
    for k in range(kinds):
        count, limit = count_at(copy, k), kind_at(copy, k).limit
        out[row, 7 + 3 * k] = min(max(count.ready / limit, 0.0), 1.0) if limit > 0 else 0.0
        out[row, 8 + 3 * k] = min(max(count.booting / limit, 0.0), 1.0) if limit > 0 else 0.0
        out[row, 9 + 3 * k] = 0.0
        if settings.cooldown_s > 0.0:
            left = max(cooldown_left(copy, k, True), cooldown_left(copy, k, False))
            out[row, 9 + 3 * k] = min(max(left / settings.cooldown_s, 0.0), 1.0)
        larger = chosen < 0 or kind_at(copy, k).cores > kind_at(copy, chosen).cores
        if count.ready > kind_at(copy, k).minimum and larger:
            chosen = k
    fleet = 7 + 3 * kinds
    out[row, fleet] = waiting_log_at(copy, copy.waiting - copy.uncounted).value
    out[row, fleet + 1] = 0.0
    if settings.max_cores > 0:
        queued = copy.queued_core_s / (settings.max_cores * QUEUE_SCALE_S)
        out[row, fleet + 1] = min(max(queued, 0.0), 10.0)
    oldest = copy.now - oldest_arrival(copy) if copy.waiting > 0 else 0.0
    out[row, fleet + 2] = min(max(oldest / OLDEST_WAIT_SCALE_S, 0.0), 1.0)
    out[row, fleet + 3] = 0.0
    if chosen >= 0 and copy.busy_cores > 0:
        vm = vm_at(copy, victim(copy, chosen, False))
        out[row, fleet + 3] = min(max((vm.cores - vm.free - vm.starting) / copy.busy_cores, 0.0), 1.0)
