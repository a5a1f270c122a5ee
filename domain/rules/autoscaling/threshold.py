"""The threshold rule: one step up or down on the mean CPU, the published comparison (autoscaler specification §9.2)."""

from __future__ import annotations


def threshold_step(
    cpu_mean: float, high: float, low: float, periods: int, streak_high: int, streak_low: int
) -> tuple[int, int, int]:
    """Return (delta, streak_high, streak_low) after one more evaluation period.

    cpu_mean: mean CPU of the managed VMs in the period just ended, 0..1. high, low: thresholds; `low == high` is the
    published form, `low < high` adds hysteresis. periods: consecutive periods beyond a threshold that are needed.
    streak_high, streak_low: consecutive periods so far (0 at the start). delta is +1, -1 or 0 and applies to every
    group; limits, minimum and cool-down are the caller's.

    A streak goes on until the CPU comes back, so that a change refused by a cool-down is proposed again as soon as it
    ends. A CPU of exactly the threshold, or nan, is beyond neither.
    """
    if cpu_mean > high:
        streak_high += 1
        streak_low = 0
    elif cpu_mean < low:
        streak_high = 0
        streak_low += 1
    else:
        streak_high = 0
        streak_low = 0
    if streak_high > 0 and streak_high >= periods:
        return 1, streak_high, streak_low
    if streak_low > 0 and streak_low >= periods:
        return -1, streak_high, streak_low
    return 0, streak_high, streak_low
