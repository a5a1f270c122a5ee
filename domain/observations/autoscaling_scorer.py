"""What a scorer of whole-fleet targets sees: features of the fleet's state and of each candidate.

Nothing here depends on how many VM types there are or in which order they come. Sizes are shares of the fleet at its
limits, ratios, or logarithms, so that one scorer serves fleets of any size. The functions are leaves in 64 bits, as in
`domain.observations.autoscaling`, and are compiled unchanged by the simulator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.units import HOUR_S, MINUTE_S

# The agent passes plain lists, as to `domain.rules.autoscaling`.
Floats = NDArray[np.float64] | list[float]
Ints = NDArray[np.int64] | list[int]
FloatRows = NDArray[np.float64] | list[list[float]]
Rows = NDArray[np.int64] | list[list[int]]

SCORER_VERSION = "scorer/3"
WINDOWS_MIN = (3.0, 10.0, 30.0, 120.0, 480.0)
"""Time constants of the moving averages, in minutes."""
TRACKED = ("core_s", "jobs", "batches")
"""What is averaged over each window: core-seconds and jobs that arrived per minute, and minutes with an arrival."""
ANNOUNCED_WITHIN_MIN = (5.0, 15.0, 40.0)
"""How far ahead announced work is counted; what lies beyond the last is not seen."""
ANNOUNCED_NAMES = (
    *(f"announced_{window:g}" for window in ANNOUNCED_WITHIN_MIN),
    *("announced_overdue", "announced_next", "announcements_given"),
)
ANNOUNCED = len(ANNOUNCED_NAMES)
OVERDUE_GRACE_S = 1_200.0
"""How long announced work that has not come is still expected. A batch that is late is seldom later; after 20 minutes a
fleet that waits for it has cost more than to boot it again."""
STATE_FEATURES = (
    *("waiting_jobs", "waiting_core_min", "queue_of_fleet", "need_to_cover", "busy_of_ready", "free_of_ready"),
    *("ready", "booting", "booting_of_requested", "above_minimum", "requested_cores", "fleet_cores", "job_core_s"),
    *("oldest_wait", "oldest_wait_log", "cooling_out", "cooling_in", "cooling_out_s", "cooling_in_s", "boot_s"),
    *("boot_range", "waiting_price", "fleet_price", "horizon", "cooldown_s", "idle_of_ready", "since_arrival"),
    "idle_minutes",
    *(f"{name}_{window:g}" for window in WINDOWS_MIN for name in ("load", "jobs", "batches", "batch_size")),
    *ANNOUNCED_NAMES,
)
CANDIDATE_FEATURES = (
    *("is_rule", "is_hold", "added", "added_log", "removed", "removed_log", "cover_to_need", "price_change"),
    *("added_price", "cores_to_rule", "cores_to_rule_log", "price_to_rule", "vms_added", "vms_to_rule"),
    *("busy_removed", "idle_removed", "time_to_clear", "largest_added", "changed", "cover_to_announced"),
)
STATES, CANDIDATES = len(STATE_FEATURES), len(CANDIDATE_FEATURES)
MEMORY = len(WINDOWS_MIN) * len(TRACKED) + 2
"""Entries of a scorer's memory: the moving averages, minutes since an arrival, minutes idle above the minimum."""
CAUTION = 1.5
"""Standard deviations over the voters by which a score is below their mean: where they disagree, the rule decides.
Of 0, 0.5, 1, 1.5 and 2 the one with the lowest cost on 420 episodes of the selection, some in shifted worlds."""
GAIN_MIN = 25.0
"""Minutes that a candidate's gain over the rule's choice is counted for: its own and 24 under the rule."""
SINCE_PLACE, IDLE_PLACE = MEMORY - 2, MEMORY - 1


def remember(
    memory: Floats,
    arrived_jobs: float,
    arrived_core_s: float,
    waiting: float,
    idle_cores: float,
    above_minimum: float,
) -> None:
    """Bring a scorer's memory up to the minute that has ended.

    arrived_jobs, arrived_core_s: jobs that arrived in it and their core-seconds. waiting: jobs that wait. idle_cores:
    cores of ready VMs without a busy core. above_minimum: cores of VMs beyond the minimum.
    """
    for place in range(len(WINDOWS_MIN)):
        keep = math.exp(-1.0 / WINDOWS_MIN[place])
        at = 3 * place
        memory[at] = keep * memory[at] + (1.0 - keep) * arrived_core_s
        memory[at + 1] = keep * memory[at + 1] + (1.0 - keep) * arrived_jobs
        memory[at + 2] = keep * memory[at + 2] + (1.0 - keep) * (1.0 if arrived_jobs > 0.0 else 0.0)
    memory[SINCE_PLACE] = 0.0 if arrived_jobs > 0.0 else memory[SINCE_PLACE] + 1.0
    memory[IDLE_PLACE] = (
        memory[IDLE_PLACE] + 1.0 if waiting <= 0.0 and idle_cores > 0.0 and above_minimum > 0.0 else 0.0
    )


def announced_core_s(announcements: FloatRows, after_s: float, until_s: float) -> float:
    """Return the core-seconds of jobs announced for the time after `after_s` and until `until_s`.

    announcements: rows of `domain.announcements.rows_of`, on the same clock. Jobs come evenly over `over_s`.
    """
    total = 0.0
    for row in range(len(announcements)):
        one = announcements[row]
        at, over_s = one[0], one[3]
        if over_s > 0.0:
            share = max(min(at + over_s, until_s) - max(at, after_s), 0.0) / over_s
        else:
            share = 1.0 if after_s < at <= until_s else 0.0
        total += share * one[1] * one[2]
    return total


def fold_announcements(
    announcements: FloatRows, given: float, now_s: float, since_arrival_min: float, out: Floats
) -> None:
    """Fold announcements into ANNOUNCED_NAMES, float64 of shape (ANNOUNCED,), whatever their order.

    announcements: as in `announced_core_s`. given: 1 where announcements are made at all, 0 where there are never
    any. since_arrival_min: minutes without an arrival (`since_arrival` of a scorer's memory).

    Written are core-seconds due within each of ANNOUNCED_WITHIN_MIN; core-seconds overdue; how near the next job is, 1
    for now and 0 for the last window's end or later, in its logarithm; and `given`. Work whose time has passed counts
    as come. Overdue is what was due in minutes in which nothing came at all, the first of them left out because clocks
    differ, for OVERDUE_GRACE_S; from then on it counts no more.
    """
    last = len(ANNOUNCED_WITHIN_MIN)
    for place in range(last):
        out[place] = announced_core_s(announcements, now_s, now_s + MINUTE_S * ANNOUNCED_WITHIN_MIN[place])
    silent_s = min(MINUTE_S * (since_arrival_min - 1.0), OVERDUE_GRACE_S)
    out[last] = announced_core_s(announcements, now_s - silent_s, now_s) if silent_s > 0.0 else 0.0
    nearest = math.inf
    for row in range(len(announcements)):
        one = announcements[row]
        if one[0] + one[3] > now_s:
            nearest = min(nearest, max(one[0] - now_s, 0.0))
    far = math.log1p(ANNOUNCED_WITHIN_MIN[last - 1])
    out[last + 1] = max(1.0 - math.log1p(nearest / MINUTE_S) / far, 0.0) if nearest < math.inf else 0.0
    out[last + 2] = given


def lead_of(cores: Ints, limits: Ints, boot_low_s: Floats, boot_high_s: Floats, step_s: float) -> float:
    """Return how long before work comes a fleet prepares for it: a boot on average, and half a step.

    Per type: cores, limits, boot times; a type counts by the cores that it may have. step_s: between decisions.
    """
    most = boots = 0.0
    for k in range(len(cores)):
        most += limits[k] * cores[k]
        boots += limits[k] * cores[k] * 0.5 * (boot_low_s[k] + boot_high_s[k])
    return boots / max(most, 1.0) + 0.5 * step_s


def observe_state(
    memory: Floats,
    waiting: float,
    waiting_core_s: float,
    oldest_wait_s: float,
    horizon_s: float,
    cores: Ints,
    prices: Floats,
    ready: Ints,
    booting: Ints,
    idle: Ints,
    minimum: Ints,
    limits: Ints,
    cooling_out_s: Floats,
    cooling_in_s: Floats,
    cooldown_s: float,
    boot_low_s: Floats,
    boot_high_s: Floats,
    free_cores: float,
    busy_cores: float,
    waiting_price: float,
    announced: Floats,
    out: Floats,
) -> None:
    """Write STATE_FEATURES into `out`, float64 of shape (STATES,).

    waiting: jobs; waiting_core_s: their core-seconds, as far as they are known. horizon_s: of the queue rule beside it.
    Per type: cores, prices (dollars per hour), ready, booting, idle (ready VMs without a busy core that a removal would
    take first), minimum, limits, cooling_*_s (seconds until it may grow, shrink), boot times. free_cores, busy_cores:
    of ready VMs. waiting_price: dollars per waiting job and hour. announced: of `fold_announcements`.
    """
    kinds = len(cores)
    most = least = has = coming = loose = rent = bound_out = bound_in = wait_out = wait_in = boots = spread = 0.0
    cheapest = math.inf
    for k in range(kinds):
        most += limits[k] * cores[k]
        least += minimum[k] * cores[k]
        has += ready[k] * cores[k]
        coming += booting[k] * cores[k]
        loose += min(idle[k], max(ready[k] + booting[k] - minimum[k], 0)) * cores[k]
        rent += (ready[k] + booting[k]) * prices[k]
        if limits[k] > 0:
            cheapest = min(cheapest, prices[k] / cores[k])
        share = limits[k] * cores[k]
        bound_out += share * (1.0 if cooling_out_s[k] > 0.0 else 0.0)
        bound_in += share * (1.0 if cooling_in_s[k] > 0.0 else 0.0)
        wait_out += share * cooling_out_s[k]
        wait_in += share * cooling_in_s[k]
        boots += share * 0.5 * (boot_low_s[k] + boot_high_s[k])
        spread += share * (boot_high_s[k] - boot_low_s[k])
    # Where no type may have a VM there is no price.
    cheapest = cheapest if cheapest < math.inf else 0.0
    most = max(most, 1.0)
    requested, cover = has + coming, free_cores + busy_cores + coming
    need = waiting_core_s / horizon_s
    mean_job = memory[3] / memory[4] if memory[4] > 1e-9 else 0.0
    if waiting > 0.0:
        mean_job = waiting_core_s / waiting
    per_core = rent / requested if requested > 0.0 else cheapest
    out[0] = math.log1p(waiting) / 7.0
    out[1] = math.log1p(waiting_core_s / MINUTE_S) / 8.0
    out[2] = min(waiting_core_s / (horizon_s * most), 4.0)
    out[3] = math.log((need + 1.0) / (cover + 1.0)) / 3.0
    out[4] = busy_cores / has if has > 0.0 else 0.0
    out[5] = free_cores / has if has > 0.0 else 0.0
    out[6] = min(has / most, 4.0)
    out[7] = min(coming / most, 4.0)
    out[8] = coming / requested if requested > 0.0 else 0.0
    out[9] = min((requested - least) / most, 4.0)
    out[10] = math.log1p(requested) / 6.0
    out[11] = math.log1p(most) / 8.0
    out[12] = math.log1p(mean_job) / 8.0
    out[13] = min(oldest_wait_s / horizon_s, 4.0)
    out[14] = math.log1p(oldest_wait_s / MINUTE_S) / 5.0
    out[15] = bound_out / most
    out[16] = bound_in / most
    out[17] = min(wait_out / most / 300.0, 3.0)
    out[18] = min(wait_in / most / 300.0, 3.0)
    out[19] = math.log1p(boots / most / MINUTE_S)
    out[20] = spread / max(boots, 1.0)
    out[21] = math.log(max(waiting_price, 1e-6) / max(cheapest, 1e-6))
    out[22] = min(per_core / max(cheapest, 1e-9) - 1.0, 4.0)
    out[23] = math.log(horizon_s / 300.0)
    out[24] = math.log1p(cooldown_s / 300.0)
    out[25] = loose / has if has > 0.0 else 0.0
    out[26] = math.log1p(memory[SINCE_PLACE]) / 5.0
    out[27] = math.log1p(memory[IDLE_PLACE]) / 5.0
    for place in range(len(WINDOWS_MIN)):
        core_s, jobs, batches = memory[3 * place], memory[3 * place + 1], memory[3 * place + 2]
        at = 28 + 4 * place
        out[at] = math.log1p(10.0 * core_s / (MINUTE_S * most))
        out[at + 1] = math.log1p(jobs) / 3.0
        out[at + 2] = batches
        out[at + 3] = math.log1p(jobs / batches) / 4.0 if batches > 1e-9 else 0.0
    at = 28 + 4 * len(WINDOWS_MIN)
    for place in range(len(ANNOUNCED_WITHIN_MIN) + 1):
        out[at + place] = math.log1p(announced[place] / (MINUTE_S * most))
    for place in range(len(ANNOUNCED_WITHIN_MIN) + 1, ANNOUNCED):
        out[at + place] = announced[place]


def observe_candidates(
    targets: Rows,
    count: int,
    waiting_core_s: float,
    horizon_s: float,
    cores: Ints,
    prices: Floats,
    requested: Ints,
    booting: Ints,
    idle: Ints,
    limits: Ints,
    free_cores: float,
    busy_cores: float,
    waiting_price: float,
    announced_core_s: float,
    out: FloatRows,
) -> None:
    """Write CANDIDATE_FEATURES of the first `count` rows of `targets` into `out`, float64 of shape (rows, CANDIDATES).

    targets, announced_core_s: of `candidate_targets`, the rule's own target first. requested: VMs per type that exist
    or are under way. The other arguments are those of `observe_state`.
    """
    kinds = len(cores)
    most = coming = loose = 0.0
    cheapest = math.inf
    for k in range(kinds):
        most += limits[k] * cores[k]
        coming += booting[k] * cores[k]
        loose += idle[k] * cores[k]
        if limits[k] > 0:
            cheapest = min(cheapest, prices[k] / cores[k])
    # Where no type may have a VM there is no price.
    cheapest = cheapest if cheapest < math.inf else 0.0
    most = max(most, 1.0)
    cover = free_cores + busy_cores + coming
    need = max(waiting_core_s / horizon_s - cover, 0.0)
    rule = targets[0]
    wanted = (waiting_core_s + announced_core_s) / horizon_s
    for row in range(count):
        target, seen = targets[row], out[row]
        added = removed = bought = price = to_rule = price_to_rule = vms = vms_to_rule = busy_out = idle_out = 0.0
        largest = changed = 0.0
        hold = True
        for k in range(kinds):
            change = target[k] - requested[k]
            away = target[k] - rule[k]
            if change == 0 and away == 0:
                continue
            price += change * prices[k]
            to_rule += away * cores[k]
            price_to_rule += away * prices[k]
            vms_to_rule += away
            if change != 0:
                hold = False
                changed += limits[k] * cores[k]
            if change > 0:
                added += change * cores[k]
                bought += change * prices[k]
                vms += change
                largest = max(largest, cores[k])
            else:
                removed -= change * cores[k]
                busy_out += max(-change - idle[k], 0) * cores[k]
                idle_out += min(-change, idle[k]) * cores[k]
        covered = cover + added - removed
        scale = max(waiting_price, 1e-6)
        seen[0] = 1.0 if row == 0 else 0.0
        seen[1] = 1.0 if hold else 0.0
        seen[2] = min(added / most, 4.0)
        seen[3] = math.log1p(added) / 6.0
        seen[4] = min(removed / most, 4.0)
        seen[5] = math.log1p(removed) / 6.0
        seen[6] = math.log((added + 1.0) / (need + 1.0)) / 3.0
        seen[7] = math.copysign(math.log1p(abs(price) / scale), price) / 5.0
        seen[8] = min(bought / added / max(cheapest, 1e-9) - 1.0, 4.0) if added > 0.0 else 0.0
        seen[9] = min(max(to_rule / max(need, 1.0), -3.0), 3.0)
        seen[10] = math.copysign(math.log1p(abs(to_rule)), to_rule) / 6.0
        seen[11] = math.copysign(math.log1p(abs(price_to_rule) / scale), price_to_rule) / 5.0
        seen[12] = math.log1p(vms) / 4.0
        seen[13] = math.copysign(math.log1p(abs(vms_to_rule)), vms_to_rule) / 4.0
        seen[14] = min(busy_out / max(busy_cores, 1.0), 4.0)
        seen[15] = idle_out / max(loose, 1.0)
        seen[16] = math.log1p(waiting_core_s / (max(covered, 1.0) * horizon_s))
        seen[17] = min(largest / max(need, 1.0), 3.0)
        seen[18] = changed / most
        seen[19] = math.log((max(covered, 0.0) + 1.0) / (wanted + 1.0)) / 3.0


def judge(votes: FloatRows, count: int, out: Floats) -> None:
    """Write the scores of the first `count` candidates into `out`, float64 of shape (rows,): 0 for the rule's own.

    votes: of each candidate and voter. A score is the mean of the votes, each less that voter's for the rule's choice,
    less CAUTION times the standard deviation of these differences.
    """
    rule = votes[0]
    for row in range(count):
        mine = votes[row]
        total = square = 0.0
        for voter in range(len(mine)):
            ahead = mine[voter] - rule[voter]
            total += ahead
            square += ahead * ahead
        mean = total / len(mine)
        out[row] = mean - CAUTION * math.sqrt(max(square / len(mine) - mean * mean, 0.0))


def gain_unit(requested_cores: float, need: float, cheapest_per_core: float) -> float:
    """Return the dollars in which a candidate's gain is counted: what the fleet's cover costs in GAIN_MIN minutes.

    requested_cores: of ready and booting VMs. need: cores that work off, within the rule's horizon, what waits and what
    a fleet prepares for. cheapest_per_core: lowest price of a core, dollars per hour, among types that may have a VM.
    """
    return max(cheapest_per_core, 1e-6) * max(requested_cores, need, 1.0) * GAIN_MIN * MINUTE_S / HOUR_S


def kept_to_rule(memory: Floats, idle_limit_min: float, announced: Floats) -> bool:
    """Whether the guard holds: VMs beyond the minimum have been idle so long that the rule decides.

    announced: of `fold_announcements`. The guard waits while work is due within 15 minutes or overdue: the rule, which
    sees the queue alone, would give back a fleet that is prepared. An announcement that comes to nothing therefore
    keeps a fleet for 35 minutes at most.
    """
    return bool(memory[IDLE_PLACE] >= idle_limit_min and announced[1] <= 0.0 and announced[3] <= 0.0)
