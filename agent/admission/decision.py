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
from agent.admission.horizons import bands_of, kappas_of
from agent.admission.records import Contributor
from agent.admission.rules import ClusterRules, PolicyKind
from domain.decisions import Reason
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import (
    budget_refusal,
    first_refusal,
    gamma_refusal,
    horizon_hours,
    second_refusal,
    sgamma_refusal,
    zeroth_admits,
)
from domain.rules.admission.rule import BANDS
from domain.rules.admission.tails import cantelli, gamma_tail, sgamma_tail

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
class _Chance:
    """What a rule by chances found, and what it allows."""

    found: float
    permitted: float


def judge(book: Book, deployment_id: str, cores: int, new: Curves, *, observed: bool) -> Verdict:
    """Return the verdict on a newcomer that fits now.

    new: its futures (1, H). observed: whether they rest on prior observations; only then may horizons at which it is
    marginal be left out. Where the cluster is unsafe, the numbers are those without the newcomer.
    """
    rules, horizons_h = book.rules, book.horizons_h
    kappas = kappas_of(rules, horizons_h)
    inside, newcomer = book.sums, new[0]
    together = inside + newcomer
    marginal_cores = rules.marginal_cores if observed else 0.0
    marginal = newcomer.mean < marginal_cores
    if rules.policy is PolicyKind.ZEROTH:
        refused = not zeroth_admits(book.total, cores, rules.capacity_cores, rules.limit_cores)
    else:
        refused = asked_at(book, kappas, inside, newcomer, marginal_cores) >= 0
    unsafe = first_unsafe(book) if refused else -1
    reason = Reason.REJECTED_UNSAFE if unsafe >= 0 else Reason.REJECTED_RULE if refused else Reason.ADMITTED
    sums = inside if unsafe >= 0 else together
    slack = slack_of(rules, kappas, sums)
    k = unsafe if unsafe >= 0 else binding(book, slack, sums, marginal)
    at = _At(
        float(horizons_h[k]),
        bands_of(horizons_h)[k],
        float(sums.mean[k]),
        math.sqrt(max(float(sums.variance[k]), 0.0)),
        float(kappas[k]),
    )
    chance = _failing(book, sums) if rules.policy is PolicyKind.BUDGET else _tail(rules, sums, k, rules.limit_cores)
    by_mean, by_variance = book.largest(k, TOP)
    peak = int(np.argmax(sums.mean))
    return Verdict(
        reason,
        _sentence(rules, book.total, cores, reason, at, _Chance(chance, _permitted(book))),
        at.hours,
        at.band,
        at.expected,
        at.sd,
        float(slack[k]),
        float(sums.mean[peak]) / rules.capacity_cores,
        float(horizons_h[peak]),
        cantelli(at.expected, at.sd * at.sd, float(rules.capacity_cores)),
        _sgamma(sums, k, float(rules.capacity_cores)) if rules.moments.has_third else None,
        tuple(dict.fromkeys(band for band, small in zip(bands_of(horizons_h), marginal, strict=True) if small)),
        _merged(by_mean, [] if unsafe >= 0 else [(deployment_id, float(newcomer.mean[k]))]),
        _merged(by_variance, [] if unsafe >= 0 else [(deployment_id, float(newcomer.variance[k]))]),
    )


def first_unsafe(book: Book) -> int:
    """Return the first horizon at which the rule fails for those inside alone, -1 when it holds."""
    rules = book.rules
    if rules.policy is PolicyKind.ZEROTH:
        return 0 if book.total >= rules.limit_cores else -1
    inside, kappas = book.sums, kappas_of(rules, book.horizons_h)
    nobody = Curves(*np.zeros((4, book.horizons_h.size)))
    if rules.policy is PolicyKind.BUDGET:
        # It is kept or broken by all horizons together.
        return asked_at(book, kappas, inside, nobody, 0.0)
    for k in range(book.horizons_h.size):
        one = slice(k, k + 1)
        if asked_at(book, kappas[one], inside[one], nobody[one], 0.0) >= 0:
            return k
    return -1


def worst_slack(book: Book) -> dict[str, float]:
    """Return the least room of each band for those inside, in cores; see AdmissionDecision.slack_cores."""
    slack = slack_of(book.rules, kappas_of(book.rules, book.horizons_h), book.sums)
    bands = np.array(bands_of(book.horizons_h))
    return {band: float(slack[bands == band].min()) for band in BANDS if np.any(bands == band)}


def asked_at(
    book: Book, kappas: Floats, inside: Curves, newcomer: Curves, marginal_cores: float, more_cores: float = 0.0
) -> int:
    """Return the horizon at which a rule that looks ahead refuses, -1 when it does not; with so many cores more."""
    rules = book.rules
    limit, risk = rules.limit_cores + more_cores, rules.risk or 0.0
    if rules.policy is PolicyKind.BUDGET:
        hours = horizon_hours(book.horizons_h)
        return budget_refusal(*inside.parts, *newcomer.parts, hours, _permitted(book), limit, marginal_cores)
    if rules.policy is PolicyKind.FIRST:
        return first_refusal(inside.mean, newcomer.mean, limit, marginal_cores, 0)
    if rules.policy is PolicyKind.SECOND:
        two = (inside.mean, inside.variance, newcomer.mean, newcomer.variance)
        return second_refusal(*two, kappas, limit, marginal_cores, 0)
    if rules.policy is PolicyKind.GAMMA:
        return gamma_refusal(*inside.parts[:2], *newcomer.parts[:2], risk, limit, marginal_cores, 0)
    return sgamma_refusal(*inside.parts[:3], *newcomer.parts[:3], risk, limit, marginal_cores, 0)


def _permitted(book: Book) -> float:
    """Return the chance, or the share of requests, that the rule allows now."""
    return (book.rules.risk or 0.0) * (book.unused_budget if book.rules.feedback else 1.0)


def slack_of(rules: ClusterRules, kappas: Floats, sums: Curves) -> Floats:
    """Return the cores that are left at each horizon by the mean and kappa standard deviations, (H,)."""
    return np.asarray(rules.limit_cores - sums.mean - kappas * np.sqrt(np.maximum(sums.variance, 0.0)))


def binding(book: Book, slack: Floats, sums: Curves, marginal: NDArray[np.bool_]) -> int:
    """Return the horizon with the least room; by chances, with the largest; of a budget, with most requests to fail.

    Marginal ones only when all are.
    """
    rules, room = book.rules, slack
    if rules.policy.by_risk:
        room = np.array([-_tail(rules, sums, k, rules.limit_cores) for k in range(slack.size)])
    if rules.policy is PolicyKind.BUDGET:
        room = room * sums.requests * horizon_hours(book.horizons_h)
    return int(np.argmin(room if marginal.all() else np.where(marginal, np.inf, room)))


def _failing(book: Book, sums: Curves) -> float:
    """Return the share of all requests to come that is forecast to fail."""
    asked = sums.requests * horizon_hours(book.horizons_h)
    chances = [_sgamma(sums, k, book.rules.limit_cores) for k in range(asked.size)]
    return float(asked @ np.array(chances) / asked.sum()) if asked.sum() > 0.0 else 0.0


def _tail(rules: ClusterRules, sums: Curves, k: int, limit: float) -> float:
    """Return the chance of more cores than the limit at a horizon, by the rule's own law."""
    if rules.policy is PolicyKind.GAMMA:
        mean = float(sums.mean[k])
        return gamma_tail(mean, max(float(sums.variance[k]), 0.0), limit) if mean > 0.0 else 0.0
    return _sgamma(sums, k, limit)


def _sgamma(sums: Curves, k: int, limit: float) -> float:
    return sgamma_tail(float(sums.mean[k]), max(float(sums.variance[k]), 0.0), float(sums.third[k]), limit)


def _merged(found: list[tuple[str, float]], more: list[tuple[str, float]]) -> tuple[Contributor, ...]:
    ordered = sorted([*found, *more], key=lambda pair: -pair[1])
    return tuple(Contributor(name, part) for name, part in ordered[:TOP])


def _sentence(rules: ClusterRules, total: int, cores: int, reason: Reason, at: _At, chance: _Chance) -> str:
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
            said += f", give or take {at.sd:,.1f}; "
            if rules.policy is PolicyKind.BUDGET:
                said += f"{chance.found:.2g} of all requests to come would fail, most of them then"
            else:
                said += f"the chance to exceed {limit} is {chance.found:.2g}"
            said += f", {chance.permitted:.3g} is allowed"
    return f"the cluster breaks its rule without this deployment: {said}" if reason is Reason.REJECTED_UNSAFE else said


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 100.0 else f"{hours:.3g} h"


def _words(name: str) -> str:
    return name.replace("_", " ")
