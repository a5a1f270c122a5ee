"""Both fits of a population: the likeliest one, by empirical Bayes, and the published one, in two steps (§9).

Empirical Bayes (§9.8). Of each deployment counts what `Histories` has: cores ended, core-hours, scale-outs, sizes,
hours, how it ended. Its rates are integrated out, lam and sig in closed form and mu over points, so that a deployment
of which little was seen says little, and nothing has to be made up for one that never scaled.

A table's clock has steps of `grid_h`. Two corrections keep the steps from biasing the fit: of two requests in one step
one is seen, so a request costs half a step of exposure; and machines that end in one step may have ended one by one,
so that the end of a deployment is a shutdown with a probability only, more surely the more machines it took.

Two steps (§9.3-7): rates of each deployment first, then gamma laws of the rates. A deployment that never scaled out has
no rate: it gets the one at which seeing none has probability eps1; one whose requests never had more than one core gets
its size by eps2 likewise. Both are chosen so that sizes come out as seen. Sections are those of the admission
specification.
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
from trainer.admission.fitting.histories import Histories
from trainer.admission.fitting.lives import compiled, drawn_from, lives_of, uniforms

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
OnProgress = Callable[[int, float], None]
"""Called with the number of the evaluation and the log-likelihood per deployment, or the distance."""


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
class Evidence:
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


def seen_of(histories: Histories) -> Evidence:
    """Return what counts of each deployment."""
    scale_outs = histories.scale_outs.astype(np.float64)
    exposure = np.maximum(histories.hours - 0.5 * histories.grid_h * scale_outs, 0.5 * histories.grid_h)
    return Evidence(
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


def rates_likelihood(parameters: Floats, seen: Evidence, grid_h: float, nodes: int = NODES) -> tuple[float, Floats]:
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


def sizes_likelihood(parameters: Floats, seen: Evidence) -> tuple[float, Floats]:
    """Return log-likelihood and gradient (2,) of the sizes by (sig_shape, sig_rate)."""
    from scipy.special import digamma, gammaln

    a, b = parameters
    shape, rate = a + seen.extra, b + seen.size_draws
    total = np.sum(gammaln(shape) - gammaln(a) + a * np.log(b) - shape * np.log(rate))
    by_shape = np.sum(digamma(shape) - digamma(a) + np.log(b) - np.log(rate))
    return float(total), np.array([by_shape, np.sum(a / b - shape / rate)])


def log_likelihood(histories: Histories, population: Population) -> float:
    """Return the log-likelihood of histories under a population, but for terms that no parameter changes."""
    seen, p = seen_of(histories), population
    rates = np.array([p.mu_shape, p.mu_rate, p.lam_shape, p.lam_rate, p.power, p.lifetimes])
    by_rate, _ = rates_likelihood(rates, seen, histories.grid_h)
    return by_rate + sizes_likelihood(np.array([p.sig_shape, p.sig_rate]), seen)[0]


def fit_marginal(histories: Histories, start: Population, on_progress: OnProgress | None = None) -> MarginalFit:
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
        if on_progress is not None:
            on_progress(calls, value / len(histories))
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


EPS_LOW, EPS_HIGH = 1e-3, 0.9
EPS_START = (0.1, 0.1)
EVALUATIONS = 60


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
    histories: Histories, *, simulated: int = 50_000, seed: int = 0, on_progress: OnProgress | None = None
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
        if on_progress is not None:
            on_progress(len(tried), value)
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
