"""How far an hour's score strays beyond what is usual for its subscriber: hours one by one, and whole days (§12.9)."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from agent.oversubscription.arrays import Floats, clipped, erfc
from agent.oversubscription.memory import Ints, SubscriberMemory, VmColumns, levels
from domain.units import HOURS_PER_DAY

NORMAL: Final = NormalDist()
RAREST: Final = 1e-12


class Surprise(NamedTuple):
    """By subscriber, (N,) each; 0 without a measured VM.

    score: distance of the hour from what was expected, in standard deviations; weighed so that a shift of the
    subscriber's level shows most, by new VMs above all. strain: how far its farthest VM lies, as a normal score: the
    farthest of many lies farther than that of few. pairs, products: pairs of VMs, and the sum over them of both
    surprises multiplied, in units of the profile's variance.
    """

    score: Floats
    strain: Floats
    pairs: Floats
    products: Floats


def surprise_of(
    usage: Floats,
    before: VmColumns,
    group: Ints,
    groups: int,
    mu: Floats,
    sd: Floats,
    persistence: Floats,
    rho: Floats,
) -> Surprise:
    """Return the surprise of measured VMs; every array is by VM, `group` its subscriber among so many `groups`."""
    level, width = levels(before, persistence, rho)
    mean, variance, _ = clipped(mu + sd * level, sd * width)
    variance = np.maximum(variance, 1e-8)
    error = usage - mean
    noise = np.maximum(1.0 - persistence - rho, 1e-3)
    # What is left of a lasting shift in a VM's surprise, once its belief has followed for so many hours.
    left = noise / (persistence * before.hours + noise)
    weight = left * sd / variance

    def summed(values: Floats) -> Floats:
        return np.bincount(group, weights=values, minlength=groups).astype(np.float64)

    shared = rho * sd * sd
    own = summed(weight * weight * np.maximum(variance - shared, 0.0))
    common = summed(weight * np.sqrt(shared)) ** 2
    spread = np.sqrt(own + common)
    score = np.divide(summed(weight * error), spread, out=np.zeros(groups), where=spread > 0.0)
    farthest = np.full(groups, -np.inf)
    np.maximum.at(farthest, group, error / np.sqrt(variance))
    share = np.clip(error / sd, -4.0, 4.0)
    count = np.bincount(group, minlength=groups).astype(np.float64)
    return Surprise(
        score=score,
        strain=_normal_scores(farthest, count),
        pairs=count * (count - 1.0),
        products=summed(share) ** 2 - summed(share * share),
    )


def _normal_scores(farthest: Floats, count: Floats) -> Floats:
    """Return what is as rare for one normal value as this is for the largest of so many; 0 for the largest of none."""
    found = np.zeros(len(farthest))
    some = count > 0
    beyond = 0.5 * erfc(farthest[some] / math.sqrt(2.0))
    with np.errstate(divide="ignore"):
        rare = -np.expm1(count[some] * np.log1p(-beyond))
    found[some] = [-NORMAL.inv_cdf(chance) for chance in np.clip(rare, RAREST, 1.0 - RAREST).tolist()]
    return found


SETTLED_AFTER_H: Final = 48.0
"""Before that a profile is too new to say how far usage strays from it."""
ERROR_KEEP: Final = 0.5 ** (1.0 / (14 * HOURS_PER_DAY))
STRAY_KEEP: Final = 0.5 ** (1.0 / 28.0)
LEAST_ERRORS: Final = 36.0
MOST_ALIKE: Final = 0.9
QUIET_BELOW: Final = 3.0
LEAST_STRAY_DAYS: Final = 4.0
SURELY: Final = 3.0
"""Standard errors by which days must stray more than their hours explain."""
UNSURE: Final = 3.5
"""Far quantiles of Student's distribution lie farther out than the normal ones by about this over the degrees."""


def judged(memory: SubscriberMemory, score: float) -> tuple[float, SubscriberMemory]:
    """Return the hour's standardised residual, and the memory that counts it.

    A profile that is not known well lets hours stray farther than it says, and one after the other to the same side;
    how far, the last weeks tell. Divided by both, sums of hours stray no farther than those of independent ones. Where
    whole days stray farther still, as with levels that wander, by how far they do.
    """
    if memory.history_h < SETTLED_AFTER_H:
        return score, memory
    usual, counted = 1.0, score
    if memory.error_count >= LEAST_ERRORS:
        spread = max(math.sqrt(memory.error_square / memory.error_count), 1.0)
        alike = min(max(memory.error_lag / max(memory.error_square, 1e-9), 0.0), MOST_ALIKE)
        usual = spread * math.sqrt((1.0 + alike) / (1.0 - alike))
        # What is far off is judged, not learnt from.
        counted = math.copysign(min(abs(score), QUIET_BELOW * spread), score)
    return score / max(usual, _of_days(memory, usual)), replace(
        _with_day(memory, counted),
        error_count=memory.error_count * ERROR_KEEP + 1.0,
        error_square=memory.error_square * ERROR_KEEP + counted * counted,
        error_lag=memory.error_lag * ERROR_KEEP + counted * memory.error_last,
        error_last=counted,
    )


def _of_days(memory: SubscriberMemory, usual: float) -> float:
    """Return the spread of independent hours whose days would stray as far as these; 0 where hours explain them."""
    days = memory.stray_days
    if days < LEAST_STRAY_DAYS:
        return 0.0
    square = HOURS_PER_DAY * memory.stray_square / days
    if square <= usual * usual * (1.0 + SURELY * math.sqrt(2.0 / days)):
        return 0.0
    return math.sqrt(square) * (1.0 + UNSURE / days)


def _with_day(memory: SubscriberMemory, counted: float) -> SubscriberMemory:
    if memory.drifting:
        return replace(memory, today_h=0, today_sum=0.0)
    hours, total = memory.today_h + 1, memory.today_sum + counted
    if hours < HOURS_PER_DAY:
        return replace(memory, today_h=hours, today_sum=total)
    mean = total / hours
    return replace(
        memory,
        today_h=0,
        today_sum=0.0,
        stray_days=memory.stray_days * STRAY_KEEP + 1.0,
        stray_square=memory.stray_square * STRAY_KEEP + mean * mean,
    )
