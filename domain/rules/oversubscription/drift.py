"""Whether a subscriber's usage has left its profile: a two-sided Page-Hinkley test on hourly residuals (§12.9)."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
