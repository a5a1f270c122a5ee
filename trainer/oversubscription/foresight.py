"""How many hot hours the VMs that are there by now will bring if all of them stay: a look ahead for the trainer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from simulator.oversubscription.batch import OversubscriptionBatch

Floats = NDArray[np.float64]


def hot_hours_ahead(batch: OversubscriptionBatch, hours: int) -> Floats:
    """Return the expected hot hours of each copy's cluster in the next hours, none after the week's end, (B,).

    The chances are those of `domain.rules.oversubscription.risk`, with its correction for skewness, for all machines
    and hours at once (oversubscription specification §12.1).
    """
    first = int(batch.hour[0])
    of_day = np.arange(first, min(first + hours, batch.hours)) % 24
    ahead = np.zeros(batch.copies)
    if not len(of_day):
        return ahead
    opened = max(int(batch.books(i)["opened"]) for i in range(batch.copies))
    loads = batch.loads[:, :opened]
    mean, variance, third = (loads[..., j] @ batch.model.moments[j][:, of_day] for j in range(3))
    sigma = np.sqrt(np.maximum(variance, 1e-12))
    z = (batch.scenario.threshold - mean) / sigma
    tail = ndtr(-z) + third / sigma**3 / 6.0 * (z * z - 1.0) * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    cool = np.log1p(-np.clip(tail, 0.0, 1.0 - 1e-12)).sum(axis=1)
    chances: Floats = -np.expm1(cool)
    return np.asarray(chances.sum(axis=1), dtype=np.float64)
