"""What is believed of one VM's own level after some hours of its usage: a normal belief on its offset (§12.4b)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def offset_belief(residual_sum: float, hours: int, persistence: float, shared: float) -> tuple[float, float]:
    """Return mean and variance of a VM's offset, in standard deviations of its owner's profile.

    residual_sum: of (usage - mu) / sd over so many hours. persistence: share of the variance that is the VM's constant
    offset (psi); shared: share common to the owner (rho). Conjugate update of N(0, psi) under observation variance
    1 - psi - rho. A leaf that numba can compile.
    """
    noise = 1.0 - persistence - shared
    scale = persistence * hours + noise
    if scale <= 0.0:
        return 0.0, persistence
    return persistence * residual_sum / scale, persistence * noise / scale


def believed_profile(
    mu: float, sd: float, mean: float, variance: float, persistence: float, shared: float
) -> tuple[float, float]:
    """Return mu and sd of a VM's usage before clipping, given the belief on its offset.

    The share common to the owner stays part of the variance. A leaf that numba can compile.
    """
    return mu + sd * mean, sd * np.sqrt(max(variance + 1.0 - persistence, 0.0))


def estimate_persistence(residuals: Floats) -> float:
    """Return the share of variance that is each VM's own level: the intraclass correlation of VM-days.

    residuals: standardised usage of shape (VM-days, hours), nan where unknown. One-way analysis of variance; within
    [0, 0.99]. Zero with fewer than two days or two hours a day.
    """
    known = residuals[(~np.isnan(residuals)).sum(axis=1) >= 2]
    if len(known) < 2:
        return 0.0
    counts = (~np.isnan(known)).sum(axis=1)
    means = np.nanmean(known, axis=1)
    within = float(np.nansum((known - means[:, None]) ** 2) / (counts.sum() - len(known)))
    per_day = float((counts.sum() - (counts**2).sum() / counts.sum()) / (len(known) - 1))
    overall = float(np.nansum(known) / counts.sum())
    between = (float((counts * (means - overall) ** 2).sum() / (len(known) - 1)) - within) / per_day
    total = between + within
    return float(np.clip(between / total, 0.0, 0.99)) if total > 0.0 else 0.0


def estimate_correlation(residuals: Floats) -> float:
    """Return the mean correlation of an owner's VMs in the same hour; residuals (VMs, hours) (§12.8).

    Unknown residuals are nan. From the variance of the mean over m VMs, v (rho + (1 - rho) / m); within
    [0, 0.99].
    """
    centred = residuals - np.nanmean(residuals, axis=1, keepdims=True)
    counts = (~np.isnan(centred)).sum(axis=0)
    usable = counts >= 2
    if usable.sum() < 2:
        return 0.0
    variance = float(np.nanmean(centred[:, usable] ** 2))
    means = np.nanmean(centred[:, usable], axis=0)
    inverse = float((1.0 / counts[usable]).mean())
    if variance <= 0.0 or inverse >= 1.0:
        return 0.0
    return float(np.clip((float((means**2).mean()) / variance - inverse) / (1.0 - inverse), 0.0, 0.99))
