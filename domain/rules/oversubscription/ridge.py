"""Rates from the last day's peaks (§5): MA, their mean, and SL, ridge regression on subscriber, hour and last day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import clip_rate
from domain.units import HOURS_PER_DAY

Floats = NDArray[np.float64]

HARMONICS = 2
PENALTY = 1.0
WINDOW_H = HOURS_PER_DAY


def trailing(peaks: Floats, hour: int) -> Floats:
    """Return the known values of the `WINDOW_H` hours before an index of an hourly series; nan hours are skipped."""
    window = peaks[max(0, hour - WINDOW_H) : max(0, hour)]
    return window[~np.isnan(window)]


def moving_average_rate(peaks: Floats, hour: int) -> float:
    """Return MA's rate for the hour at this index (§5): the mean of the last day's hourly peaks; 1.0 without any.

    peaks: the largest usage among the subscriber's VMs in each hour, nan for hours without VMs.
    """
    known = trailing(peaks, hour)
    return clip_rate(float(known.mean())) if known.size else 1.0


def features(subscriber: int, subscribers: int, hour_of_day: int, last_peak: float, last_mean: float) -> Floats:
    """Return what the regression sees: one-hot subscriber, hour harmonics alone and by subscriber, last day's peaks."""
    angles = 2.0 * np.pi * hour_of_day * np.arange(1, HARMONICS + 1) / HOURS_PER_DAY
    waves = np.concatenate((np.sin(angles), np.cos(angles)))
    own = np.zeros(subscribers)
    own[subscriber] = 1.0
    return np.concatenate((own, waves, np.outer(own, waves).ravel(), [last_peak, last_mean]))


def last_day(peaks: Floats, hour: int) -> tuple[float, float] | None:
    """Return the largest and the mean hourly peak of the day before an index; None without any."""
    known = trailing(peaks, hour)
    return (float(known.max()), float(known.mean())) if known.size else None


@dataclass(frozen=True, slots=True)
class Ridge:
    """A fitted regression."""

    subscribers: int
    weights: Floats

    def rate(self, peaks: Floats, hour: int, subscriber: int, hour_of_day: int) -> float:
        """Return the rate for the hour at this index of the subscriber's hourly peaks; 1.0 without a last day."""
        seen = last_day(peaks, hour)
        if seen is None:
            return 1.0
        return clip_rate(float(features(subscriber, self.subscribers, hour_of_day, *seen) @ self.weights))


def fit(logs: list[Floats], hours_before: int, penalty: float = PENALTY) -> Ridge:
    """Return the regression of logs: hourly peaks (N, hours) each, the first `hours_before` hours before midnight.

    Hours without VMs teach nothing. Raises BadInput when no hour can be learnt from.
    """
    rows: list[Floats] = []
    targets: list[float] = []
    for log in logs:
        for n in range(len(log)):
            for hour in range(hours_before, log.shape[1]):
                seen = last_day(log[n], hour)
                if seen is not None and not np.isnan(log[n, hour]):
                    rows.append(features(n, len(log), (hour - hours_before) % HOURS_PER_DAY, *seen))
                    targets.append(float(log[n, hour]))
    if not rows:
        raise BadInput("logs", len(logs), "give logs with at least one hour after a day with VMs")
    design = np.array(rows)
    gram = design.T @ design + penalty * np.eye(design.shape[1])
    return Ridge(len(logs[0]), np.linalg.solve(gram, design.T @ np.array(targets)))
