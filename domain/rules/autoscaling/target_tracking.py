"""Target tracking: the size that brings mean CPU to a target, as cloud groups do it (autoscaler specification §9.3)."""

from __future__ import annotations

import math


def target_tracking_step(
    current: int,
    cpu_mean: float,
    target: float,
    scale_in_factor: float,
    out_periods: int,
    in_periods: int,
    above: int,
    below: int,
    warming: bool,
) -> tuple[int, int, int]:
    """Return (desired, above, below) for one group after one more evaluation period.

    current: VMs of the group whose CPU is in the mean (ready and warm). cpu_mean: their mean CPU, 0..1. target: CPU
    aimed at. scale_in_factor: the low alarm stands at `scale_in_factor * target` (0.9 as a rule). out_periods,
    in_periods: consecutive periods needed above the target, or below the low alarm (3 and 15 as a rule). above, below:
    consecutive periods so far (0 at the start). warming: a VM of the group is still booting or warming up.

    desired == current means: leave the group as it is. A greater value is a size to reach counting VMs under way, so
    the caller takes max(requested, desired); a smaller one is a size to shrink to, and never comes while the group is
    warming. Streaks go on until the CPU comes back; nan ends both.
    """
    if cpu_mean > target:
        above += 1
    else:
        above = 0
    if cpu_mean < scale_in_factor * target:
        below += 1
    else:
        below = 0
    # current * cpu / target of exactly 3 must not become 4 because the quotient was 3.0000000000000004.
    wanted = current * cpu_mean / target
    if above > 0 and above >= out_periods:
        return max(current, math.ceil(wanted - 1e-9)), above, below
    if below > 0 and below >= in_periods and not warming:
        return min(current, math.ceil(wanted - 1e-9)), above, below
    return current, above, below
