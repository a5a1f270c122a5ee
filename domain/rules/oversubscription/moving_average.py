"""MA: reserve what a subscriber's busiest VM used on average over the last day (oversubscription specification §5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.rates import clip_rate

Floats = NDArray[np.float64]

WINDOW_H = 24


def trailing(peaks: Floats, hour: int, window_h: int = WINDOW_H) -> Floats:
    """Return the known values of the `window_h` hours before an index of an hourly series; nan hours are skipped."""
    window = peaks[max(0, hour - window_h) : max(0, hour)]
    return window[~np.isnan(window)]


def moving_average_rate(peaks: Floats, hour: int) -> float:
    """Return the rate for the hour at this index: the mean of the last day's hourly peaks; 1.0 without any.

    peaks: the largest usage among the subscriber's VMs in each hour, nan for hours without VMs.
    """
    known = trailing(peaks, hour)
    return clip_rate(float(known.mean())) if known.size else 1.0
