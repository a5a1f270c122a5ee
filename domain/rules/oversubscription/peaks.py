"""Predictors of a machine's peak usage (Bashir et al., Take it to the Limit, EuroSys 2021).

With u_i, c_i the usage and the requested cores of the VMs of a machine, and the last W hours in which they were seen:

    N-sigma   (mean + N s) sum c_i       mean and sample deviation s of the ratio sum u_i / sum c_i over these hours
    RC-like   sum of the q-th percentile of each u_i

A VM that was seen for fewer hours than the warm-up counts with its request. The larger of the two is the third
predictor of the publication. Its peak oracle knows the usage to come: the true maximum of the next 24 hours.

`n_sigma_ratio` and `percentile_of` are leaves: numbers and 1-D arrays in, a number out, so that numba can compile them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput

Floats = NDArray[np.float64]

FEWEST_H = 2
"""Hours from which a deviation can be estimated."""
LONGEST_H = 168


@dataclass(frozen=True, slots=True)
class PeakPredictor:
    """The predictors that are used, the largest of them counts; BadInput for a number out of range.

    deviations: N of N-sigma, percentile: of RC-like, 0 to 100; None: not used. window_h: hours that are remembered.
    warmup_h: hours from which a VM is predicted. oracle: the true peak, in place of the predictors.
    """

    deviations: float | None = None
    percentile: float | None = None
    window_h: int = 10
    warmup_h: int = 3
    oracle: bool = False

    def __post_init__(self) -> None:
        if self.oracle != (self.deviations is None and self.percentile is None):
            raise BadInput("oracle", self.oracle, "give n, percentile or both, or oracle=true alone")
        if self.deviations is not None and not (math.isfinite(self.deviations) and self.deviations >= 0.0):
            raise BadInput("n", self.deviations, "give standard deviations, 0 or more")
        if self.percentile is not None and not 0.0 <= self.percentile <= 100.0:
            raise BadInput("percentile", self.percentile, "give a percentile from 0 to 100")
        for name, hours in (("warmup_h", self.warmup_h), ("window_h", self.window_h)):
            if not FEWEST_H <= hours <= LONGEST_H:
                raise BadInput(name, hours, f"give whole hours, {FEWEST_H} to {LONGEST_H}")
        if self.warmup_h > self.window_h:
            raise BadInput("warmup_h", self.warmup_h, f"give at most the window, {self.window_h}")


def n_sigma_ratio(used: Floats, requested: Floats, deviations: float) -> float:
    """Return the predicted peak of a machine as a share of its requested cores, at most 1.

    used, requested: sums over its VMs in each of the last hours, newest first; hours without a VM have 0 requested.
    """
    count, total, squares = 0, 0.0, 0.0
    for hour in range(used.size):
        if requested[hour] > 0.0:
            ratio = used[hour] / requested[hour]
            count, total, squares = count + 1, total + ratio, squares + ratio * ratio
    if count < 2:
        return 1.0
    mean = total / count
    deviation = math.sqrt(max(squares - total * mean, 0.0) / (count - 1))
    return min(mean + deviations * deviation, 1.0)


def percentile_of(ordered: Floats, percentile: float) -> float:
    """Return a percentile of rising numbers, at least one, linear between neighbours."""
    at = percentile / 100.0 * (ordered.size - 1)
    low = min(int(at), ordered.size - 1)
    high = min(low + 1, ordered.size - 1)
    return float(ordered[low] + (at - low) * (ordered[high] - ordered[low]))
