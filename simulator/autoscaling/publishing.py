"""Turns obs-7 of one copy into what the published simulator shows (autoscaler specification §8, rows 8 to 12)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.layout import Copy
from simulator.autoscaling.memory import settings_of, share_at
from simulator.autoscaling.reference.compat import LOW_PERCENTILE

_LOW_SHARE = LOW_PERCENTILE / 100.0


@compiled
def _lowest(shares: int, n: int) -> float:
    """Return the 0.9th percentile of n sorted shares at rank 0.009 (n + 1), counted from 1."""
    rank = _LOW_SHARE * (n + 1)
    if rank < 1.0:
        return float(share_at(shares, 0).share)
    below = int(rank)
    low, high = share_at(shares, below - 1).share, share_at(shares, min(below + 1, n) - 1).share
    return float(low + (rank - below) * (high - low))


@compiled
def _ninetieth(shares: int, n: int) -> float:
    """Return the 90th percentile of n sorted shares as numpy rounds it: from the nearer of its neighbours."""
    rank = (n - 1) * 0.9
    below = int(rank)
    low, high = share_at(shares, below).share, share_at(shares, min(below + 1, n - 1)).share
    beyond = rank - below
    return float(low + (high - low) * beyond if beyond < 0.5 else high - (high - low) * (1.0 - beyond))


@compiled
def _percentile(copy: Copy, shares: int, n: int) -> float:
    if n == 0:
        return 0.0
    share: float = _lowest(shares, n) if settings_of(copy).low_percentile else _ninetieth(shares, n)
    return min(max(share, 0.0), 1.0)


@compiled
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
