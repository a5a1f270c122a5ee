"""What deployments of one name were like: laws of a label and of its owner, learnt as deployments pass (§7, §8).

A name's law has the form of a `Population`: Gamma laws of mu, lam and sig. What is gathered of a name are the first two
moments of the logarithm of each of them, expected after all that was seen of each deployment (the belief of
specification §3, with the population as its prior). The conjugate update of a normal law of unknown mean and variance,
normal-inverse-gamma, gives the law of the next deployment; the Gamma law with the same two log-moments stands for it.
An owner's law is learnt within the population, a label's within that of its owner, so that a name of which nothing was
seen has the law above it, number for number.

How much a deployment counts: 1 - exp(-KL), where KL is the information that what was seen of it gave about the rate,
over the population. One of which nothing was seen counts nothing; one that lives long without an event does count. What
was gathered fades by half in each half-life.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Final, NamedTuple

import numpy as np

from domain.rules.admission.belief import Floats, Number, exact_belief, mu_nodes
from domain.rules.admission.names import RATES, Tally
from domain.rules.admission.population import Population

WITHIN_OWNER: Final = 2.0 / 3.0
WITHIN_LABEL: Final = 0.5
"""Share of a law's log-variance that is expected between deployments of one name below it, before any was seen."""
BELIEVED: Final = 4.0
"""Deployments as many as which that expectation counts."""
NODES: Final = 64
DROP: Final = 18.0
FLOOR: Final = -60.0
"""Points of mu for what is gathered of a deployment, the drop of log-density at the outer ones, the least ln mu."""
_SHIFT: Final = 12


class History(NamedTuple):
    """All that was seen of one deployment: see `Statistics`."""

    deaths: float
    core_hours: float
    scale_outs: float
    hours: float
    extra_cores: float
    size_draws: float
    shut_down: float
    """1 when all of it ended at once, else 0."""


def tally_of(population: Population, histories: Sequence[History], at: float) -> Tally:
    """Return what these deployments say together; the same, to the last digit, in the same order."""
    parts = gathered(population, np.array(histories, dtype=np.float64).reshape(len(histories), len(History._fields)).T)
    return Tally(at, float(len(histories)), tuple(float(part) for part in parts.sum(axis=1)), population.power)


def gathered(population: Population, histories: Floats) -> Floats:
    """Return (9, N): what `Tally.sums` adds up, of N deployments; histories: (7, N), in the order of `History`."""
    count = histories.shape[1]
    if not count:
        return np.zeros((3 * RATES, 0))
    deaths, core_hours, scale_outs, hours, extra_cores, size_draws, shut_down = histories
    laws: list[Floats] = [np.full(count, value) for value in astuple(population)]
    # The likelihood of a shutdown at T is mu / s exp(-mu T / s), that of one more core's end.
    laws += [deaths + shut_down, core_hours, scale_outs, hours, np.zeros(count), extra_cores, size_draws]
    shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate = exact_belief(*laws)
    mu, chance = np.empty((NODES, count)), np.empty((NODES, count))
    mu_nodes(shape, rate, lam_shape, lam_rate, exposure_h, population.power, DROP, FLOOR, mu, chance)
    of_mu = _spread(chance, np.log(mu), np.zeros(count))
    given_mu = digamma(lam_shape) - np.log(lam_rate + mu**population.power * exposure_h)
    of_lam = _spread(chance, given_mu, trigamma(lam_shape))
    of_sig = digamma(size_shape) - np.log(size_rate), trigamma(size_shape)
    parts = []
    for (mean, variance), (before, spread) in zip((of_mu, of_lam, of_sig), log_moments(population), strict=True):
        ratio = variance / spread
        information = 0.5 * (ratio - 1.0 - np.log(ratio) + (mean - before) ** 2 / spread)
        weight = -np.expm1(-np.maximum(information, 0.0))
        # Where little was seen, the variance is that of the prior and part of the law; where much was, it is the noise
        # about a rate that is known, which would otherwise widen the law.
        known = np.clip(1.0 - ratio, 0.0, 1.0)
        parts += [weight, weight * mean, weight * (mean * mean + (1.0 - 2.0 * known) * variance)]
    return np.array(parts)


def _spread(chance: Floats, value: Floats, inner: Floats) -> tuple[Floats, Floats]:
    mean = (chance * value).sum(axis=0)
    return mean, (chance * (value - mean) ** 2).sum(axis=0) + inner


def log_moments(law: Population) -> tuple[tuple[float, float], ...]:
    """Return mean and variance of ln mu, ln lam and ln sig."""
    pairs = ((law.mu_shape, law.mu_rate), (law.lam_shape, law.lam_rate), (law.sig_shape, law.sig_rate))
    return tuple((float(digamma(shape)) - math.log(rate), float(trigamma(shape))) for shape, rate in pairs)


def faded(tally: Tally, at: float, half_life_s: float) -> Tally:
    """Return a tally as it counts at a later time; an earlier one leaves it as it is."""
    if at <= tally.at:
        return tally
    left = 0.5 ** ((at - tally.at) / half_life_s)
    return Tally(at, tally.deployments * left, tuple(part * left for part in tally.sums), tally.power)


def joined(one: Tally, two: Tally, half_life_s: float) -> Tally:
    """Return both together, at the later of their times; of tallies of other powers the later one alone."""
    at = max(one.at, two.at)
    if one.power != two.power:
        return two if two.at >= one.at else one
    first, second = faded(one, at, half_life_s), faded(two, at, half_life_s)
    sums = tuple(a + b for a, b in zip(first.sums, second.sums, strict=True))
    return Tally(at, first.deployments + second.deployments, sums, one.power)


def _without(whole: Tally, part: Tally) -> Tally:
    """Return an owner's tally without one of its labels, both of one time; rounding leaves nothing below 0."""
    sums = [a - b for a, b in zip(whole.sums, part.sums, strict=True)]
    for k in range(0, len(sums), 3):
        if sums[k] <= 1e-9 * whole.sums[k]:
            sums[k : k + 3] = [0.0, 0.0, 0.0]
    return replace(whole, deployments=max(whole.deployments - part.deployments, 0.0), sums=tuple(sums))


def law_of(population: Population, owner: Tally | None, label: Tally | None) -> Population:
    """Return the law of the next deployment of a label; owner: everything of its owner, the label's included.

    Both tallies are of one time. Without either it is the population; one gathered by another power does not count.
    """
    owner, label = (tally if tally and tally.power == population.power else None for tally in (owner, label))
    law = population
    if owner is not None:
        law = law_within(law, owner if label is None else _without(owner, label), WITHIN_OWNER)
    return law if label is None else law_within(law, label, WITHIN_LABEL)


def law_within(law: Population, tally: Tally, within: float) -> Population:
    """Return the law of the next deployment of a name below `law`; within: see `WITHIN_LABEL`.

    Per rate, normal-inverse-gamma: a mean that counts as within / (1 - within) deployments, and a variance within
    the name of `within` times that of the law, which counts as BELIEVED ones.
    """
    numbers: list[float] = []
    kept = astuple(law)
    for k, (mean, variance) in enumerate(log_moments(law)):
        weight, first, second = tally.sums[3 * k : 3 * k + 3]
        if weight <= 0.0:
            numbers += kept[2 * k : 2 * k + 2]
            continue
        prior = within / (1.0 - within)
        middle = first / weight
        scatter = max(second - first * middle, 0.0) + prior * weight / (prior + weight) * (middle - mean) ** 2
        inner = (BELIEVED * within * variance + scatter) / (BELIEVED + weight)
        shape = inverse_trigamma(inner * (1.0 + 1.0 / (prior + weight)))
        centre = (prior * mean + first) / (prior + weight)
        numbers += [shape, math.exp(float(digamma(shape)) - centre)]
    return Population(*numbers, *kept[len(numbers) :])


def digamma(x: Number) -> Number:
    """Return the derivative of ln Gamma at x > 0, elementwise, to some 1e-13."""
    far = x + _SHIFT
    y = 1.0 / (far * far)
    value: Number = np.log(far) - 0.5 / far - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))
    for k in range(_SHIFT):
        value = value - 1.0 / (x + k)
    return value


def trigamma(x: Number) -> Number:
    """Return the second derivative of ln Gamma at x > 0, elementwise, to some 1e-13."""
    far = x + _SHIFT
    y = 1.0 / (far * far)
    value: Number = (1.0 + 0.5 / far + y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))) / far
    for k in range(_SHIFT):
        value = value + 1.0 / ((x + k) * (x + k))
    return value


def inverse_trigamma(value: float) -> float:
    """Return x > 0 with trigamma(x) = value, which is above 0: Newton's steps on 1 / trigamma, which is convex."""
    x = 0.5 + 1.0 / value
    for _ in range(50):
        found = trigamma(x)
        step = found * (1.0 - found / value) / _tetragamma(x)
        x += step
        if -step < 1e-14 * x:
            break
    return float(x)


def _tetragamma(x: float) -> float:
    far = x + _SHIFT
    y = 1.0 / (far * far)
    value = -y * (1.0 + 1.0 / far + y * (0.5 - y * (1 / 6 - y * (1 / 6 - 0.3 * y))))
    for k in range(_SHIFT):
        value -= 2.0 / (x + k) ** 3
    return value
