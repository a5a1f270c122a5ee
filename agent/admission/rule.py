"""The decision on one request, by the sums of a cluster's futures, with the figures that explain it.

The rules are `domain.rules.admission.policies`; here are the steps from a request to its decision, the horizon that
binds, and the decision of a model on probation.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from agent.admission.book import Book, kappas_of, law_in, named_prior
from agent.admission.deployments import Stage
from agent.admission.futures import Curves, DeploymentStatistics, label_weights
from agent.admission.records import (
    AdmissionDecision,
    AdmissionRequest,
    Contributor,
    PriorKind,
    PriorSource,
    ShadowAnswer,
    check_kinds,
)
from agent.kernel.decision import ContainerRoom
from agent.kernel.text import counted
from domain.decisions import Reason
from domain.errors import BadInput, StateConflict
from domain.rules.admission.belief import Floats
from domain.rules.admission.cluster import ClusterRules, PolicyKind, containers_without_room
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

log = structlog.get_logger(__name__)

TOP: Final = 5


@dataclass(frozen=True, slots=True)
class EffectiveRules:
    """The rules of one decision, and their hash. deferred: cores that deferred jobs hold, which are taken off them.

    room: of the pool that places deployments, None where they are not placed by one.
    """

    rules: ClusterRules
    config_hash: str
    deferred: int = 0
    room: ContainerRoom | None = None


def effective(rules: ClusterRules, deferred: int = 0) -> EffectiveRules:
    """Return a cluster's rules less the cores that deferred jobs hold; one core stays, as rules need one."""
    if deferred:
        limit = None if rules.threshold_cores is None else max(0.0, rules.threshold_cores - deferred)
        rules = replace(rules, capacity_cores=max(1, rules.capacity_cores - deferred), threshold_cores=limit)
    return EffectiveRules(rules, rules.config_hash, deferred)


@dataclass(frozen=True, slots=True)
class _At:
    """A horizon, and what is expected there."""

    hours: float
    band: str
    expected: float
    sd: float
    kappa: float


def undecided(
    book: Book, force: EffectiveRules, request: AdmissionRequest, decision_id: str, now: float
) -> AdmissionDecision:
    """Return the record of a request before the rule is evaluated: it is not admitted."""
    rules = force.rules
    return AdmissionDecision(
        decision_id=decision_id,
        at=now,
        cluster=rules.name,
        deployment_id=request.deployment_id,
        cores=request.cores,
        admit=False,
        reason=Reason.REJECTED_INPUT,
        detail="",
        policy=rules.text,
        capacity_cores=rules.capacity_cores,
        threshold_cores=rules.threshold_cores,
        kappa=rules.standard_deviations,
        risk_limit=rules.risk,
        config_hash=force.config_hash,
        total_cores=book.total,
        live=len(book),
        prior=PriorSource(PriorKind.POPULATION),
        requested_by=request.requested_by,
        request_id=request.request_id,
        label=request.label,
        owner=request.owner,
        deferred_cores=force.deferred,
    )


def judge(
    book: Book, rules: ClusterRules, asked: AdmissionDecision, new: Curves, *, observed: bool
) -> AdmissionDecision:
    """Return the decision on a newcomer that fits now; asked: see `undecided`.

    new: its futures (1, H). observed: whether they rest on prior observations; only then may horizons at which it is
    marginal be left out. Where the cluster is unsafe, the numbers are those without the newcomer.
    """
    horizons_h, cores = book.horizons_h, asked.cores
    kappas = kappas_of(rules, horizons_h)
    inside, newcomer = book.sums, new[0]
    together = inside + newcomer
    marginal_cores = rules.marginal_cores if observed else 0.0
    marginal = newcomer.mean < marginal_cores
    if rules.policy is PolicyKind.ZEROTH:
        refused = not zeroth_admits(book.total, cores, rules.capacity_cores, rules.limit_cores)
    else:
        refused = asked_at(book, rules, kappas, inside, newcomer, marginal_cores) >= 0
    unsafe = first_unsafe(book, rules) if refused else -1
    reason = Reason.REJECTED_UNSAFE if unsafe >= 0 else Reason.REJECTED_RULE if refused else Reason.ADMITTED
    sums = inside if unsafe >= 0 else together
    slack = slack_of(rules, kappas, sums)
    k = unsafe if unsafe >= 0 else binding(book, rules, slack, sums, marginal)
    at = _At(
        float(horizons_h[k]),
        book.bands[k],
        float(sums.mean[k]),
        math.sqrt(max(float(sums.variance[k]), 0.0)),
        float(kappas[k]),
    )
    chance = (
        _failing(book, rules, sums) if rules.policy is PolicyKind.BUDGET else _tail(rules, sums, k, rules.limit_cores)
    )
    by_mean, by_variance = book.largest(k, TOP)
    peak = int(np.argmax(sums.mean))
    return replace(
        asked,
        admit=reason is Reason.ADMITTED,
        reason=reason,
        detail=_sentence(rules, book.total, cores, reason, at, chance, _permitted(book, rules)),
        binding_hours=at.hours,
        binding_band=at.band,
        expected_cores=at.expected,
        sd_cores=at.sd,
        slack_cores=float(slack[k]),
        peak_utilisation=float(sums.mean[peak]) / rules.capacity_cores,
        peak_hours=float(horizons_h[peak]),
        cantelli=cantelli(at.expected, at.sd * at.sd, float(rules.capacity_cores)),
        sgamma=_sgamma(sums, k, float(rules.capacity_cores)) if rules.moments.has_third else None,
        marginal_bands=tuple(dict.fromkeys(band for band, small in zip(book.bands, marginal, strict=True) if small)),
        top_expected=_merged(by_mean, asked.deployment_id, None if unsafe >= 0 else float(newcomer.mean[k])),
        top_variance=_merged(by_variance, asked.deployment_id, None if unsafe >= 0 else float(newcomer.variance[k])),
    )


def first_unsafe(book: Book, rules: ClusterRules) -> int:
    """Return the first horizon at which the rule fails for those inside alone, -1 when it holds."""
    if rules.policy is PolicyKind.ZEROTH:
        return 0 if book.total >= rules.limit_cores else -1
    inside, kappas = book.sums, kappas_of(rules, book.horizons_h)
    nobody = Curves(*np.zeros((4, book.horizons_h.size)))
    if rules.policy is PolicyKind.BUDGET:
        # It is kept or broken by all horizons together.
        return asked_at(book, rules, kappas, inside, nobody, 0.0)
    for k in range(book.horizons_h.size):
        one = slice(k, k + 1)
        if asked_at(book, rules, kappas[one], inside[one], nobody[one], 0.0) >= 0:
            return k
    return -1


def worst_slack(book: Book, rules: ClusterRules) -> dict[str, float]:
    """Return the least room of each band for those inside, in cores; see AdmissionDecision.slack_cores."""
    slack = slack_of(rules, kappas_of(rules, book.horizons_h), book.sums)
    bands = np.array(book.bands)
    return {band: float(slack[bands == band].min()) for band in BANDS if np.any(bands == band)}


def asked_at(
    book: Book,
    rules: ClusterRules,
    kappas: Floats,
    inside: Curves,
    newcomer: Curves,
    marginal_cores: float,
    more_cores: float = 0.0,
) -> int:
    """Return the horizon at which a rule that looks ahead refuses, -1 when it does not; more_cores: above its limit."""
    limit, risk = rules.limit_cores + more_cores, rules.risk or 0.0
    if rules.policy is PolicyKind.BUDGET:
        hours = horizon_hours(book.horizons_h)
        return budget_refusal(*inside.parts, *newcomer.parts, hours, _permitted(book, rules), limit, marginal_cores)
    if rules.policy is PolicyKind.FIRST:
        return first_refusal(inside.mean, newcomer.mean, limit, marginal_cores, 0)
    if rules.policy is PolicyKind.SECOND:
        two = (inside.mean, inside.variance, newcomer.mean, newcomer.variance)
        return second_refusal(*two, kappas, limit, marginal_cores, 0)
    if rules.policy is PolicyKind.GAMMA:
        return gamma_refusal(*inside.parts[:2], *newcomer.parts[:2], risk, limit, marginal_cores, 0)
    return sgamma_refusal(*inside.parts[:3], *newcomer.parts[:3], risk, limit, marginal_cores, 0)


def _permitted(book: Book, rules: ClusterRules) -> float:
    return (rules.risk or 0.0) * (book.unused_budget if rules.feedback else 1.0)


def slack_of(rules: ClusterRules, kappas: Floats, sums: Curves) -> Floats:
    """Return the cores that are left at each horizon by the mean and kappa standard deviations, (H,)."""
    return np.asarray(rules.limit_cores - sums.mean - kappas * np.sqrt(np.maximum(sums.variance, 0.0)))


def binding(book: Book, rules: ClusterRules, slack: Floats, sums: Curves, marginal: NDArray[np.bool_]) -> int:
    """Return the horizon with the least room; by chances, with the largest; of a budget, with most requests to fail.

    Marginal ones only when all are.
    """
    room = slack
    if rules.policy.by_risk:
        room = np.array([-_tail(rules, sums, k, rules.limit_cores) for k in range(slack.size)])
    if rules.policy is PolicyKind.BUDGET:
        room = room * sums.requests * horizon_hours(book.horizons_h)
    return int(np.argmin(room if marginal.all() else np.where(marginal, np.inf, room)))


def _failing(book: Book, rules: ClusterRules, sums: Curves) -> float:
    """Return the share of all requests to come that is forecast to fail."""
    asked = sums.requests * horizon_hours(book.horizons_h)
    chances = [_sgamma(sums, k, rules.limit_cores) for k in range(asked.size)]
    return float(asked @ np.array(chances) / asked.sum()) if asked.sum() > 0.0 else 0.0


def _tail(rules: ClusterRules, sums: Curves, k: int, limit: float) -> float:
    if rules.policy is PolicyKind.GAMMA:
        mean = float(sums.mean[k])
        return gamma_tail(mean, max(float(sums.variance[k]), 0.0), limit) if mean > 0.0 else 0.0
    return _sgamma(sums, k, limit)


def _sgamma(sums: Curves, k: int, limit: float) -> float:
    return sgamma_tail(float(sums.mean[k]), max(float(sums.variance[k]), 0.0), float(sums.third[k]), limit)


def _merged(found: list[tuple[str, float]], newcomer: str, part: float | None) -> tuple[Contributor, ...]:
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


def settle(book: Book, rules: ClusterRules, new: Curves, now: float, *, observed: bool) -> int:
    """Compute futures, those in most doubt first, until the rule would say the same without doubt; return how many.

    new, observed: the newcomer, as `judge` takes them.
    """
    if rules.policy is PolicyKind.ZEROTH or not len(book):
        return 0
    newcomer, kappas, renewed = new[0], kappas_of(rules, book.horizons_h), 0
    marginal_cores = rules.marginal_cores if observed else 0.0
    while True:
        found = asked_at(book, rules, kappas, book.sums, newcomer, marginal_cores)
        together = book.sums + newcomer
        slack = slack_of(rules, kappas, together)
        k = found if found >= 0 else binding(book, rules, slack, together, newcomer.mean < marginal_cores)
        room = rules.limit_cores - float(together.mean[k])
        weight = cores_per_variance(room, float(together.variance[k]), float(kappas[k]))
        doubts = book.doubts(k, weight, now)
        off = float(doubts.sum())
        more = OVER * off if found >= 0 else -UNDER * off
        if off == 0.0 or (asked_at(book, rules, kappas, book.sums, newcomer, marginal_cores, more) >= 0) == (
            found >= 0
        ):
            return renewed
        renewed += book.renew(doubts > PART * doubts.max(), now)


def decide(
    book: Book, force: EffectiveRules, request: AdmissionRequest, decision_id: str, now: float
) -> tuple[AdmissionDecision, Curves | None]:
    """Return the decision on a request, and the newcomer's futures where the rule was evaluated."""
    began = time.perf_counter()
    rules, blank = force.rules, undecided(book, force, request, decision_id, now)
    try:
        check_kinds(request.observations)
        _check_new(book, request.deployment_id)
    except BadInput as error:
        return replace(blank, detail=str(error), evaluation_us=_us(began)), None
    prior = prior_source(book, request, now)
    if book.total + request.cores > rules.capacity_cores:
        detail = f"{book.total:,} of {rules.capacity_cores:,} cores are reserved: {request.cores:,} more do not fit"
        if request.cores > rules.capacity_cores:
            detail = f"{request.cores:,} cores are more than the whole cluster of {rules.capacity_cores:,}"
        reason = Reason.REJECTED_FEASIBILITY
        return replace(blank, prior=prior, reason=reason, detail=detail, evaluation_us=_us(began)), None
    if force.room is not None and (detail := _unplaced(book, force.room, request.cores)):
        reason = Reason.REJECTED_PLACEMENT
        return replace(blank, prior=prior, reason=reason, detail=detail, evaluation_us=_us(began)), None
    refreshed = book.refresh(now)
    curves = book.newcomer(request.cores, request.observations, law_in(prior))
    observed = prior.kind is not PriorKind.POPULATION
    refreshed += settle(book, rules, curves, now, observed=observed)
    decision = judge(book, rules, replace(blank, prior=prior), curves, observed=observed)
    return replace(decision, refreshed=refreshed, evaluation_us=_us(began)), curves


def _unplaced(book: Book, room: ContainerRoom, cores: int) -> str:
    """Return why the containers of a deployment would find no host, "" where they do."""
    waiting = [one.cores for one in book.inside() if one.stage is Stage.RESERVED]
    missing = containers_without_room(room.containers, room.cores, waiting, cores)
    if not missing:
        return ""
    before = f"; {counted(len(waiting), 'deployment')} admitted before it have not started" if waiting else ""
    return f"{counted(missing, 'container')} of {room.cores} cores would find no host: {room.detail}{before}"


def _check_new(book: Book, deployment_id: str) -> None:
    known = book.known.get(deployment_id)
    if known is not None and known.counts:
        by = f"admitted by {known.decision_id}" if known.decision_id else "it started without asking"
        raise StateConflict("deployment_id", deployment_id, f"it is inside already, with {known.cores} cores ({by})")


def _us(began: float) -> float:
    return (time.perf_counter() - began) * 1e6


def prior_source(book: Book, request: AdmissionRequest, now: float) -> PriorSource:
    """Return what a newcomer is judged by: prior observations, else what its names say, else the population."""
    rules, priors = book.rules, request.observations
    if not priors and rules.labels and (request.label or request.owner):
        return named_prior(book, request.owner, request.label, now)
    counted = float(max((max(p.deaths, p.scale_outs, p.size_draws) for p in priors), default=0.0))
    if len(priors) > 1:
        seen = DeploymentStatistics(float(request.cores), 0.0, 0.0, 0.0, 0.0, request.cores - 1.0, 1.0)
        return PriorSource(PriorKind.MIXTURE, counted, label_weights(rules.population, seen, priors))
    is_blank = not priors or priors[0].core_hours + priors[0].gap_hours + counted <= 0.0
    return PriorSource(PriorKind.POPULATION if is_blank else PriorKind.OBSERVATIONS, counted)


class Shadow:
    """A model on probation: it decides beside the rule in force, from a book of its own with the same deployments.

    model: the SHA-256 of its file. Not safe between threads.
    """

    def __init__(self, model: str, rules: ClusterRules) -> None:
        self.model, self._rules, self._book = model, rules, Book(rules)

    def refresh(self, real: Book, now: float) -> int:
        """Compute the futures that are out of date, by its own law, and return how many there were."""
        self._follow(real)
        return self._book.refresh(now)

    def answer(self, real: Book, force: EffectiveRules, request: AdmissionRequest, now: float) -> ShadowAnswer:
        """Return its decision on a request; its errors are in the answer, none is raised."""
        try:
            self._follow(real)
            rules = replace(self._rules, capacity_cores=force.rules.capacity_cores)
            found, _ = decide(self._book, EffectiveRules(rules, "", room=force.room), request, "", now)
        except Exception as error:
            log.warning("shadow_failed", cluster=real.rules.name, detail=str(error))
            failed = f"{type(error).__name__}: {error}"
            return ShadowAnswer(self.model, admit=False, reason=Reason.INTERNAL_ERROR, failed=failed)
        return ShadowAnswer(self.model, found.admit, found.reason)

    def _follow(self, real: Book) -> None:
        own = self._book
        inside = {one.deployment_id: one for one in real.inside()}
        for gone in [one for one in own.inside() if one.deployment_id not in inside]:
            own.put(replace(gone, stage=Stage.GONE, cores=0))
        own.forget(math.inf)
        for name, one in inside.items():
            if own.known.get(name) is not one:
                own.put(one)
        own.tallies, own.unused_budget = real.tallies, real.unused_budget
