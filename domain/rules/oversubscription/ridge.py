"""SL: ridge regression of the next hour's peak usage on subscriber, hour of day and the last day (§5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.moving_average import trailing
from domain.rules.oversubscription.rates import clip_rate

Floats = NDArray[np.float64]

HARMONICS = 2
PENALTY = 1.0


def features(subscriber: int, subscribers: int, hour_of_day: int, last_peak: float, last_mean: float) -> Floats:
    """Return what the regression sees: one-hot subscriber, hour harmonics alone and by subscriber, last day's peaks."""
    angles = 2.0 * np.pi * hour_of_day * np.arange(1, HARMONICS + 1) / 24.0
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
                    rows.append(features(n, len(log), (hour - hours_before) % 24, *seen))
                    targets.append(float(log[n, hour]))
    if not rows:
        raise BadInput("logs", len(logs), "give logs with at least one hour after a day with VMs")
    design = np.array(rows)
    gram = design.T @ design + penalty * np.eye(design.shape[1])
    return Ridge(len(logs[0]), np.linalg.solve(gram, design.T @ np.array(targets)))
