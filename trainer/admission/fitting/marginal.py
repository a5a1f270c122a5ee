"""The empirical-Bayes fit: the population under which all that was seen is likeliest (admission specification §9.8).

Of each deployment counts what `Histories` has: cores ended, core-hours, scale-outs, sizes, hours, how it ended. Its
rates are integrated out, lam and sig in closed form and mu over points, so that a deployment of which little was seen
says little, and nothing has to be made up for one that never scaled.

A table's clock has steps of `grid_h`. Two corrections keep the steps from biasing the fit: of two requests in one step
one is seen, so a request costs half a step of exposure; and machines that end in one step may have ended one by one,
so that the end of a deployment is a shutdown with a probability only, more surely the more machines it took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import TraceError
from domain.rules.admission.compiled import compile_all
from domain.rules.admission.population import Population
from trainer.admission.fitting.compiled import compiled
from trainer.admission.fitting.histories import Histories

Floats = NDArray[np.float64]
NODES = 24
DROP = 14.0
FLOOR = -24.0
"""Points of mu, the drop of the log-density at the outer ones, and the least ln mu."""
POWER_BOUNDS = (0.0, 1.5)
LOG_BOUND = math.log(1e6)
DIFFERENCE = 1e-4

RULES = compile_all(compiled)
_mu_nodes = RULES.mu_nodes
Told = Callable[[int, float], None]
"""Is told the evaluation's number and the log-likelihood per deployment."""


@dataclass(frozen=True, slots=True)
class MarginalFit:
    """The population, how well each parameter is known, and how the search went."""

    population: Population
    relative_errors: dict[str, float]
    """Standard error of each parameter as a share of it, by the curvature at the top; of `power` itself."""
    log_likelihood: float
    """Natural logarithm, of all deployments, but for terms that no parameter changes."""
    evaluations: int
    converged: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What counts of each deployment, arrays (N,), as compiled code takes it."""

    deaths: Floats
    """Cores that ended before the last instant, and one for the end of a dead deployment."""
    core_hours: Floats
    scale_outs: Floats
    hours: Floats
    exposure_h: Floats
    last: Floats
    """Machines that ended at the last instant, 0 where it lives on."""
    extra: Floats
    size_draws: Floats


def seen_of(histories: Histories) -> Seen:
    """Return what counts of each deployment."""
    scale_outs = histories.scale_outs.astype(np.float64)
    exposure = np.maximum(histories.hours - 0.5 * histories.grid_h * scale_outs, 0.5 * histories.grid_h)
    return Seen(
        deaths=(histories.ended - histories.last_cores + histories.dead).astype(np.float64),
        core_hours=histories.core_hours,
        scale_outs=scale_outs,
        hours=histories.hours,
        exposure_h=np.minimum(exposure, histories.hours),
        last=histories.last_vms.astype(np.float64),
        extra=histories.extra.astype(np.float64),
        size_draws=scale_outs + 1.0,
    )


@compiled
def _rates_likelihood(
    parameters: Floats,
    grid_h: float,
    deaths: Floats,
    core_hours: Floats,
    scale_outs: Floats,
    hours: Floats,
    exposure_h: Floats,
    last: Floats,
    digammas: Floats,
    mu: Floats,
    weight: Floats,
    gradient: Floats,
) -> float:
    """Return the log-likelihood of all but the sizes, and add its gradient.

    parameters: mu_shape, mu_rate, lam_shape, lam_rate, power, lifetimes. digammas: of lam_shape + scale_outs, then of
    mu_shape and lam_shape. By Fisher's identity the gradient is the posterior mean of that of the joint log-density.
    """
    a, b, c, d, r, s = parameters
    digamma_a, digamma_c = digammas[-2], digammas[-1]
    nodes = len(mu)
    total = 0.0
    for i in range(len(deaths)):
        grown = c + scale_outs[i]
        log_z = _mu_nodes(
            a + deaths[i] + r * scale_outs[i],
            b + core_hours[i] + hours[i] / s,
            *(grown, d, exposure_h[i], r, DROP, FLOOR, mu, weight),
        )
        log_z += math.lgamma(grown) - math.lgamma(c) + c * math.log(d) + a * math.log(b) - math.lgamma(a)
        mass = 0.0
        by_a, by_b, by_c, by_d, by_r, by_s = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(nodes):
            w, m = weight[j], mu[j]
            u = math.log(m)
            stop = 0.0
            if last[i] > 0.0:
                # Shut down, or every machine on its own within one step of the clock; mu itself is among the deaths.
                x = m * grid_h
                end = 1.0 / s + (-math.expm1(-x)) ** last[i] / x
                stop = -1.0 / (s * end)
                w *= end
            power = math.exp(r * u)
            share = grown / (d + power * exposure_h[i])
            mass += w
            by_a += w * u
            by_b += w * m
            by_c += w * math.log(d + power * exposure_h[i])
            by_d += w * share
            by_r += w * u * (scale_outs[i] - share * power * exposure_h[i])
            by_s += w * (m * hours[i] / s + stop)
        total += log_z + math.log(mass)
        gradient[0] += math.log(b) - digamma_a + by_a / mass
        gradient[1] += a / b - by_b / mass
        gradient[2] += math.log(d) - digamma_c + digammas[i] - by_c / mass
        gradient[3] += c / d - by_d / mass
        gradient[4] += by_r / mass
        gradient[5] += by_s / mass / s
    return total


def rates_likelihood(parameters: Floats, seen: Seen, grid_h: float, nodes: int = NODES) -> tuple[float, Floats]:
    """Return log-likelihood and gradient (6,) by (mu_shape, mu_rate, lam_shape, lam_rate, power, lifetimes)."""
    from scipy.special import digamma

    a, _, c, _, _, _ = parameters
    gradient = np.zeros(6)
    total = _rates_likelihood(
        *(np.asarray(parameters, dtype=np.float64), grid_h, seen.deaths, seen.core_hours, seen.scale_outs, seen.hours),
        *(seen.exposure_h, seen.last, np.append(digamma(c + seen.scale_outs), (digamma(a), digamma(c)))),
        *(np.empty(nodes), np.empty(nodes), gradient),
    )
    return total, gradient


def sizes_likelihood(parameters: Floats, seen: Seen) -> tuple[float, Floats]:
    """Return log-likelihood and gradient (2,) of the sizes by (sig_shape, sig_rate)."""
    from scipy.special import digamma, gammaln

    a, b = parameters
    shape, rate = a + seen.extra, b + seen.size_draws
    total = np.sum(gammaln(shape) - gammaln(a) + a * np.log(b) - shape * np.log(rate))
    by_shape = np.sum(digamma(shape) - digamma(a) + np.log(b) - np.log(rate))
    return float(total), np.array([by_shape, np.sum(a / b - shape / rate)])


def fit_marginal(histories: Histories, start: Population, told: Told | None = None) -> MarginalFit:
    """Return the population under which the histories are likeliest, searched from `start`.

    Raises TraceError where no core ended, no deployment scaled out, or no request had more than one core: nothing says
    then what the rate is.
    """
    seen = seen_of(histories)
    for name, column in (("ended cores", seen.deaths), ("scale-outs", seen.scale_outs), ("extra cores", seen.extra)):
        if not column.any():
            raise TraceError("TRACE", f"{len(histories)} deployments", f"give a table with {name}: this one has none")
    calls = 0

    def rates(x: Floats) -> tuple[float, Floats]:
        nonlocal calls
        calls += 1
        parameters = np.exp(x)
        parameters[4] = x[4]
        value, gradient = rates_likelihood(parameters, seen, histories.grid_h)
        gradient *= np.where(np.arange(6) == 4, 1.0, parameters)
        if told is not None:
            told(calls, value / len(histories))
        return -value / len(histories), -gradient / len(histories)

    def sizes(x: Floats) -> tuple[float, Floats]:
        parameters = np.exp(x)
        value, gradient = sizes_likelihood(parameters, seen)
        return -value / len(histories), -gradient * parameters / len(histories)

    wide = (-LOG_BOUND, LOG_BOUND)
    first = np.log([start.mu_shape, start.mu_rate, start.lam_shape, start.lam_rate, 1.0, start.lifetimes])
    first[4] = start.power
    by_rate = _climb(rates, first, [wide, wide, wide, wide, POWER_BOUNDS, wide])
    by_size = _climb(sizes, np.log([start.sig_shape, start.sig_rate]), [wide, wide])
    a, b, c, d, _, s = np.exp(by_rate.at).tolist()
    e, f = np.exp(by_size.at).tolist()
    population = Population(a, b, c, d, e, f, float(by_rate.at[4]), s)
    errors = [*_errors(rates, by_rate.at, len(histories)), *_errors(sizes, by_size.at, len(histories))]
    names = ("mu_shape", "mu_rate", "lam_shape", "lam_rate", "power", "lifetimes", "sig_shape", "sig_rate")
    return MarginalFit(
        population,
        dict(zip(names, errors, strict=True)),
        -(by_rate.value + by_size.value) * len(histories),
        calls,
        by_rate.converged and by_size.converged,
    )


@dataclass(frozen=True, slots=True)
class _Top:
    at: Floats
    value: float
    converged: bool


def _climb(
    function: Callable[[Floats], tuple[float, Floats]], start: Floats, bounds: list[tuple[float, float]]
) -> _Top:
    from scipy.optimize import minimize

    low, high = np.array(bounds).T
    found = minimize(
        function,
        np.clip(start, low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 300, "ftol": 1e-11, "gtol": 1e-6},
    )
    return _Top(found.x, float(found.fun), bool(found.success))


def _errors(function: Callable[[Floats], tuple[float, Floats]], at: Floats, count: int) -> list[float]:
    """Return standard errors by the inverse of the second derivatives, from differences of the gradient."""
    steps = DIFFERENCE * np.eye(len(at))
    hessian = np.array([(function(at + step)[1] - function(at - step)[1]) / (2.0 * DIFFERENCE) for step in steps])
    variance = np.diag(np.linalg.pinv(0.5 * (hessian + hessian.T) * count))
    return [math.sqrt(max(value, 0.0)) for value in variance.tolist()]
