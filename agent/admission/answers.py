"""From a request to the decision that is recorded, and from an event to what is counted."""

from __future__ import annotations

import time
from dataclasses import replace

from agent.admission.book import Book
from agent.admission.decision import Verdict, judge
from agent.admission.deployments import reserved
from agent.admission.futures import Curves, Seen, label_weights
from agent.admission.gauges import month_of
from agent.admission.records import (
    AdmissionDecision,
    AdmissionRequest,
    DeploymentEvent,
    EventKind,
    PriorKind,
    PriorSource,
)
from agent.admission.refresh import settle
from agent.admission.rules import ClusterRules
from agent.admission.validation import check_request, recorded_cores
from agent.ledger.admission import ClusterCounts
from domain.decisions import Reason
from domain.errors import BadInput, StateConflict

LONGEST_ID = 255
LONGEST_WORDS = 200


def decided(book: Book, request: AdmissionRequest, decision_id: str, now: float) -> AdmissionDecision:
    """Decide on a request; one that is admitted is in the book afterwards, as reserved."""
    decision, curves = _judged(book, request, decision_id, now)
    if curves is not None and decision.admit:
        until = now + book.rules.start_within_s
        inside = reserved(request.deployment_id, request.cores, now, request.observations, decision_id, until)
        book.put(inside, curves)
    return decision


def advised(book: Book, request: AdmissionRequest, decision_id: str, now: float) -> AdmissionDecision:
    """Return what would be decided on a request; the book stays as it is."""
    return replace(_judged(book, request, decision_id, now)[0], advice=True)


def same_advice(first: AdmissionDecision, second: AdmissionDecision) -> bool:
    """Return whether two pieces of advice come to the same."""
    both = [(one.advice, one.deployment_id, one.cores, one.reason, one.config_hash) for one in (first, second)]
    return both[0] == both[1]


def _judged(
    book: Book, request: AdmissionRequest, decision_id: str, now: float
) -> tuple[AdmissionDecision, Curves | None]:
    """Return the decision, and the newcomer's futures where the rule was asked."""
    began = time.perf_counter()
    rules = book.rules
    blank = _blank(book, request, decision_id, now)
    try:
        check_request(request)
        _check_new(book, request.deployment_id)
    except BadInput as error:
        return replace(blank, detail=str(error), evaluation_us=_us(began)), None
    prior = prior_source(rules, request)
    blank = replace(blank, prior=prior)
    if book.total + request.cores > rules.capacity_cores:
        said = f"{book.total:,} of {rules.capacity_cores:,} cores are taken: {request.cores:,} more do not fit"
        if request.cores > rules.capacity_cores:
            said = f"{request.cores:,} cores are more than the whole cluster of {rules.capacity_cores:,}"
        return replace(blank, reason=Reason.REJECTED_FEASIBILITY, detail=said, evaluation_us=_us(began)), None
    refreshed = book.refresh(now)
    curves = book.newcomer(request.cores, request.observations)
    observed = prior.kind is not PriorKind.POPULATION
    refreshed += settle(book, curves, now, observed=observed)
    verdict = judge(book, request.deployment_id, request.cores, curves, observed=observed)
    return replace(_with(blank, verdict), refreshed=refreshed, evaluation_us=_us(began)), curves


def prior_source(rules: ClusterRules, request: AdmissionRequest) -> PriorSource:
    """Return what a newcomer is judged by."""
    priors = request.observations
    counted = float(max((max(p.deaths, p.scale_outs, p.size_draws) for p in priors), default=0.0))
    if len(priors) > 1:
        seen = Seen(float(request.cores), 0.0, 0.0, 0.0, 0.0, request.cores - 1.0, 1.0)
        return PriorSource(PriorKind.MIXTURE, counted, label_weights(rules.population, seen, priors))
    is_blank = not priors or priors[0].core_hours + priors[0].gap_hours + counted <= 0.0
    return PriorSource(PriorKind.POPULATION if is_blank else PriorKind.OBSERVATIONS, counted)


def told(decision: AdmissionDecision) -> str:
    """Return a decision in one line, for the journal."""
    verb = ("would admit" if decision.admit else "would refuse") if decision.advice else ""
    verb = verb or ("admitted" if decision.admit else "refused")
    return f"{decision.cluster}: {verb} {decision.deployment_id} with {decision.cores} cores: {decision.detail}"


def counted(counts: ClusterCounts, event: DeploymentEvent) -> ClusterCounts:
    """Return the counts with a request for more cores; in a month's counts one of a month that is over is left out."""
    if event.kind not in (EventKind.SCALED, EventKind.REFUSED):
        return counts
    refused = event.kind is EventKind.REFUSED
    ever = (counts.requests_ever + 1, counts.failures_ever + refused)
    counts = replace(counts, requests_ever=ever[0], failures_ever=ever[1])
    month = month_of(event.time)
    if month < counts.month:
        return counts
    if month > counts.month:
        counts = replace(counts, month=month, requests=0, failures=0)
    return replace(counts, requests=counts.requests + 1, failures=counts.failures + refused)


def check_same(first: DeploymentEvent, event: DeploymentEvent) -> None:
    """Raise StateConflict when the id of an event that was taken comes with something else."""
    if first != event:
        remedy = f"it was used for another event ({first.kind.value} of {first.deployment_id} at {first.time!r})"
        raise StateConflict("event_id", event.event_id, remedy)


def check_size(event: DeploymentEvent, after: int, capacity_cores: int) -> None:
    """Raise StateConflict when the event would leave its deployment larger than the cluster."""
    if after > capacity_cores:
        remedy = (
            f"{event.deployment_id} would have {after} cores, more than the whole cluster of {capacity_cores}: "
            "set the capacity right, or tell the right size"
        )
        raise StateConflict("cores", event.cores, remedy)


def _blank(book: Book, request: AdmissionRequest, decision_id: str, now: float) -> AdmissionDecision:
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
        config_hash=rules.config_hash,
        total_cores=book.total,
        live=len(book),
        prior=PriorSource(PriorKind.POPULATION),
        requested_by=str(request.requested_by)[:LONGEST_WORDS],
        request_id=str(request.request_id)[:LONGEST_WORDS],
    )


def _check_new(book: Book, deployment_id: str) -> None:
    known = book.known.get(deployment_id)
    if known is not None and known.counts:
        by = f"admitted by {known.decision_id}" if known.decision_id else "it started without asking"
        raise StateConflict("deployment_id", deployment_id, f"it is inside already, with {known.cores} cores ({by})")


def _with(blank: AdmissionDecision, verdict: Verdict) -> AdmissionDecision:
    return replace(
        blank,
        admit=verdict.reason is Reason.ADMITTED,
        reason=verdict.reason,
        detail=verdict.detail,
        binding_hours=verdict.binding_hours,
        binding_band=verdict.binding_band,
        expected_cores=verdict.expected_cores,
        sd_cores=verdict.sd_cores,
        slack_cores=verdict.slack_cores,
        peak_utilisation=verdict.peak_utilisation,
        peak_hours=verdict.peak_hours,
        cantelli=verdict.cantelli,
        sgamma=verdict.sgamma,
        marginal_bands=verdict.marginal_bands,
        top_expected=verdict.top_expected,
        top_variance=verdict.top_variance,
    )


def _us(began: float) -> float:
    return (time.perf_counter() - began) * 1e6
