"""How far an hour of a subscriber lies from what its VMs let expect: what drift is judged by (§12.8, §12.9).

The mean of a subscriber's usage is no such thing: its VMs keep their levels for days, so it strays for days. What each
VM does beyond its own belief is new every hour.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from agent.oversubscription.arrays import Floats, clipped, erfc
from agent.oversubscription.vm_table import Ints, VmColumns, levels

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
