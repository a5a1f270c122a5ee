"""The price of a deployment: for its cores, and for the uncertainty of its future size (admission specification §8).

Price of an hour = per_core_hour n + per_variance_hour V: n cores now, V the variance of the size predicted at the
tariff's horizon. A label that names the kind of a deployment never raises its price: the variance of
a mixture is at least the mean of the variances in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """No hour costs more, whatever the variance."""

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


def kept_free(kappa: float, inside: float, added: float) -> float:
    """Return the cores that a rule of kappa standard deviations keeps free for a deployment of variance `added`.

    inside: the variance of all others together. It is what the deployment's uncertainty takes from the room of others,
    and tends to kappa added / (2 sd) where they are many.
    """
    return kappa * added / (math.sqrt(inside + added) + math.sqrt(inside)) if added > 0.0 else 0.0


def predicted_variance(tariff: Tariff, population: Population, statistics: Statistics, moments: str = "ab") -> float:
    """Return the variance of the size, in cores squared, at the tariff's horizon; `moments` as in `moments_of`."""
    return float(moments_of(population, statistics, np.array([tariff.horizon_h]), moments).variance[0])


def prices_a_priori(tariff: Tariff, variance: float, cores: ArrayLike) -> Floats:
    """Return the price of each hour by its cores (H,) and the variance predicted at the deployment's arrival."""
    return hourly_price(tariff, cores, np.full(np.shape(cores), variance))


def prices_a_posteriori(
    tariff: Tariff, population: Population, seen: Sequence[Statistics], moments: str = "ab"
) -> Floats:
    """Return the price of each hour by the deployment's statistics at its end, (H,).

    A deployment that turns out to be steady pays less from hour to hour, one that turns out wild pays more.
    """
    variances = [predicted_variance(tariff, population, statistics, moments) for statistics in seen]
    return hourly_price(tariff, [float(statistics.size) for statistics in seen], variances)


def weights_of(log_evidence: ArrayLike) -> Floats:
    """Return the chances of candidates that were equally likely at first, by the log of their evidence, (C,)."""
    logs = np.asarray(log_evidence, dtype=np.float64)
    if logs.ndim != 1 or logs.size == 0 or bool(np.any(np.isnan(logs))) or not math.isfinite(float(logs.max())):
        raise BadInput("log_evidence", logs.tolist(), "give one number for each candidate, not all minus infinity")
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def mixture_moments(weights: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> tuple[Floats, Floats]:
    """Return mean and variance of a deployment that may be of several kinds: (C,), (C, ...) and (C, ...) to (...).

    The variance is the mean of the variances and the variance of the means, so never below the former. BadInput for
    weights that are below 0 or do not add up to 1.
    """
    w, e, v = (np.asarray(part, dtype=np.float64) for part in (weights, mean, variance))
    if w.ndim != 1 or not bool(np.all(w >= 0.0)) or not abs(float(w.sum()) - 1.0) < 1e-9:
        raise BadInput("weights", w.tolist(), "give chances, 0 or more, that add up to 1")
    if e.shape != v.shape or e.shape[:1] != w.shape:
        raise BadInput("mean", list(e.shape), f"give as many rows as weights, {w.size}, and as many variances")
    shares = (w / w.sum()).reshape((-1,) + (1,) * (e.ndim - 1))
    middle = (shares * e).sum(axis=0)
    # Not E[L^2] - E[L]^2, which cancels where the variance is small beside the mean.
    return middle, (shares * (v + (e - middle) ** 2)).sum(axis=0)


def saved_by_label(tariff: Tariff, cores: float, weights: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Return the mean saving of an hour when the kind is labelled: 0 or more.

    weights, mean, variance: (C,), the kinds' chances and their moments at the horizon.
    """
    w, v = np.asarray(weights, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    _, mixed = mixture_moments(w, mean, v)
    unlabelled = float(hourly_price(tariff, cores, mixed))
    labelled = float((w * hourly_price(tariff, cores, v)).sum() / w.sum())
    # The price is concave in the variance, cap and all, so that only rounding can bring this below 0.
    return max(unlabelled - labelled, 0.0)
