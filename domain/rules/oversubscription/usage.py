"""A VM's usage as a share of its requested cores: moments, profiles with gaps, bad samples, its own level, drift.

Moments and beliefs are leaves: scalars in, scalars out, nothing called but `math`, so that numba can compile them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import RejectReason, SampleRejected
from domain.rules.oversubscription.rates import LEVEL_SPREAD, TURN_H
from domain.units import HOURS_PER_DAY

Floats = NDArray[np.float64]

SD_FLOOR = 1e-6
HIGHEST_SAMPLE = 1.05
"""Samples above 1 up to here are clipped: clocks and counters are not exact (§11)."""
HELD_H = 3
"""Gaps of so many hours are bridged with the last value; longer ones are stale (§11)."""
POOLED_H = 2


class Moments(NamedTuple):
    """Mean, variance and third central moment of one VM's usage, by subscriber and hour of day: each (N, 24)."""

    mean: Floats
    variance: Floats
    third: Floats


def clipped_moments(mu: float, sd: float) -> tuple[float, float, float]:
    """Return mean, variance and third central moment of clip(mu + sd e, 0, 1) for a standard normal e (§2).

    In closed form: with A = -mu/sd and B = (1-mu)/sd the integrals of e^k phi(e) between A and B, and the mass at both
    ends. Computed about mu, where nothing cancels. sd is taken as at least SD_FLOOR.
    """
    sd = max(sd, SD_FLOOR)
    low, high = -mu, 1.0 - mu
    a, b = low / sd, high / sd
    below, above = 0.5 * math.erfc(-a / math.sqrt(2.0)), 0.5 * math.erfc(b / math.sqrt(2.0))
    phi_a = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    phi_b = math.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
    inside = 1.0 - below - above
    first = sd * (phi_a - phi_b) + low * below + high * above
    second = sd * sd * (inside + a * phi_a - b * phi_b) + low * low * below + high * high * above
    third = (
        sd * sd * sd * ((a * a + 2.0) * phi_a - (b * b + 2.0) * phi_b)
        + low * low * low * below
        + high * high * high * above
    )
    variance = max(second - first * first, 0.0)
    return mu + first, variance, third - 3.0 * first * second + 2.0 * first * first * first


def moments_of(mu: Floats, sd: Floats) -> Moments:
    """Return the moments of a profile, mu and sd of shape (N, 24)."""
    table = np.array([clipped_moments(m, s) for m, s in zip(mu.ravel().tolist(), sd.ravel().tolist(), strict=True)])
    mean, variance, third = (np.ascontiguousarray(column.reshape(mu.shape)) for column in table.T)
    return Moments(mean, variance, third)


def turned_excess(mean: Floats, turn_h: int) -> Floats:
    """Return by how much each hour's mean, (N, 24), rises when the day turns by up to so many hours, (N, 24).

    Each subscriber by itself: the largest mean of the hours within reach, less the hour's own.
    """
    reached = [np.roll(mean, step, axis=-1) for step in range(-turn_h, turn_h + 1)]
    excess: Floats = np.maximum.reduce(reached) - mean
    return excess


def drifted_means(mean: Floats) -> tuple[Floats, Floats]:
    """Return by how much each hour's mean, (N, 24), moves on average over usual drifts, and the spread of that.

    A usual drift (§9 B5) multiplies a subscriber's level by exp(LEVEL_SPREAD normal) and turns its day by up to TURN_H
    hours to either side, all turns alike.
    """
    turned = np.array([np.roll(mean, step, axis=-1) for step in range(-TURN_H, TURN_H + 1)])
    square = LEVEL_SPREAD * LEVEL_SPREAD
    expected: Floats = math.exp(0.5 * square) * turned.mean(axis=0)
    variance = math.exp(2.0 * square) * (turned * turned).mean(axis=0) - expected * expected
    return expected - mean, np.sqrt(np.maximum(variance, 0.0))


def fill_profile(values: Floats) -> Floats:
    """Return a profile (N, 24) whose nan hours are the mean of the neighbours within two hours, else of the day (§11).

    A subscriber without any hour stays nan.
    """
    filled = values.copy()
    for n, hour in zip(*np.nonzero(np.isnan(values)), strict=True):
        near = values[n, [(hour + step) % HOURS_PER_DAY for step in range(-POOLED_H, POOLED_H + 1)]]
        known = near[~np.isnan(near)]
        if not known.size:
            known = values[n, ~np.isnan(values[n])]
        if known.size:
            filled[n, hour] = known.mean()
    return filled


def clean_sample(usage: float) -> float:
    """Return a measured usage within [0, 1]; SampleRejected for nan, below 0 or above HIGHEST_SAMPLE (§11)."""
    if not math.isfinite(usage):
        raise SampleRejected(RejectReason.NOT_FINITE, "usage", usage, "send a share of the requested cores")
    if not 0.0 <= usage <= HIGHEST_SAMPLE:
        raise SampleRejected(RejectReason.OUT_OF_RANGE, "usage", usage, "send a share between 0 and 1")
    return min(usage, 1.0)


def offset_belief(residual_sum: float, hours: int, persistence: float, shared: float) -> tuple[float, float]:
    """Return mean and variance of a VM's offset, in standard deviations of its owner's profile.

    residual_sum: of (usage - mu) / sd over so many hours. persistence: share of the variance that is the VM's constant
    offset (psi); shared: share common to the owner (rho). Conjugate update of N(0, psi) under observation variance
    1 - psi - rho.
    """
    noise = 1.0 - persistence - shared
    scale = persistence * hours + noise
    if scale <= 0.0:
        return 0.0, persistence
    return persistence * residual_sum / scale, persistence * noise / scale


SLACK = 0.5
"""Standard deviations a residual may lie off before it counts; half of the shift to be found."""
THRESHOLD = 6.6
"""Alarm level in standard deviations: one false alarm in more than 90 days of hourly independent normal residuals."""
RARE_PEAKS = 3.54
"""Normal quantile of 99.98 %."""
WIDENED = 1.5
"""Factor on a subscriber's standard deviations after an alarm."""


@dataclass(frozen=True, slots=True)
class PageHinkley:
    """The test's memory: how far the residuals have risen and fallen beyond the slack."""

    risen: float = 0.0
    fallen: float = 0.0

    def seen(self, residual: float, slack: float = SLACK) -> PageHinkley:
        """Return the memory after one more standardised hourly mean residual; one that is not finite is skipped."""
        if not math.isfinite(residual):
            return self
        return PageHinkley(max(0.0, self.risen + residual - slack), max(0.0, self.fallen - residual - slack))

    def alarm(self, threshold: float = THRESHOLD) -> bool:
        """Whether the residuals have moved for good."""
        return max(self.risen, self.fallen) > threshold


def peak_variance_ratio(recent: float, reference: float, count: int) -> bool:
    """Whether the variance of recent peaks exceeds the reference's by more than chance, at 99.98 % one-sided.

    Asked each hour about the last day, that is one false alarm in more than 180 days.

    The chi-square quantile by Wilson and Hilferty; count: recent peaks, at least 2.
    """
    if count < 2 or reference <= 0.0 or not math.isfinite(recent):
        return False
    freedom = count - 1
    spread = 2.0 / (9.0 * freedom)
    quantile = freedom * (1.0 - spread + RARE_PEAKS * math.sqrt(spread)) ** 3
    return recent / reference * freedom > quantile
