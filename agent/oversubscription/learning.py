"""What an hour teaches of a subscriber: its profile by hour of day, its VMs' own levels, and whether it has drifted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from agent.oversubscription.arrays import Floats, clipped, unclipped
from agent.oversubscription.memory import HOURS, KEPT_PEAKS, DaySums, HourSums, SubscriberMemory, VmMemory
from domain.rules.oversubscription.drift import WIDENED, PageHinkley, peak_variance_ratio
from domain.rules.oversubscription.usage import SD_FLOOR, fill_profile

DAY_H: Final = 24
WEEK_H: Final = 168
LONG_KEEP: Final = 0.5 ** (1.0 / 28.0)
"""What an hour of the day's statistics keep from one day to the next: half after four weeks."""
RECENT_KEEP: Final = 0.5 ** (1.0 / 3.5)
"""The same of those that stand in for the last seven days."""
ERROR_KEEP: Final = 0.5 ** (1.0 / (14 * 24))
JUDGED_AFTER_H: Final = 72.0
ASSUMED_MU, ASSUMED_SD = 0.5, 0.3
"""Usage of somebody of whom nothing is known, in a pool that knows nobody."""
LEAST_COUNT: Final = 2.0
DEFAULT_PERSISTENCE: Final = 0.85
LEARNT_AFTER_DAYS: Final = 30.0
QUIET_H: Final = 24
QUIET_BELOW: Final = 3.0


@dataclass(frozen=True, slots=True)
class Profiles:
    """What subscribers are believed to use, in the order of `names`: mu, sd before clipping (N, 24), and their moments.

    error: what the data leave open of the means (N, 24), one standard error, VMs' own levels counted.
    """

    names: tuple[str, ...]
    mu: Floats
    sd: Floats
    mean: Floats
    variance: Floats
    third: Floats
    error: Floats
    persistence: Floats

    def index(self, name: str) -> int:
        """Return the place of a subscriber; its own when it is unknown: the last, which is the pool's."""
        return self.names.index(name) if name in self.names else len(self.names)


def profiles_of(
    subscribers: Mapping[str, SubscriberMemory], hour: int, rho: float, persistence: float | None
) -> Profiles:
    """Return the profiles; row N, after the named ones, is that of the pool, for those of whom nothing is known."""
    names = tuple(sorted(subscribers))
    count = np.array([subscribers[name].long.count for name in names]).reshape(-1, HOURS)
    total = np.array([subscribers[name].long.total for name in names]).reshape(-1, HOURS)
    squares = np.array([subscribers[name].long.squares for name in names]).reshape(-1, HOURS)
    count = np.vstack((count, count.sum(axis=0)))
    total, squares = np.vstack((total, total.sum(axis=0))), np.vstack((squares, squares.sum(axis=0)))
    known = count >= LEAST_COUNT
    safe = np.where(known, count, 1.0)
    mean = np.where(known, total / safe, np.nan)
    # The count grows by VMs of one hour that share their owner's hour: with few, the spread is told too small.
    spread = np.where(known, np.maximum(squares / safe - mean * mean, 0.0) * safe / np.maximum(safe - 1.0, 1.0), np.nan)
    mean, spread = fill_profile(mean), fill_profile(spread)
    pool_mean = np.where(np.isnan(mean[-1]), ASSUMED_MU, mean[-1])
    pool_spread = np.where(np.isnan(spread[-1]), ASSUMED_SD**2, spread[-1])
    mean, spread = np.where(np.isnan(mean), pool_mean, mean), np.where(np.isnan(spread), pool_spread, spread)
    mu, sd = unclipped(np.clip(mean, 0.0, 1.0), np.maximum(spread, SD_FLOOR**2))
    wide = [WIDENED if subscribers[name].widened_until > hour else 1.0 for name in names]
    sd = sd * np.array([*wide, 1.0])[:, None]
    own = [persistence if persistence is not None else persistence_of(subscribers[name].days) for name in names]
    share = np.minimum(np.array([*own, DEFAULT_PERSISTENCE]), max(0.99 - rho, 0.0))
    first, variance, third = clipped(mu, sd)
    vms = np.array([max(subscribers[name].vm_hours / max(subscribers[name].history_h, 1.0), 1.0) for name in names])
    error = np.sqrt(variance / np.append(vms, max(vms.sum(), 1.0))[:, None])
    return Profiles(names, mu, sd, first, variance, third, error, share)


def persistence_of(sums: DaySums) -> float:
    """Return the share of variance that is each VM's own level, from sums over VM-days.

    The same analysis of variance as `posterior.estimate_persistence`; the usual share while there are few days.
    """
    if sums.days < LEARNT_AFTER_DAYS or sums.count <= sums.days:
        return DEFAULT_PERSISTENCE
    within = sums.within / (sums.count - sums.days)
    per_day = (sums.count - sums.count_squared / sums.count) / (sums.days - 1.0)
    overall = sums.weighted_mean / sums.count
    between_square = sums.weighted_square - sums.count * overall * overall
    between = (between_square / (sums.days - 1.0) - within) / per_day
    total = between + within
    return min(max(between / total, 0.0), 0.99) if total > 0.0 else 0.0


def with_day(sums: DaySums, vm: VmMemory) -> DaySums:
    """Return the sums with a VM's day that is over, one of at least two hours."""
    if vm.day_count < 2:
        return sums
    mean = vm.day_sum / vm.day_count
    return DaySums(
        days=sums.days + 1.0,
        count=sums.count + vm.day_count,
        count_squared=sums.count_squared + vm.day_count**2,
        within=sums.within + max(vm.day_squares - vm.day_count * mean * mean, 0.0),
        weighted_mean=sums.weighted_mean + vm.day_count * mean,
        weighted_square=sums.weighted_square + vm.day_count * mean * mean,
    )


def with_hour(sums: HourSums, hour_of_day: int, usages: Sequence[float], keep: float) -> HourSums:
    """Return the sums with one hour's usages, what was there before being worth less."""

    def put(values: tuple[float, ...], more: float) -> tuple[float, ...]:
        return (*values[:hour_of_day], values[hour_of_day] * keep + more, *values[hour_of_day + 1 :])

    return HourSums(
        put(sums.count, float(len(usages))),
        put(sums.total, math.fsum(usages)),
        put(sums.squares, math.fsum(usage * usage for usage in usages)),
    )


def learnt(
    memory: SubscriberMemory,
    usages: Sequence[float],
    peak: float | None,
    expected: float,
    error_floor: float,
    hour: int,
    hour_of_day: int,
    skipped: int,
    days: DaySums,
) -> tuple[SubscriberMemory, bool]:
    """Return what is remembered after an hour, and whether a drift was found in it.

    usages: measured ones of the subscriber's VMs. expected, error_floor: mean and standard error that the profile
    gives this hour's mean. skipped: hours before this one that were never folded.
    """
    peaks = (*memory.peaks, *([None] * min(skipped, KEPT_PEAKS)), peak)[-KEPT_PEAKS:]
    if not usages:
        return replace(memory, peaks=peaks, silent_h=memory.silent_h + skipped + 1, days=days), False
    mean = math.fsum(usages) / len(usages)
    residual, memory = _residual(memory, mean - expected, error_floor)
    test = PageHinkley(memory.risen, memory.fallen)
    if memory.history_h >= JUDGED_AFTER_H:
        test = test.seen(residual)
    known = [value for value in peaks[-DAY_H:] if value is not None]
    # One large peak among them is not yet a change; half a day of them is.
    wild = (
        memory.history_h >= WEEK_H
        and len(known) >= DAY_H // 2
        and peak_variance_ratio(float(np.var(known, ddof=1)), _peak_variance(memory), len(known))
    )
    found = not memory.drifting and (test.alarm() or wild)
    quiet = memory.quiet_h + 1 if abs(residual) < QUIET_BELOW else 0
    after = replace(
        memory,
        long=with_hour(memory.long, hour_of_day, usages, LONG_KEEP),
        recent=with_hour(memory.recent, hour_of_day, usages, RECENT_KEEP),
        days=days,
        first_hour=hour if memory.first_hour is None else memory.first_hour,
        history_h=memory.history_h + 1.0,
        vm_hours=memory.vm_hours + len(usages),
        peaks=peaks,
        silent_h=0,
        risen=test.risen,
        fallen=test.fallen,
        quiet_h=quiet,
        drifting=memory.drifting and quiet < QUIET_H,
    )
    if peak is not None and not wild:
        after = _with_peak(after, peak)
    if not found:
        return after, False
    return replace(
        after,
        long=after.recent,
        risen=0.0,
        fallen=0.0,
        drifting=True,
        quiet_h=0,
        error_count=0.0,
        error_square=0.0,
        widened_until=hour + WEEK_H,
    ), True


def _residual(memory: SubscriberMemory, error: float, floor: float) -> tuple[float, SubscriberMemory]:
    """Return the hour's standardised residual, and the memory that counts it.

    The mean of a few VMs strays further than independent ones would; how far, the last weeks tell.
    """
    spread = math.sqrt(memory.error_square / memory.error_count) if memory.error_count >= JUDGED_AFTER_H / 2 else 0.0
    residual = error / max(spread, floor, SD_FLOOR)
    counted = error
    if spread:
        # What is far off is judged, not learnt from.
        counted = math.copysign(min(abs(error), QUIET_BELOW * max(spread, floor)), error)
    return residual, replace(
        memory,
        error_count=memory.error_count * ERROR_KEEP + 1.0,
        error_square=memory.error_square * ERROR_KEEP + counted * counted,
    )


def _peak_variance(memory: SubscriberMemory) -> float:
    if memory.peak_count < 2.0:
        return 0.0
    mean = memory.peak_mean / memory.peak_count
    return max(memory.peak_square / memory.peak_count - mean * mean, 1e-6)


def _with_peak(memory: SubscriberMemory, peak: float) -> SubscriberMemory:
    return replace(
        memory,
        peak_count=memory.peak_count * ERROR_KEEP + 1.0,
        peak_mean=memory.peak_mean * ERROR_KEEP + peak,
        peak_square=memory.peak_square * ERROR_KEEP + peak * peak,
    )


def seen(vm: VmMemory | None, usage: float, residual: float, hour: int, day: int) -> VmMemory:
    """Return what is known of a VM after a measured hour; a day that is over is to be counted before."""
    before = vm or VmMemory(usage, hour, day=day)
    same = before.day == day
    return VmMemory(
        last=usage,
        last_hour=hour,
        residual_sum=before.residual_sum + residual,
        hours=before.hours + 1,
        day=day,
        day_count=(before.day_count if same else 0) + 1,
        day_sum=(before.day_sum if same else 0.0) + residual,
        day_squares=(before.day_squares if same else 0.0) + residual * residual,
    )
