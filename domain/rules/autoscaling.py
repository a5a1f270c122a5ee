"""The queue rule: enough cores to clear the queue in time, idle VMs given back (autoscaler specification §9.4)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The agent passes plain lists: for a handful of types Python reads those five times as fast as arrays.
Floats = NDArray[np.float64] | list[float]
Ints = NDArray[np.int64] | list[int]
Rows = NDArray[np.int64] | list[list[int]]


def next_type(cores: Ints, sizes: Ints, maximum: Ints, need: float) -> int:
    """Return the largest type with room that the need fills, else the smallest with room; -1 without any."""
    best = -1
    for k in range(len(cores)):
        if sizes[k] >= maximum[k]:
            continue
        if best < 0:
            best = k
        elif cores[best] <= need:
            if cores[k] <= need and cores[k] > cores[best]:
                best = k
        elif cores[k] < cores[best]:
            best = k
    return best


def fill(need: float, cores: Ints, desired: Ints, maximum: Ints) -> None:
    """Add VMs to `desired`, in place, until `need` cores are covered or no type has room: see `queue_rule_multi`."""
    room = 0
    for k in range(len(cores)):
        room += max(maximum[k] - desired[k], 0) * cores[k]
    if need >= room:
        # The order of the types does not matter where all of them are filled.
        for k in range(len(cores)):
            desired[k] = max(desired[k], maximum[k])
        return
    while need > 0:
        best = next_type(cores, desired, maximum, need)
        # The same type is the next one for as long as the need fills it: as many at once.
        count = min(maximum[best] - desired[best], max(int(need // cores[best]), 1))
        desired[best] += count
        need -= count * cores[best]


def queue_rule_multi(
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    requested: Ints,
    booting: Ints,
    idle_long: Ints,
    minimum: Ints,
    maximum: Ints,
    free_cores: float,
    busy_cores: float = 0.0,
) -> Ints:
    """Return the desired number of VMs per type, int64 of shape (N,), any number of VMs at once.

    waiting_core_s: core-seconds of the jobs that wait. horizon_s: time in which they should be worked off. cores: cores
    of one VM per type. requested: VMs per type that exist or are under way. booting: those of them not yet ready.
    idle_long: ready VMs without a busy core for the idle period that a removal would take first. minimum, maximum:
    limits per type. free_cores: idle cores of ready VMs. busy_cores: busy cores that count as cover, because they take
    up waiting jobs as theirs end.

    The need is ceil(waiting_core_s / horizon_s) cores less those booting, free and busy. With busy_cores = 0 this is
    the specification's text; with all busy cores it is the stronger form, which does not order a second fleet for a
    queue that the first one is about to take up. Largest VMs first; a remainder smaller than every VM with room gets
    the smallest VM that covers it, so the overshoot stays below one smallest VM with room. When nothing waits, VMs idle
    for long are given back down to the minimum.
    """
    desired = requested.copy()
    if waiting_core_s > 0.0:
        need = max(math.ceil(waiting_core_s / horizon_s - 1e-9), 1) - free_cores - busy_cores
        for k in range(len(cores)):
            need -= booting[k] * cores[k]
        fill(need, cores, desired, maximum)
    else:
        for k in range(len(cores)):
            desired[k] = max(min(minimum[k], requested[k]), requested[k] - idle_long[k])
    return desired


def queue_rule_single(
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    requested: Ints,
    booting: Ints,
    idle_long: Ints,
    minimum: Ints,
    maximum: Ints,
    free_cores: float,
    busy_cores: float = 0.0,
) -> int:
    """Return one act-7 action index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one.

    Arguments are those of `queue_rule_multi`.

    One VM at a time: while more is needed, the largest VM with room that the need fills, else the smallest with room.
    When nothing waits, one VM of the largest type that has VMs idle for long.
    """
    best = -1
    if waiting_core_s > 0.0:
        need = max(math.ceil(waiting_core_s / horizon_s - 1e-9), 1) - free_cores - busy_cores
        for k in range(len(cores)):
            need -= booting[k] * cores[k]
        if need <= 0:
            return 0
        best = next_type(cores, requested, maximum, need)
        return 0 if best < 0 else 2 * best + 1
    for k in range(len(cores)):
        if idle_long[k] > 0 and requested[k] > minimum[k] and (best < 0 or cores[k] > cores[best]):
            best = k
    return 0 if best < 0 else 2 * best + 2


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
    aimed at. scale_in_factor: the low alarm is at `scale_in_factor * target` (0.9 as a rule). out_periods,
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


def signal_need(value: float, target: float, is_level: bool, ready_cores: float) -> float:
    """Return the cores that a signal asks for.

    value, target: in the signal's own unit, value >= 0, target > 0. is_level: the target is the value aimed at, which
    is taken to be inversely proportional to the cores: ready_cores * value / target. Else the value is the fleet's
    whole load and the target what one core carries: value / target.
    """
    return (ready_cores if is_level else 1.0) * value / target


def signal_tracking_step(
    need: float,
    held: float,
    cores: Ints,
    requested: Ints,
    minimum: Ints,
    maximum: Ints,
    scale_in_factor: float,
    out_periods: int,
    in_periods: int,
    above: int,
    below: int,
    may_shrink: bool,
) -> tuple[Ints, int, int]:
    """Return (desired VMs per type, above, below) after one more evaluation period.

    need: cores, the largest of all signals. held: cores that carry load or will, those under way included, so that a
    growth is proposed once. cores, requested, minimum, maximum: as of `queue_rule_multi`. scale_in_factor: nothing is
    removed while the need is at this share of what is held or more. out_periods, in_periods: consecutive periods needed
    above what is held, or below that share. above, below: consecutive periods so far. may_shrink: False where not all
    VMs are ready or a signal is absent that forbids it; the streak then starts again.

    Growth fills the need as the queue rule does. A removal takes whole VMs, largest first, and leaves the need covered.
    """
    above = above + 1 if need > held + 1e-9 else 0
    below = below + 1 if may_shrink and need < scale_in_factor * held else 0
    desired = requested.copy()
    if above > 0 and above >= out_periods:
        fill(math.ceil(need - held - 1e-9), cores, desired, maximum)
    elif below > 0 and below >= in_periods:
        spare = held - need
        for k in sorted(range(len(cores)), key=lambda k: -cores[k]):
            fewer = max(min(desired[k] - minimum[k], int((spare + 1e-9) // cores[k])), 0)
            desired[k] -= fewer
            spare -= fewer * cores[k]
    return desired, above, below


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


MOST_CANDIDATES = 32
"""Rows that `candidate_targets` may write: enough for twelve VM types."""
HORIZON_FACTORS = (0.2, 0.4, 2.0 / 3.0, 1.0, 1.5, 3.0)
"""The horizons of the candidates, as multiples of the rule's own."""
PREPARED_SHARE = 0.6
"""How much of the announced work the rule counts as waiting: measured on batches, what costs least in all."""
PREPARING_SHARES = (0.35, 0.8, 1.0)
"""How much of it the candidates that prepare otherwise count."""


def cheapest_split(need: float, cores: Ints, prices: Floats, requested: Ints, maximum: Ints) -> Ints:
    """Return the desired number of VMs per type that covers `need` cores at the lowest price per core.

    Arguments are those of `queue_rule_multi`; prices: dollars per hour of one VM per type. The type with the lowest
    price per core first, the larger one where two are equal; the remainder goes to the VM that costs least in all and
    covers it, or to the next of the cheapest type when none does.
    """
    desired = requested.copy()
    room = 0
    for k in range(len(cores)):
        room += max(maximum[k] - desired[k], 0) * cores[k]
    if need >= room:
        for k in range(len(cores)):
            desired[k] = max(desired[k], maximum[k])
        return desired
    while need > 0:
        best, largest = -1, 0
        for k in range(len(cores)):
            if desired[k] >= maximum[k]:
                continue
            largest = max(largest, cores[k])
            if best < 0:
                best = k
                continue
            whole, whole_best = cores[k] >= need, cores[best] >= need
            if whole and whole_best:
                if prices[k] < prices[best]:
                    best = k
            elif whole or whole_best:
                # One that covers the rest, beside what the other would cost for the same cores.
                cover, part = (k, best) if whole else (best, k)
                best = cover if prices[cover] <= prices[part] * need / cores[part] else part
            else:
                each, each_best = prices[k] * cores[best], prices[best] * cores[k]
                if each < each_best or (each == each_best and cores[k] > cores[best]):
                    best = k
        # Nothing changes the choice until a single VM could cover the rest: as many at once.
        count = min(maximum[best] - desired[best], max(math.ceil((need - largest) / cores[best]), 1))
        desired[best] += count
        need -= count * cores[best]
    return desired


def add_candidate(target: Ints, out: Rows, count: int) -> int:
    """Write a target into the next row of `out` unless it is there already or no row is left; return the rows used."""
    if count >= len(out):
        return count
    for row in range(count):
        same = True
        for k in range(len(target)):
            if out[row][k] != target[k]:
                same = False
                break
        if same:
            return count
    for k in range(len(target)):
        out[count][k] = target[k]
    return count + 1


def candidate_targets(
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    prices: Floats,
    requested: Ints,
    booting: Ints,
    idle_long: Ints,
    idle: Ints,
    minimum: Ints,
    maximum: Ints,
    free_cores: float,
    busy_cores: float,
    announced_core_s: float,
    out: Rows,
) -> int:
    """Write whole-fleet targets worth comparing into the rows of `out` and return how many there are, 1 or more.

    Arguments are those of `queue_rule_multi`; a type that may not change now has requested as its minimum or maximum.
    prices: dollars per hour of one VM per type. idle: as idle_long, of VMs idle now, however long. announced_core_s:
    core-seconds announced for the time that a new VM takes to boot, 0 for none. out: int64 of shape (MOST_CANDIDATES,
    N).

    Row 0 is the queue rule's own choice, which counts PREPARED_SHARE of the announced work as waiting; then what it
    would choose without that, and to change nothing, as far as they differ. While jobs wait: for each
    horizon of HORIZON_FACTORS the rule's split, the one with the lowest price per core, the rule's without the largest
    type that it adds and without the smallest. When nothing waits: the idle VMs of one type, all of one type above its
    minimum (busy ones drain), and all above the minimum. Where work is announced, also: the rule's split for other
    shares of it, and for the rule's own share the one with the lowest price per core. No target is below the minimum
    (where the fleet is not) or above the maximum.
    """
    kinds = len(cores)
    counted_core_s = waiting_core_s + PREPARED_SHARE * announced_core_s
    rule = queue_rule_multi(
        counted_core_s, horizon_s, cores, requested, booting, idle_long, minimum, maximum, free_cores, busy_cores
    )
    count = add_candidate(rule, out, 0)
    if announced_core_s > 0.0:
        blind = queue_rule_multi(
            waiting_core_s, horizon_s, cores, requested, booting, idle_long, minimum, maximum, free_cores, busy_cores
        )
        count = add_candidate(blind, out, count)
    count = add_candidate(requested, out, count)
    covered = free_cores + busy_cores
    for k in range(kinds):
        covered += booting[k] * cores[k]
    if waiting_core_s > 0.0:
        for factor in HORIZON_FACTORS:
            need = max(math.ceil(waiting_core_s / (factor * horizon_s) - 1e-9), 1) - covered
            if need <= 0:
                # The rule changes nothing, and neither does any other split: that is there already.
                continue
            target = requested.copy()
            fill(need, cores, target, maximum)
            count = add_candidate(target, out, count)
            count = add_candidate(cheapest_split(need, cores, prices, requested, maximum), out, count)
            largest = smallest = -1
            for k in range(kinds):
                if target[k] > requested[k]:
                    if largest < 0 or cores[k] > cores[largest]:
                        largest = k
                    if smallest < 0 or cores[k] < cores[smallest]:
                        smallest = k
            for without in (largest, smallest):
                if without >= 0:
                    bound, other = maximum.copy(), requested.copy()
                    bound[without] = requested[without]
                    fill(need, cores, other, bound)
                    count = add_candidate(other, out, count)
    else:
        least = requested.copy()
        for k in range(kinds):
            least[k] = min(max(minimum[k], 0), requested[k])
        for k in range(kinds):
            one = requested.copy()
            one[k] = max(least[k], requested[k] - idle[k])
            count = add_candidate(one, out, count)
            one[k] = least[k]
            count = add_candidate(one, out, count)
        count = add_candidate(least, out, count)
    if announced_core_s > 0.0:
        for share in PREPARING_SHARES:
            core_s = waiting_core_s + share * announced_core_s
            target = queue_rule_multi(
                core_s, horizon_s, cores, requested, booting, idle_long, minimum, maximum, free_cores, busy_cores
            )
            count = add_candidate(target, out, count)
        need = max(math.ceil(counted_core_s / horizon_s - 1e-9), 1) - covered
        count = add_candidate(cheapest_split(need, cores, prices, requested, maximum), out, count)
    return count
