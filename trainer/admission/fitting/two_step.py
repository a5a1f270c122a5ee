"""The published fit: rates of each deployment first, then gamma laws of the rates (specification §9.3-7).

A deployment that never scaled out has no rate: it gets the one at which seeing none has probability eps1; one whose
requests never had more than one core gets its size by eps2 likewise. Both are chosen so that sizes come out as seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import TraceError
from domain.rules.admission.population import Population
from trainer.admission.fitting.histories import Histories
from trainer.admission.fitting.lives import drawn_from, lives_of, uniforms

Floats = NDArray[np.float64]
EPS_LOW, EPS_HIGH = 1e-3, 0.9
EPS_START = (0.1, 0.1)
EVALUATIONS = 60
Told = Callable[[int, float], None]
"""Is told the evaluation's number and the distance."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of each deployment of which a core ended, arrays (N,); per hour."""

    mu: Floats
    theta: Floats
    sig: Floats
    lifetimes: float
    """s: core lifetimes that all deployments lived, over the shutdowns among them."""


@dataclass(frozen=True, slots=True)
class TwoStepFit:
    """The population, the two probabilities, and how far its sizes are from those seen."""

    population: Population
    eps1: float
    eps2: float
    distance: float
    """Discrete Cramer-von Mises distance of the largest sizes."""
    evaluations: int


def rates_of(histories: Histories, eps1: float, eps2: float) -> Rates:
    """Return the rates of single deployments (specification §9.3, §9.4).

    The first request counts as one draw of the request-size law, as it does in the belief (§2). Raises TraceError where
    no core ended or nothing was shut down.
    """
    seen = histories.some(histories.ended > 0)
    if not len(seen):
        raise TraceError("TRACE", f"{len(histories)} deployments", "give a table with cores that end inside the window")
    mu = seen.ended / seen.core_hours
    theta = np.where(seen.scale_outs > 0, seen.scale_outs, -math.log(eps1)) / seen.hours
    draws = seen.scale_outs + 1.0
    sig = np.where(seen.extra > 0, seen.extra, -math.log(eps2)) / draws
    shutdowns = int(seen.shut_down.sum())
    if not shutdowns:
        raise TraceError("TRACE", f"{len(histories)} deployments", "give a table with a shutdown: this one has none")
    return Rates(mu, theta, sig, float((seen.hours * mu).sum()) / shutdowns)


def power_of(mu: Floats, theta: Floats) -> float:
    """Return r in 0..1.5 at which theta mu^-r varies least: by its mean absolute deviation (specification §9.5)."""
    from scipy.optimize import minimize_scalar

    log_mu, log_theta = np.log(mu), np.log(theta)

    def deviation(r: float) -> float:
        lam = np.exp(log_theta - r * log_mu)
        return float(np.mean(np.abs(lam / lam.mean() - 1.0)))

    coarse = np.linspace(0.0, 1.5, 31)
    best = float(coarse[np.argmin([deviation(r) for r in coarse])])
    bounds = (max(best - 0.05, 0.0), min(best + 0.05, 1.5))
    found = minimize_scalar(deviation, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return float(found.x)


def gamma_of(values: Floats) -> tuple[float, float]:
    """Return shape and rate of the gamma law under which the values are likeliest, by Newton's method (§9.6).

    Solves ln a - digamma(a) = ln mean - mean ln. Values that are all alike give the shape 1e6.
    """
    from scipy.special import digamma, polygamma

    mean = float(values.mean())
    gap = math.log(mean) - float(np.log(values).mean())
    if gap < 5e-7:
        return 1e6, 1e6 / mean
    shape = (3.0 - gap + math.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap)
    for _ in range(50):
        step = (math.log(shape) - float(digamma(shape)) - gap) / (1.0 / shape - float(polygamma(1, shape)))
        # A step beyond 0 is halved in place of taken.
        shape, before = shape - step if step < shape else 0.5 * shape, shape
        if abs(shape - before) < 1e-12 * before:
            break
    return shape, shape / mean


def population_at(histories: Histories, eps1: float, eps2: float) -> Population:
    """Return the population that the two probabilities give."""
    rates = rates_of(histories, eps1, eps2)
    power = power_of(rates.mu, rates.theta)
    mu, lam, sig = (gamma_of(values) for values in (rates.mu, rates.theta * rates.mu**-power, rates.sig))
    return Population(*mu, *lam, *sig, power, rates.lifetimes)


def cramer_von_mises(seen: NDArray[np.int64], model: NDArray[np.int64]) -> float:
    """Return the sum over sizes k of (F_seen(k) - F_model(k))^2 f_seen(k) (specification §9.7)."""
    sizes, counts = np.unique(seen, return_counts=True)
    of_seen = np.cumsum(counts) / len(seen)
    of_model = np.searchsorted(np.sort(model), sizes, side="right") / len(model)
    return float(np.sum((of_seen - of_model) ** 2 * counts) / len(seen))


def window_hours(histories: Histories, count: int, seed: int) -> Floats:
    """Return hours to live for `count` simulated deployments: what the table's own had until the window ended."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 3])))
    left = histories.window_h - histories.began_h
    # Each deployment's hours as often as the others', but for the remainder.
    return np.asarray(generator.permutation(np.resize(left, count)))


def fit_two_step(
    histories: Histories, *, simulated: int = 50_000, seed: int = 0, told: Told | None = None
) -> TwoStepFit:
    """Return the published fit; the two probabilities by Nelder and Mead's method in logit space.

    simulated: deployments that every trial is measured on, the same random numbers in each.
    """
    from scipy.optimize import minimize

    quantiles, hours = uniforms(simulated, seed), window_hours(histories, simulated, seed)
    tried: list[tuple[float, float, float]] = []

    def probability(x: float) -> float:
        return EPS_LOW + (EPS_HIGH - EPS_LOW) / (1.0 + math.exp(-min(max(x, -30.0), 30.0)))

    def logit(p: float) -> float:
        return math.log((p - EPS_LOW) / (EPS_HIGH - p))

    def distance(x: Floats) -> float:
        eps1, eps2 = probability(x[0]), probability(x[1])
        population = population_at(histories, eps1, eps2)
        lives = lives_of(drawn_from(population, quantiles, hours, seed), population.lifetimes)
        value = cramer_von_mises(histories.peak, lives.peak)
        tried.append((value, eps1, eps2))
        if told is not None:
            told(len(tried), value)
        return value

    start = np.array([logit(p) for p in EPS_START])
    simplex = start + np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    minimize(
        distance,
        start,
        method="Nelder-Mead",
        options={"initial_simplex": simplex, "maxfev": EVALUATIONS, "xatol": 0.02, "fatol": 1e-7},
    )
    # The last trials may have been cut off before the method took them over.
    best, eps1, eps2 = min(tried)
    return TwoStepFit(population_at(histories, eps1, eps2), eps1, eps2, best, len(tried))
