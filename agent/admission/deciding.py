"""Whether a newcomer may come in, asked of the sums of a cluster's futures, with all that a person will want to know.

The rules are `domain.rules.admission.policies`; what stands here is which horizon speaks, and the numbers beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.admission.book import Book
from agent.admission.futures import Curves
from agent.admission.horizons import BANDS, bands_of, kappas_of
from agent.admission.records import Contributor
from agent.admission.rules import ClusterRules, Moments, PolicyKind
from domain.decisions import Reason
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import first_refusal, second_refusal, sgamma_refusal, zeroth_admits
from domain.rules.admission.tails import cantelli, sgamma_tail

TOP: Final = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rule says of a newcomer, and the numbers at the horizon with the least room; see AdmissionDecision."""

    reason: Reason
    detail: str
    binding_hours: float
    binding_band: str
    expected_cores: float
    sd_cores: float
    slack_cores: float
    peak_utilisation: float
    peak_hours: float
    cantelli: float
    sgamma: float | None
    marginal_bands: tuple[str, ...]
    top_expected: tuple[Contributor, ...]
    top_variance: tuple[Contributor, ...]


@dataclass(frozen=True, slots=True)
class _At:
    """A horizon, and what is expected there."""

    hours: float
    band: str
    expected: float
    sd: float
    kappa: float


@dataclass(frozen=True, slots=True)
class _Sums:
    mean: Floats
    variance: Floats
    third: Floats


def judge(book: Book, deployment_id: str, cores: int, new: Curves, *, observed: bool) -> Verdict:
    """Return the verdict on a newcomer that fits now.

    new: its futures (1, H). observed: whether they rest on prior observations; only then may horizons at which it is
    marginal be left out. Where the cluster is unsafe, the numbers are those without the newcomer.
    """
    rules, horizons_h = book.rules, book.horizons_h
    kappas = kappas_of(rules, horizons_h)
    inside = _inside(book)
    newcomer = _Sums(new.mean[0], new.variance[0], new.third[0])
    together = _Sums(inside.mean + newcomer.mean, inside.variance + newcomer.variance, inside.third + newcomer.third)
    marginal_cores = rules.marginal_cores if observed else 0.0
    marginal = newcomer.mean < marginal_cores
    if rules.policy is PolicyKind.ZEROTH:
        refused = not zeroth_admits(book.total, cores, rules.capacity_cores, rules.limit_cores)
    else:
        refused = _asked(rules, kappas, inside, newcomer, marginal_cores) >= 0
    unsafe = first_unsafe(book) if refused else -1
    reason = Reason.REJECTED_UNSAFE if unsafe >= 0 else Reason.REJECTED_RULE if refused else Reason.ADMITTED
    sums = inside if unsafe >= 0 else together
    slack = _slack(rules, kappas, sums)
    k = unsafe if unsafe >= 0 else _binding(rules, slack, sums, marginal)
    at = _At(
        float(horizons_h[k]),
        bands_of(horizons_h)[k],
        float(sums.mean[k]),
        math.sqrt(max(float(sums.variance[k]), 0.0)),
        float(kappas[k]),
    )
    three = rules.moments in (Moments.AB, Moments.AB_FAST)
    by_mean, by_variance = book.largest(k, TOP)
    peak = int(np.argmax(sums.mean))
    return Verdict(
        reason,
        _sentence(rules, book.total, cores, reason, at, _tail(sums, k, rules.limit_cores)),
        at.hours,
        at.band,
        at.expected,
        at.sd,
        float(slack[k]),
        float(sums.mean[peak]) / rules.capacity_cores,
        float(horizons_h[peak]),
        cantelli(at.expected, at.sd * at.sd, float(rules.capacity_cores)),
        _tail(sums, k, float(rules.capacity_cores)) if three else None,
        tuple(dict.fromkeys(band for band, small in zip(bands_of(horizons_h), marginal, strict=True) if small)),
        _merged(by_mean, [] if unsafe >= 0 else [(deployment_id, float(newcomer.mean[k]))]),
        _merged(by_variance, [] if unsafe >= 0 else [(deployment_id, float(newcomer.variance[k]))]),
    )


def first_unsafe(book: Book) -> int:
    """Return the first horizon at which the rule fails for those inside alone, -1 when it holds."""
    rules = book.rules
    if rules.policy is PolicyKind.ZEROTH:
        return 0 if book.total >= rules.limit_cores else -1
    inside, kappas = _inside(book), kappas_of(rules, book.horizons_h)
    for k in range(book.horizons_h.size):
        one = slice(k, k + 1)
        part = _Sums(inside.mean[one], inside.variance[one], inside.third[one])
        none = _Sums(np.zeros(1), np.zeros(1), np.zeros(1))
        if _asked(rules, kappas[one], part, none, 0.0) >= 0:
            return k
    return -1


def worst_slack(book: Book) -> dict[str, float]:
    """Return the least room of each band for those inside, in cores; see AdmissionDecision.slack_cores."""
    slack = _slack(book.rules, kappas_of(book.rules, book.horizons_h), _inside(book))
    bands = np.array(bands_of(book.horizons_h))
    return {band: float(slack[bands == band].min()) for band in BANDS if np.any(bands == band)}


def _inside(book: Book) -> _Sums:
    return _Sums(book.mean_sum, book.variance_sum, book.third_sum)


def _asked(rules: ClusterRules, kappas: Floats, inside: _Sums, newcomer: _Sums, marginal_cores: float) -> int:
    limit = rules.limit_cores
    if rules.policy is PolicyKind.FIRST:
        return first_refusal(inside.mean, newcomer.mean, limit, marginal_cores, 0)
    if rules.policy is PolicyKind.SECOND:
        two = (inside.mean, inside.variance, newcomer.mean, newcomer.variance)
        return second_refusal(*two, kappas, limit, marginal_cores, 0)
    three = (inside.mean, inside.variance, inside.third, newcomer.mean, newcomer.variance, newcomer.third)
    return sgamma_refusal(*three, rules.risk or 0.0, limit, marginal_cores, 0)


def _slack(rules: ClusterRules, kappas: Floats, sums: _Sums) -> Floats:
    return np.asarray(rules.limit_cores - sums.mean - kappas * np.sqrt(np.maximum(sums.variance, 0.0)))


def _binding(rules: ClusterRules, slack: Floats, sums: _Sums, marginal: NDArray[np.bool_]) -> int:
    """Return the horizon with the least room; for sgamma, with the largest risk. Marginal ones only when all are."""
    if rules.policy is PolicyKind.SGAMMA:
        room = np.array([-_tail(sums, k, rules.limit_cores) for k in range(slack.size)])
    else:
        room = slack
    return int(np.argmin(room if marginal.all() else np.where(marginal, np.inf, room)))


def _tail(sums: _Sums, k: int, limit: float) -> float:
    return sgamma_tail(float(sums.mean[k]), max(float(sums.variance[k]), 0.0), float(sums.third[k]), limit)


def _merged(found: list[tuple[str, float]], more: list[tuple[str, float]]) -> tuple[Contributor, ...]:
    ordered = sorted([*found, *more], key=lambda pair: -pair[1])
    return tuple(Contributor(name, part) for name, part in ordered[:TOP])


def _sentence(rules: ClusterRules, total: int, cores: int, reason: Reason, at: _At, tail: float) -> str:
    keeps = reason is Reason.ADMITTED
    limit = f"{rules.limit_cores:,.0f}"
    if rules.policy is PolicyKind.ZEROTH:
        said = f"{total:,} cores are taken, {cores:,} more make {total + cores:,}"
        said += f", {'below' if keeps else 'not below'} the threshold of {limit}"
    else:
        said = f"{at.expected:,.1f} cores are expected in {_hours(at.hours)} (band: {_words(at.band)})"
        if rules.policy is PolicyKind.FIRST:
            said += f", {'below' if keeps else 'not below'} the threshold of {limit}"
        elif rules.policy is PolicyKind.SECOND:
            within = "stays within" if keeps else "exceeds"
            said += f", give or take {at.sd:,.1f}; {at.kappa:.3g} times that on top {within} {limit}"
        else:
            said += f", give or take {at.sd:,.1f}; the chance to exceed {limit} is {tail:.2g}"
            said += f", {rules.risk:g} is allowed"
    return f"the cluster breaks its rule without this deployment: {said}" if reason is Reason.REJECTED_UNSAFE else said


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 100.0 else f"{hours:.3g} h"


def _words(name: str) -> str:
    return name.replace("_", " ")
