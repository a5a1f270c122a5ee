"""What an hour teaches of a subscriber: its profile by hour of day, its VMs' own levels, and whether it has drifted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.arrays import Floats, clipped, unclipped
from agent.oversubscription.drift import ERROR_KEEP, QUIET_BELOW, SETTLED_AFTER_H, judged
from agent.oversubscription.memory import KEPT_PEAKS, DaySums, HourlyDemand, HourSums, SubscriberMemory
from domain.rules.oversubscription.usage import (
    SD_FLOOR,
    WIDENED,
    PageHinkley,
    drifted_means,
    fill_profile,
    peak_variance_ratio,
    turned_excess,
)
from domain.units import HOURS_PER_DAY, HOURS_PER_WEEK

LONG_KEEP: Final = 0.5 ** (1.0 / 28.0)
"""What an hour of the day's statistics keep from one day to the next: half after four weeks."""
RECENT_KEEP: Final = 0.5 ** (1.0 / 3.5)
"""The same of those that stand in for the last seven days."""
JUDGED_AFTER_H: Final = 168.0
ASSUMED_MU, ASSUMED_SD = 0.5, 0.3
"""Usage of a subscriber of which nothing is known, in a pool that knows no other."""
LEAST_COUNT: Final = 2.0
BORROWED: Final = 8.0
"""An hour's spread counts as many readings of the day's other hours beside its own."""
DEFAULT_PERSISTENCE: Final = 0.85
LEARNT_AFTER_DAYS: Final = 30.0
LARGEST_CORRELATION: Final = 0.5
QUIET_H: Final = 24


@dataclass(frozen=True, slots=True)
class Profiles:
    """What subscribers are believed to use, in the order of `names`: mu, sd before clipping (N, 24), and their moments.

    narrow: sd as measured; sd itself is wider for a week after a drift, for what comes, not for what was. error: what
    the data leave open of the means (N, 24), one standard error, VMs' own levels counted. persistence, rho: shares of
    the variance that are each VM's own level, and that a subscriber's VMs have in common, (N + 1,). excess: by how much
    the means rise when days turn as far as there is room for, (N + 1, 24), see `usage.turned_excess`. moved, spread:
    how they move over usual drifts, (N + 1, 24), see `usage.drifted_means`.
    """

    names: tuple[str, ...]
    mu: Floats
    sd: Floats
    narrow: Floats
    mean: Floats
    variance: Floats
    third: Floats
    error: Floats
    persistence: Floats
    rho: Floats
    excess: Floats
    moved: Floats
    spread: Floats

    def index(self, name: str) -> int:
        """Return the place of a subscriber; its own when it is unknown: the last, which is the pool's."""
        return self.names.index(name) if name in self.names else len(self.names)


def profiles_of(
    subscribers: Mapping[str, SubscriberMemory],
    hour: int,
    rho: float | None,
    persistence: float | None,
    turn_h: int = 0,
) -> Profiles:
    """Return the profiles; row N, after the named ones, is that of the pool, for those of whom nothing is known.

    rho, persistence: as an operator set them; None: as each subscriber's usage tells. turn_h: by how many hours days
    may turn, for `excess`.
    """
    names = tuple(sorted(subscribers))
    count = np.array([subscribers[name].long.count for name in names]).reshape(-1, HOURS_PER_DAY)
    total = np.array([subscribers[name].long.total for name in names]).reshape(-1, HOURS_PER_DAY)
    squares = np.array([subscribers[name].long.squares for name in names]).reshape(-1, HOURS_PER_DAY)
    count = np.vstack((count, count.sum(axis=0)))
    total, squares = np.vstack((total, total.sum(axis=0))), np.vstack((squares, squares.sum(axis=0)))
    known = count >= LEAST_COUNT
    safe = np.where(known, count, 1.0)
    mean = np.where(known, total / safe, np.nan)
    # The count grows by VMs of one hour that share their owner's hour: with few, the spread comes out too small.
    spread = np.where(known, _spread(safe, np.maximum(squares - total * total / safe, 0.0), known), np.nan)
    mean, spread = fill_profile(mean), fill_profile(spread)
    pool_mean = np.where(np.isnan(mean[-1]), ASSUMED_MU, mean[-1])
    pool_spread = np.where(np.isnan(spread[-1]), ASSUMED_SD**2, spread[-1])
    mean, spread = np.where(np.isnan(mean), pool_mean, mean), np.where(np.isnan(spread), pool_spread, spread)
    mu, sd = unclipped(np.clip(mean, 0.0, 1.0), np.maximum(spread, SD_FLOOR**2))
    wide = [WIDENED if subscribers[name].widened_until > hour else 1.0 for name in names]
    narrow, sd = sd, sd * np.array([*wide, 1.0])[:, None]
    own = [persistence if persistence is not None else persistence_of(subscribers[name].days) for name in names]
    common = np.array([rho if rho is not None else correlation_of(subscribers[name]) for name in names] + [rho or 0.0])
    share = np.minimum(np.array([*own, DEFAULT_PERSISTENCE]), np.maximum(0.99 - common, 0.0))
    first, variance, third = clipped(mu, sd)
    vms = np.array([max(subscribers[name].vm_hours / max(subscribers[name].history_h, 1.0), 1.0) for name in names])
    error = np.sqrt(variance / np.append(vms, max(vms.sum(), 1.0))[:, None])
    excess = turned_excess(first, turn_h)
    return Profiles(names, mu, sd, narrow, first, variance, third, error, share, common, excess, *drifted_means(first))


def _spread(count: Floats, squares: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return the variance of one more reading, by hour: few of them tell it no better than the other hours' do.

    squares: sums of squares about the mean.
    """
    freedom = np.maximum(count - 1.0, 1.0)
    usual = np.where(known, squares, 0.0).sum(axis=1) / np.maximum(np.where(known, freedom, 0.0).sum(axis=1), 1.0)
    found: Floats = (squares + BORROWED * usual[:, None]) / (freedom + BORROWED) * (1.0 + 1.0 / count)
    return found


def persistence_of(sums: DaySums) -> float:
    """Return the share of variance that is each VM's own level, from sums over VM-days.

    One-way analysis of variance of VM-days; the usual share while there are few days.
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


def correlation_of(memory: SubscriberMemory) -> float:
    """Return the share of variance that a subscriber's VMs have in common, from what they did at once (§12.8).

    0 while less than a week is known. What two VMs do beyond their own levels in one hour, multiplied, is this
    share on the mean.
    """
    if memory.history_h < HOURS_PER_WEEK or memory.pairs <= 0.0:
        return 0.0
    return min(max(memory.products / memory.pairs, 0.0), LARGEST_CORRELATION)


@dataclass(frozen=True, slots=True)
class HourUse:
    """What a subscriber's measured VMs used in an hour: how many, sums of shares and of their squares, the largest.

    score, strain, pairs, products: see `agent.oversubscription.drift`.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    peak: float | None = None
    score: float = 0.0
    strain: float = 0.0
    pairs: float = 0.0
    products: float = 0.0


def with_hour(sums: HourSums, hour_of_day: int, use: HourUse, keep: float) -> HourSums:
    """Return the sums with one hour's usage, what was there before being worth less."""
    put = partial(_put, hour_of_day, keep)
    return HourSums(put(sums.count, float(use.count)), put(sums.total, use.total), put(sums.squares, use.squares))


def _put(hour_of_day: int, keep: float, values: tuple[float, ...], more: float) -> tuple[float, ...]:
    return (*values[:hour_of_day], values[hour_of_day] * keep + more, *values[hour_of_day + 1 :])


def with_requests(asked: HourlyDemand, hour_of_day: int, sizes: tuple[float, float, float]) -> HourlyDemand:
    """Return what came in by hour of the day, with one more hour; weeks long past are worth less."""
    put = partial(_put, hour_of_day, RECENT_KEEP)
    cores, memory, network = sizes
    return HourlyDemand(
        put(asked.days, 1.0), put(asked.cores, cores), put(asked.memory_gb, memory), put(asked.network_gbit, network)
    )


def learnt(
    memory: SubscriberMemory, use: HourUse, hour: int, hour_of_day: int, skipped: int, days: DaySums
) -> tuple[SubscriberMemory, bool]:
    """Return what is remembered after an hour, and whether a drift was found in it.

    skipped: hours before this one that were never folded. days: sums over VM-days, this hour's ended ones counted.
    """
    peaks = (*memory.peaks, *([None] * min(skipped, KEPT_PEAKS)), use.peak)[-KEPT_PEAKS:]
    if not use.count:
        return replace(memory, peaks=peaks, silent_h=memory.silent_h + skipped + 1, days=days), False
    residual, memory = judged(memory, use.score)
    if memory.history_h >= SETTLED_AFTER_H:
        memory = replace(
            memory,
            pairs=memory.pairs * ERROR_KEEP + use.pairs,
            products=memory.products * ERROR_KEEP + use.products,
        )
    test = PageHinkley(memory.risen, memory.fallen)
    if memory.history_h >= JUDGED_AFTER_H:
        test = test.seen(residual)
    strains = (*memory.strains, use.strain)[-HOURS_PER_DAY:]
    wild = memory.history_h >= HOURS_PER_WEEK and len(strains) == HOURS_PER_DAY and _wild(strains, memory)
    found = not memory.drifting and (test.alarm() or wild)
    quiet = memory.quiet_h + 1 if abs(residual) < QUIET_BELOW else 0
    after = replace(
        memory,
        long=with_hour(memory.long, hour_of_day, use, LONG_KEEP),
        recent=with_hour(memory.recent, hour_of_day, use, RECENT_KEEP),
        days=days,
        first_hour=hour if memory.first_hour is None else memory.first_hour,
        history_h=memory.history_h + 1.0,
        vm_hours=memory.vm_hours + use.count,
        peaks=peaks,
        strains=strains,
        silent_h=0,
        risen=test.risen,
        fallen=test.fallen,
        quiet_h=quiet,
        drifting=memory.drifting and quiet < QUIET_H,
    )
    if not wild:
        after = _with_strain(after, use.strain)
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
        error_lag=0.0,
        today_h=0,
        today_sum=0.0,
        strains=(),
        strain_count=0.0,
        strain_mean=0.0,
        strain_square=0.0,
        widened_until=hour + HOURS_PER_WEEK,
    ), True


def _wild(strains: tuple[float, ...], memory: SubscriberMemory) -> bool:
    """Return whether the last day's farthest VMs lie farther from their usual mean than chance has it (§12.9)."""
    if memory.strain_count < HOURS_PER_WEEK / 2:
        return False
    usual = memory.strain_mean / memory.strain_count
    variance = memory.strain_square / memory.strain_count - usual * usual
    recent = math.fsum((strain - usual) ** 2 for strain in strains) / len(strains)
    return peak_variance_ratio(recent, max(variance, 1e-6), len(strains))


def _with_strain(memory: SubscriberMemory, strain: float) -> SubscriberMemory:
    return replace(
        memory,
        strain_count=memory.strain_count * ERROR_KEEP + 1.0,
        strain_mean=memory.strain_mean * ERROR_KEEP + strain,
        strain_square=memory.strain_square * ERROR_KEEP + strain * strain,
    )
