"""The intraclass correlation of VM-days from all days at once: the oracle of the agent's running estimate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
