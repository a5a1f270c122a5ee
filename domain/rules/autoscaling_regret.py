"""A guard over a scorer: a small twin plays the queue rule on the minutes that were lived, and the rule takes over.

The twin has two parts. One follows the fleet: minutes left of its running cores, from arrivals, starts and busy cores.
The other is the fleet of the rule. It begins as a copy of the first in the minute in which the scorer first decides
otherwise, carries out the rule's orders on the same jobs, and ends when both fleets are alike, or after APART_MIN: the
error of the twin grows with its age, that of a short comparison does not add up.

Per minute, with d the dollars of rent and waiting of the fleet and r those of the rule's fleet,

    ahead' = k ahead + d - r,    cost' = k cost + r,    k = exp(-1 / MEMORY_MIN)

and the rule decides for HELD_MIN where ahead > SHARE cost, and on, RETRY_MIN at a time, until ahead <= SHARE cost / 2.

Assumed are one-core jobs that are alike within a minute, boots and job lengths at their mean, busy cores anywhere in
the fleet, and a cool-down for each type and direction. The functions are leaves in 64 bits and are compiled unchanged
by the simulator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.rules.autoscaling import PREPARED_SHARE, queue_rule_multi
from domain.units import HOUR_S, MINUTE_S

# The agent passes plain lists, as to `domain.rules.autoscaling`.
Floats = NDArray[np.float64] | list[float]
Ints = NDArray[np.int64] | list[int]

SHARE = 0.04
"""Excess over the rule's cost from which on the rule decides."""
HELD_MIN, RETRY_MIN = 240.0, 10.0
APART_MIN = 90.0
LOOK_MIN = 30.0
"""Minutes between two looks at the excess: costs and savings of an order do not show at the same time."""
MEMORY_MIN = 1440.0

WIDTHS_MIN = (1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0)
"""Running cores are counted by minutes left, in steps of these widths; a minute moves 1 / width of a step down."""
BINS = len(WIDTHS_MIN)
LONGEST_BOOT_MIN = 12
APART, AHEAD, COST, HELD, CLOCK, LIVED_JOBS, LIVED_WORK, JOBS, WORK = range(9)
"""Of the twin: minutes of the rule's fleet, 0 without one; ahead; cost; minutes for which the rule still decides;
minutes since the last look; waiting jobs and core-seconds of the fleet, and of the rule's."""
LIVED, RUNNING, TYPES = 9, 9 + BINS, 9 + 2 * BINS
"""Where running cores of the fleet begin, those of the rule's, and its types, of TYPE_WIDTH numbers each."""
READY, COOLING_OUT, COOLING_IN, IDLE_LONG, BOOTING = range(5)
TYPE_WIDTH = BOOTING + LONGEST_BOOT_MIN


def twin_size(kinds: int) -> int:
    """Return the length of the twin of a fleet with this number of VM types; all of it is 0 at first."""
    return TYPES + kinds * TYPE_WIDTH


def drain(twin: Floats, at: int) -> None:
    """Let a minute pass for the running cores that begin at a place."""
    for step in range(BINS):
        moved = twin[at + step] / WIDTHS_MIN[step]
        twin[at + step] -= moved
        if step > 0:
            twin[at + step - 1] += moved


def start(twin: Floats, at: int, jobs: float, job_core_s: float, most: float) -> None:
    """Add the cores of jobs that started in the minute, at most `most`: with less than a minute each, some are over."""
    minutes = max(job_core_s / MINUTE_S, 1e-3)
    cores, left, high, step = min(jobs * min(minutes, 1.0), most), max(minutes - 0.5, 0.5), WIDTHS_MIN[0], 0
    while left > high and step < BINS - 1:
        step += 1
        high += WIDTHS_MIN[step]
    above = 0.0 if step == 0 else min(1.0 - (high - left) / WIDTHS_MIN[step], 1.0)
    twin[at + step] += cores * above if step > 0 else cores
    if step > 0:
        twin[at + step - 1] += cores * (1.0 - above)


def running(twin: Floats, at: int) -> float:
    """Return the running cores that begin at a place."""
    total = 0.0
    for step in range(BINS):
        total += twin[at + step]
    return total


def follow(
    twin: Floats, waiting: float, waiting_core_s: float, arrived: float, arrived_core_s: float, busy_cores: float
) -> float:
    """Bring the part that follows the fleet up to the minute that ended; return the jobs that waited in it."""
    before = twin[LIVED_JOBS]
    jobs, work = before + arrived, twin[LIVED_WORK] + arrived_core_s
    drain(twin, LIVED)
    if jobs > waiting:
        start(twin, LIVED, jobs - waiting, work / jobs, math.inf)
    total = running(twin, LIVED)
    for step in range(BINS):
        # Busy cores are known, and their minutes left are not: the shares of the steps are kept.
        twin[LIVED + step] *= busy_cores / total if total > 0.0 else 0.0
    if total <= 0.0:
        twin[LIVED] = busy_cores
    twin[LIVED_JOBS], twin[LIVED_WORK] = waiting, waiting_core_s
    return 0.5 * (before + waiting)


def play_on(
    twin: Floats, cores: Ints, prices: Floats, arrived: float, arrived_core_s: float, waiting_price: float
) -> float:
    """Let a minute pass in the rule's fleet; return its dollars an hour."""
    capacity = rent = 0.0
    for k in range(len(cores)):
        at = TYPES + k * TYPE_WIDTH
        vms = twin[at + READY]
        for minute in range(LONGEST_BOOT_MIN):
            vms += twin[at + BOOTING + minute]
        rent += vms * prices[k]
        twin[at + READY] += twin[at + BOOTING]
        for minute in range(LONGEST_BOOT_MIN - 1):
            twin[at + BOOTING + minute] = twin[at + BOOTING + minute + 1]
        twin[at + BOOTING + LONGEST_BOOT_MIN - 1] = 0.0
        capacity += twin[at + READY] * cores[k]
        twin[at + COOLING_OUT] = max(twin[at + COOLING_OUT] - 1.0, 0.0)
        twin[at + COOLING_IN] = max(twin[at + COOLING_IN] - 1.0, 0.0)
    before = twin[JOBS]
    jobs, work = before + arrived, twin[WORK] + arrived_core_s
    drain(twin, RUNNING)
    free = max(capacity - running(twin, RUNNING), 0.0)
    if jobs > 0.0 and free > 0.0:
        each = work / jobs
        # A core takes up several jobs in a minute where they are short.
        begun = min(jobs, free * max(MINUTE_S / max(each, 1e-3), 1.0))
        start(twin, RUNNING, begun, each, free)
        jobs -= begun
        work = jobs * each
    twin[JOBS], twin[WORK] = jobs, work
    return rent + waiting_price * 0.5 * (before + jobs)


def take_in(
    twin: Floats,
    waiting: float,
    waiting_core_s: float,
    arrived: float,
    arrived_core_s: float,
    busy_cores: float,
    cores: Ints,
    prices: Floats,
    requested: Ints,
    waiting_price: float,
) -> bool:
    """Bring the twin up to the minute that ended, and return whether the rule decides the next one.

    Arguments are those of `domain.observations.autoscaling_scorer.observe_state`. arrived, arrived_core_s: jobs that
    arrived in the minute and their core-seconds. requested: VMs of the minute, ready or under way.
    """
    rent = 0.0
    for k in range(len(cores)):
        rent += requested[k] * prices[k]
    waited = follow(twin, waiting, waiting_core_s, arrived, arrived_core_s, busy_cores)
    lived = (rent + waiting_price * waited) * MINUTE_S / HOUR_S
    rule = lived
    if twin[APART] > 0.0:
        rule = play_on(twin, cores, prices, arrived, arrived_core_s, waiting_price) * MINUTE_S / HOUR_S
    keep = math.exp(-1.0 / MEMORY_MIN)
    twin[AHEAD] = keep * twin[AHEAD] + lived - rule
    twin[COST] = keep * twin[COST] + rule
    twin[CLOCK] += 1.0
    if twin[HELD] > 0.0:
        twin[HELD] -= 1.0
        if twin[HELD] <= 0.0 and twin[AHEAD] > 0.5 * SHARE * twin[COST]:
            twin[HELD] = RETRY_MIN
    elif twin[CLOCK] >= LOOK_MIN:
        twin[CLOCK] = 0.0
        if twin[AHEAD] > SHARE * twin[COST]:
            twin[HELD] = HELD_MIN
    return twin[HELD] > 0.0


def order(twin: Floats, target: Ints, requested: Ints, boots: Ints, cooldown_s: float) -> None:
    """Carry out a target in the rule's fleet. requested: its VMs per type; boots: minutes, 1..LONGEST_BOOT_MIN."""
    for k in range(len(target)):
        at, change = TYPES + k * TYPE_WIDTH, target[k] - requested[k]
        if change > 0:
            twin[at + BOOTING + boots[k] - 1] += change
            twin[at + COOLING_OUT] = cooldown_s / MINUTE_S
        elif change < 0:
            twin[at + READY] = max(twin[at + READY] + change, 0.0)
            twin[at + IDLE_LONG] = max(twin[at + IDLE_LONG] + change, 0.0)
            twin[at + COOLING_IN] = cooldown_s / MINUTE_S


def begin(
    twin: Floats, ready: Ints, booting: Ints, idle_long: Ints, cooling_out_s: Floats, cooling_in_s: Floats, boots: Ints
) -> None:
    """Copy the fleet into the rule's; boots: minutes of a boot per type. Booting VMs are spread over that time."""
    twin[APART], twin[JOBS], twin[WORK] = 1.0, twin[LIVED_JOBS], twin[LIVED_WORK]
    for step in range(BINS):
        twin[RUNNING + step] = twin[LIVED + step]
    for k in range(len(ready)):
        at, left = TYPES + k * TYPE_WIDTH, booting[k]
        twin[at + READY], twin[at + IDLE_LONG] = ready[k], idle_long[k]
        twin[at + COOLING_OUT], twin[at + COOLING_IN] = cooling_out_s[k] / MINUTE_S, cooling_in_s[k] / MINUTE_S
        for minute in range(LONGEST_BOOT_MIN):
            share = left // (boots[k] - minute) if minute < boots[k] else 0
            twin[at + BOOTING + minute] = share
            left -= share


def orders_of_rule(
    twin: Floats,
    waiting_core_s: float,
    horizon_s: float,
    idle_s: float,
    cores: Ints,
    floor: Ints,
    limits: Ints,
    boots: Ints,
    cooldown_s: float,
) -> None:
    """Carry out the orders of the queue rule in its fleet. A VM is idle where none of its cores happens to be busy."""
    capacity = 0.0
    for k in range(len(cores)):
        capacity += twin[TYPES + k * TYPE_WIDTH + READY] * cores[k]
    busy = min(running(twin, RUNNING), capacity)
    load = busy / capacity if capacity > 0.0 else 0.0
    requested, booting, idle_long = floor.copy(), floor.copy(), floor.copy()
    minimum, maximum = floor.copy(), limits.copy()
    for k in range(len(cores)):
        at = TYPES + k * TYPE_WIDTH
        coming = 0.0
        for minute in range(LONGEST_BOOT_MIN):
            coming += twin[at + BOOTING + minute]
        booting[k] = int(coming)
        requested[k] = int(twin[at + READY] + coming)
        idle = twin[at + READY] * (1.0 - load) ** cores[k]
        longer = idle - twin[at + IDLE_LONG]
        twin[at + IDLE_LONG] += longer * min(MINUTE_S / max(idle_s, MINUTE_S), 1.0) if longer > 0.0 else longer
        idle_long[k] = int(twin[at + IDLE_LONG] + 0.5)
        if twin[at + COOLING_OUT] > 0.0:
            maximum[k] = min(requested[k], limits[k])
        if twin[at + COOLING_IN] > 0.0:
            minimum[k] = max(requested[k], floor[k])
    target = queue_rule_multi(
        waiting_core_s, horizon_s, cores, requested, booting, idle_long, minimum, maximum, capacity - busy, busy
    )
    order(twin, target, requested, boots, cooldown_s)


def is_alike(twin: Floats, ready: Ints, booting: Ints) -> bool:
    """Whether the rule's fleet has as many VMs as the fleet, and as many jobs wait, within 2 %."""
    if abs(twin[JOBS] - twin[LIVED_JOBS]) > 0.5 + 0.02 * twin[LIVED_JOBS]:
        return False
    for k in range(len(ready)):
        at = TYPES + k * TYPE_WIDTH
        coming = 0.0
        for minute in range(LONGEST_BOOT_MIN):
            coming += twin[at + BOOTING + minute]
        if twin[at + READY] != ready[k] or coming != booting[k]:
            return False
    return True


def take_orders(
    twin: Floats,
    rule: Ints,
    chose_rule: bool,
    announced_core_s: float,
    horizon_s: float,
    idle_s: float,
    cores: Ints,
    ready: Ints,
    booting: Ints,
    requested: Ints,
    idle_long: Ints,
    floor: Ints,
    limits: Ints,
    cooling_out_s: Floats,
    cooling_in_s: Floats,
    boot_low_s: Floats,
    boot_high_s: Floats,
    cooldown_s: float,
) -> None:
    """Let the rule's fleet carry out the rule's orders of this minute, begin it, or end it.

    rule: the rule's own target for the fleet. chose_rule: whether that was chosen. idle_s: of the queue rule. The other
    arguments are those of `observe_state` and `candidate_targets`.
    """
    boots = floor.copy()
    for k in range(len(cores)):
        minutes = int(0.5 * (boot_low_s[k] + boot_high_s[k]) / MINUTE_S + 0.5)
        boots[k] = min(max(minutes, 1), LONGEST_BOOT_MIN)
    if twin[APART] > APART_MIN or (twin[APART] > 0.0 and chose_rule and is_alike(twin, ready, booting)):
        twin[APART] = twin[JOBS] = twin[WORK] = 0.0
        for place in range(RUNNING, len(twin)):
            twin[place] = 0.0
    if twin[APART] > 0.0:
        twin[APART] += 1.0
        waiting_core_s = twin[WORK] + PREPARED_SHARE * announced_core_s
        orders_of_rule(twin, waiting_core_s, horizon_s, idle_s, cores, floor, limits, boots, cooldown_s)
    elif not chose_rule:
        begin(twin, ready, booting, idle_long, cooling_out_s, cooling_in_s, boots)
        order(twin, rule, requested, boots, cooldown_s)
