"""The price of a deployment: for its cores, and for the uncertainty of its future size (admission specification §8).

Price of an hour = per_core_hour n + per_variance_hour V: n cores now, V the variance of the size predicted at the
tariff's horizon. A label that names the kind of a deployment never raises its price: the variance of
a mixture is at least the mean of the variances in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from domain.errors import BadInput
from domain.rules.admission.belief import Floats
from domain.rules.admission.moments import moments_of
from domain.rules.admission.population import Population, Statistics


@dataclass(frozen=True, slots=True)
class Tariff:
    """A published price list; the currency is the reader's. BadInput names a wrong field."""

    per_core_hour: float
    per_variance_hour: float
    """For one core squared of predicted variance."""
    horizon_h: float = 24.0
    """How far ahead the variance is predicted."""
    cap_per_hour: float = math.inf
    """The highest price of an hour, for any variance."""

    def __post_init__(self) -> None:
        for name in ("per_core_hour", "per_variance_hour"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise BadInput(name, value, "give a finite price, 0 or more")
        if not (math.isfinite(self.horizon_h) and self.horizon_h > 0.0):
            raise BadInput("horizon_h", self.horizon_h, "give hours above 0, such as 24")
        if not self.cap_per_hour >= 0.0:
            raise BadInput("cap_per_hour", self.cap_per_hour, "give a price, 0 or more, or leave it out")


def hourly_price(tariff: Tariff, cores: ArrayLike, variance: ArrayLike) -> Floats:
    """Return the price of an hour, elementwise. BadInput for a number of cores or a variance below 0 or not finite."""
    n, v = np.asarray(cores, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    for name, values in (("cores", n), ("variance", v)):
        if not bool(np.all(np.isfinite(values) & (values >= 0.0))):
            raise BadInput(name, values.tolist(), "give finite numbers, 0 or more")
    price: Floats = np.minimum(tariff.per_core_hour * n + tariff.per_variance_hour * v, tariff.cap_per_hour)
    return price


def predicted_variance(tariff: Tariff, population: Population, statistics: Statistics, moments: str = "ab") -> float:
    """Return the variance of the size, in cores squared, at the tariff's horizon; `moments` as in `moments_of`."""
    return float(moments_of(population, statistics, np.array([tariff.horizon_h]), moments).variance[0])
