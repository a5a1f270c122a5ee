"""Whether a newcomer may come in, asked of the sums of a cluster's futures, with all that a person will want to know.

The rules are `domain.rules.admission.policies`; what stands here is which horizon speaks, and the numbers beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.admission.book import Book, bands_of, kappas_of
from agent.admission.futures import Curves
from agent.admission.records import (
    LONGEST_ID,
    LONGEST_WORDS,
    AdmissionDecision,
    AdmissionRequest,
    Contributor,
    HourPrice,
    PriorKind,
    PriorSource,
    recorded_cores,
)
from domain.decisions import Reason
from domain.rules.admission.belief import Floats
from domain.rules.admission.cluster import ClusterRules, PolicyKind
from domain.rules.admission.names import LONGEST_NAME
from domain.rules.admission.payment import kept_free
from domain.rules.admission.policies import (
    OVER,
    PART,
    UNDER,
    budget_refusal,
    cantelli,
    cores_per_variance,
    first_refusal,
    gamma_refusal,
    gamma_tail,
    horizon_hours,
    second_refusal,
    sgamma_refusal,
    sgamma_tail,
    zeroth_admits,
)
from domain.rules.admission.rule import BANDS
from domain.units import HOURS_PER_DAY

TOP: Final = 5


@dataclass(frozen=True, slots=True)
class _At:
    """A horizon, and what is expected there."""

    hours: float
    band: str
    expected: float
    sd: float
    kappa: float


def undecided(book: Book, request: AdmissionRequest, decision_id: str, now: float) -> AdmissionDecision:
    """Return what stands in the record of a request before anything was asked of the rule: it is not admitted."""
    rules = book.rules
    return AdmissionDecision(
        decision_id=decision_id,
        at=now,
        cluster=rules.name,
        deployment_id=str(request.deployment_id)[:LONGEST_ID],
        cores=recorded_cores(request.cores),
        admit=False,
        reason=Reason.REJECTED_INPUT,
        detail="",
        policy=rules.text,
        capacity_cores=rules.capacity_cores,
        threshold_cores=rules.threshold_cores,
        kappa=rules.standard_deviations,
        risk_limit=rules.risk,
        config_hash=book.config_hash,
        total_cores=book.total,
        live=len(book),
        prior=PriorSource(PriorKind.POPULATION),
        requested_by=str(request.requested_by)[:LONGEST_WORDS],
        request_id=str(request.request_id)[:LONGEST_WORDS],
        label=str(request.label)[:LONGEST_NAME],
        owner=str(request.owner)[:LONGEST_NAME],
        deferred_cores=book.deferred,
    )


def judge(book: Book, asked: AdmissionDecision, new: Curves, *, observed: bool) -> AdmissionDecision:
    """Return the decision on a newcomer that fits now; asked: see `undecided`.

    new: its futures (1, H). observed: whether they rest on prior observations; only then may horizons at which it is
    marginal be left out. Where the cluster is unsafe, the numbers are those without the newcomer.
    """
    rules, horizons_h, cores = book.rules, book.horizons_h, asked.cores
    bands = bands_of(horizons_h)
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
        bands[k],
        float(sums.mean[k]),
        math.sqrt(max(float(sums.variance[k]), 0.0)),
        float(kappas[k]),
    )
    chance = _failing(book, sums) if rules.policy is PolicyKind.BUDGET else _tail(rules, sums, k, rules.limit_cores)
    by_mean, by_variance = book.largest(k, TOP)
    peak = int(np.argmax(sums.mean))
    return replace(
        asked,
        admit=reason is Reason.ADMITTED,
        reason=reason,
        detail=_sentence(rules, book.total, cores, reason, at, chance, _permitted(book)),
        binding_hours=at.hours,
        binding_band=at.band,
        expected_cores=at.expected,
        sd_cores=at.sd,
        slack_cores=float(slack[k]),
        peak_utilisation=float(sums.mean[peak]) / rules.capacity_cores,
        peak_hours=float(horizons_h[peak]),
        cantelli=cantelli(at.expected, at.sd * at.sd, float(rules.capacity_cores)),
        sgamma=_sgamma(sums, k, float(rules.capacity_cores)) if rules.moments.has_third else None,
        marginal_bands=tuple(dict.fromkeys(band for band, small in zip(bands, marginal, strict=True) if small)),
        top_expected=_merged(by_mean, asked.deployment_id, None if unsafe >= 0 else float(newcomer.mean[k])),
        top_variance=_merged(by_variance, asked.deployment_id, None if unsafe >= 0 else float(newcomer.variance[k])),
        price=_price(rules, book.horizons_h, kappas, inside, newcomer, cores),
    )


def _price(
    rules: ClusterRules, horizons_h: Floats, kappas: Floats, inside: Curves, newcomer: Curves, cores: int
) -> HourPrice | None:
    """Return what an hour of a newcomer takes from the cluster as it is; see `HourPrice`."""
    if rules.standard_deviations is None:
        return None
    k = day_ahead(horizons_h)
    kept = kept_free(float(kappas[k]), max(float(inside.variance[k]), 0.0), float(newcomer.variance[k]))
    whole = cores + kept
    amount = None if rules.core_hour_price is None else whole * rules.core_hour_price
    return HourPrice(float(horizons_h[k]), float(newcomer.variance[k]), whole, kept, kept / whole, amount)


def day_ahead(horizons_h: Floats) -> int:
    """Return the horizon nearest to that at which uncertainty is priced, a day ahead."""
    return int(np.argmin(np.abs(np.log(horizons_h / HOURS_PER_DAY))))


def kept_for_uncertainty(book: Book) -> float | None:
    """Return the cores that the rule keeps free a day ahead, as sizes are uncertain; None for a rule without kappa."""
    if book.rules.standard_deviations is None:
        return None
    k = day_ahead(book.horizons_h)
    return kept_free(float(kappas_of(book.rules, book.horizons_h)[k]), 0.0, max(float(book.sums.variance[k]), 0.0))


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


def _merged(found: list[tuple[str, float]], newcomer: str, part: float | None) -> tuple[Contributor, ...]:
    """Return the largest parts, the newcomer's among them unless it has none."""
    more = [] if part is None else [(newcomer, part)]
    ordered = sorted([*found, *more], key=lambda pair: -pair[1])
    return tuple(Contributor(name, amount) for name, amount in ordered[:TOP])


def _sentence(
    rules: ClusterRules, total: int, cores: int, reason: Reason, at: _At, chance: float, permitted: float
) -> str:
    keeps = reason is Reason.ADMITTED
    # Rounded to whole cores, a limit of 0.8 would read as one that 1 core does not exceed.
    limit = f"{rules.limit_cores:,.2f}".removesuffix("0").removesuffix(".0")
    if rules.policy is PolicyKind.ZEROTH:
        text = f"{total:,} reserved + {cores:,} requested = {total + cores:,} cores"
        text += f" {'<' if keeps else '>='} threshold {limit}"
    else:
        when = f"at {_hours(at.hours)} ({_words(at.band)})"
        text = f"{at.expected:,.1f} expected"
        if rules.policy is PolicyKind.FIRST:
            text += f" cores {'<' if keeps else '>='} threshold {limit} {when}"
        elif rules.policy is PolicyKind.SECOND:
            total_cores = at.expected + at.kappa * at.sd
            text += f" + {at.kappa:.3g} x {at.sd:,.1f} = {total_cores:,.1f} cores"
            text += f" {'<=' if keeps else '>'} limit {limit} {when}"
        elif rules.policy is PolicyKind.BUDGET:
            text += f", sd {at.sd:,.1f} cores: {chance:.2g} of future requests would fail, most of them {when}"
            text += f"; limit {permitted:.3g}"
        else:
            text += f", sd {at.sd:,.1f} cores {when}: probability of more than {limit} is {chance:.2g}"
            text += f"; limit {permitted:.3g}"
    return (
        f"the cluster violates its rule without this deployment: {text}" if reason is Reason.REJECTED_UNSAFE else text
    )


def _hours(hours: float) -> str:
    return f"{hours:,.0f} h" if hours >= 100.0 else f"{hours:.3g} h"


def _words(name: str) -> str:
    return name.replace("_", " ")


def settle(book: Book, new: Curves, now: float, *, observed: bool) -> int:
    """Compute futures, those in most doubt first, until the rule would say the same without doubt; return how many.

    new, observed: the newcomer, as `judge` takes them.
    """
    rules = book.rules
    if rules.policy is PolicyKind.ZEROTH or not len(book):
        return 0
    newcomer, kappas, renewed = new[0], kappas_of(rules, book.horizons_h), 0
    marginal_cores = rules.marginal_cores if observed else 0.0
    while True:
        found = asked_at(book, kappas, book.sums, newcomer, marginal_cores)
        together = book.sums + newcomer
        slack = slack_of(rules, kappas, together)
        k = found if found >= 0 else binding(book, slack, together, newcomer.mean < marginal_cores)
        room = rules.limit_cores - float(together.mean[k])
        weight = cores_per_variance(room, float(together.variance[k]), float(kappas[k]))
        doubts = book.doubts(k, weight, now)
        off = float(doubts.sum())
        more = OVER * off if found >= 0 else -UNDER * off
        if off == 0.0 or (asked_at(book, kappas, book.sums, newcomer, marginal_cores, more) >= 0) == (found >= 0):
            return renewed
        renewed += book.renew(doubts > PART * doubts.max(), now)
