"""What a service holds of its cluster in memory, and what requests and events make of it.

Requests are decided or advised on in their order, recorded before they are answered, each once; so are events taken in,
all of them or none, and what does not add up is mended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from agent.admission.book import Book
from agent.admission.deployments import Deployment, Stage, applied, lapsed, reserved
from agent.admission.futures import Curves, Seen, label_weights
from agent.admission.labels import dropped, ended, law_in, named_prior
from agent.admission.records import (
    AdmissionDecision,
    AdmissionRequest,
    DeploymentEvent,
    EventKind,
    PriorKind,
    PriorSource,
    ShadowAnswer,
    Taken,
    check_event,
    check_request,
)
from agent.admission.rule import judge, settle, undecided
from agent.admission.state import AdmissionStore, Change, ClusterCounts, month_of
from agent.kernel.transaction import Conflict, retried
from domain.clock import Clock
from domain.decisions import AGENT, Event, Reason
from domain.errors import BadInput, StateConflict
from domain.rules.admission.cluster import ClusterRules
from domain.rules.admission.names import Name, Tally
from domain.rules.admission.policies import unused_budget

T = TypeVar("T")


class Shadow:
    """A model on probation: it answers beside the rule that decides, from a book of its own with the same deployments.

    model: the SHA-256 of its file. Not safe between threads.
    """

    def __init__(self, model: str, rules: ClusterRules) -> None:
        self.model, self._book = model, Book(rules)

    def refresh(self, real: Book, now: float) -> int:
        """Compute the futures that are out of date, as it believes, and return how many there were."""
        self._follow(real)
        return self._book.refresh(now)

    def answer(self, real: Book, request: AdmissionRequest, now: float) -> ShadowAnswer:
        """Return what it would decide on a request; whatever is wrong with it is said there, and raised nowhere."""
        try:
            self._follow(real)
            found, _ = _judged(self._book, request, "", now)
        except Exception as error:
            log.warning("shadow_failed", cluster=real.rules.name, detail=str(error))
            failed = f"{type(error).__name__}: {error}"
            return ShadowAnswer(self.model, admit=False, reason=Reason.INTERNAL_ERROR, failed=failed)
        return ShadowAnswer(self.model, found.admit, found.reason)

    def _follow(self, real: Book) -> None:
        """Take in what is inside the real book, which may have been read anew since."""
        own = self._book
        inside = {one.deployment_id: one for one in real.inside()}
        if own.rules.capacity_cores != real.rules.capacity_cores:
            own.rules = replace(own.rules, capacity_cores=real.rules.capacity_cores)
        for gone in [one for one in own.inside() if one.deployment_id not in inside]:
            own.put(replace(gone, stage=Stage.GONE, cores=0))
        own.forget(math.inf)
        for name, one in inside.items():
            if own.known.get(name) is not one:
                own.put(one)
        own.tallies, own.unused_budget = real.tallies, real.unused_budget


class CachedBook:
    """One cluster's book and counts, and the revision of the ledger that they are of. Not safe between threads."""

    def __init__(self, rules: ClusterRules, store: AdmissionStore, clock: Clock) -> None:
        self.rules, self.store, self._deferred = rules, store, 0
        self._clock = clock
        # By deployment and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}
        self.revision = 0
        self.counts = ClusterCounts()
        self._book: Book | None = None
        self._dropped: Book | None = None
        self.shadow: Shadow | None = None

    def book(self) -> Book:
        """Return what is inside as the ledger has it now."""
        if self._book is not None and self.store.revision(self.rules.name) != self.revision:
            self.drop()
        if self._book is None:
            inside = self.store.inside(self.rules.name)
            self.revision, self.counts = inside.revision, inside.counts
            self._book = Book(self.rules, inside.deployments, inside.tallies)
            self._first_seen = self._with_new(self._book.inside())
            if self._dropped is not None:
                self._book.adopt(*self._dropped.arrays())
                self._dropped = None
        self._book.deferred = self._deferred
        self._book.unused_budget = unused_budget(self.rules.sla, self.counts.failures_ever, self.counts.requests_ever)
        return self._book

    def drop(self) -> None:
        """Have what is inside read from the ledger again; futures outlive it where they hold."""
        self._dropped = self._book or self._dropped
        self._book = None

    def work_by(self, rules: ClusterRules, deferred: int = 0) -> None:
        """Go by other rules of the same cluster from now on; deferred: cores that they are less by."""
        self.rules, self._deferred = rules, deferred
        if self._book is not None:
            self._book.rules, self._book.deferred = rules, deferred

    def transact(self, work: Callable[[Book], T]) -> T:
        """Do work that writes; again on the new state when another process wrote meanwhile."""

        def attempt() -> T:
            try:
                return work(self.book())
            except Conflict:
                self.drop()
                raise

        return retried(f"cluster {self.rules.name}", attempt)

    def write(self, change: Change) -> None:
        """Write a change of the book to the ledger; Conflict when another process wrote meanwhile."""
        self.revision = self.store.write(self.rules.name, self.revision, change)
        self.counts = change.counts
        self._first_seen |= self._with_new(change.deployments)

    def lapses(self, book: Book, now: float) -> tuple[list[Deployment], list[Event]]:
        """Return those that were admitted and did not start in time, without their cores, and what to say of them.

        Their time is what passed on this process's monotonic clock since it first saw them. A wall clock that is set,
        or that differs from that of the agent which admitted them, ends no reservation; a restart begins the wait anew.
        """
        at = self._clock.monotonic()
        late = [d for d in book.inside() if d.reserved_s is not None and at - self._seen_at(d, at) > d.reserved_s]
        notes = []
        for deployment in late:
            detail = f"admitted to {self.rules.name} by {deployment.decision_id}, it did not start in time"
            notes.append(Event(AGENT, now, Reason.ADMISSION_LAPSED, detail, deployment.deployment_id))
        return [lapsed(deployment) for deployment in late], notes

    def _with_new(self, deployments: Iterable[Deployment]) -> dict[tuple[str, str], float]:
        """Return when those that are reserved were first seen: now, unless they were seen before."""
        at = self._clock.monotonic()
        return {_key(one): self._seen_at(one, at) for one in deployments if one.stage is Stage.RESERVED}

    def _seen_at(self, deployment: Deployment, otherwise: float) -> float:
        return self._first_seen.get(_key(deployment), otherwise)


def _key(deployment: Deployment) -> tuple[str, str]:
    return deployment.deployment_id, deployment.decision_id


log = structlog.get_logger(__name__)

Answers = tuple[tuple[AdmissionDecision, ...], list[AdmissionDecision]]
"""The answer to each request, and those decisions among them that are new."""


def answer_all(
    cached: CachedBook, book: Book, requests: Sequence[AdmissionRequest], now: float, *, advice: bool = False
) -> Answers:
    """Decide on requests, each knowing those admitted before it; all are recorded and in the book, or none.

    advice: say what would be decided on each, as if it alone asked; neither book nor ledger change. A
    request that was decided on, while the agent acted, gets its decision. What comes to the same as the deployment's
    newest advice is not recorded again: then that one is the answer.

    StateConflict when a request id stands for something else, Conflict when another process wrote meanwhile.
    """
    changed, notes = cached.lapses(book, now)
    counts = cached.counts
    answers: list[AdmissionDecision] = []
    made: list[AdmissionDecision] = []
    try:
        for deployment in changed:
            book.put(deployment)
        for request in requests:
            decision = _decided_before(cached, book, request, () if advice else made)
            if decision is None:
                number = counts.decisions + 1
                shadow = None if cached.shadow is None else cached.shadow.answer(book, request, now)
                decision = _decided(book, request, f"{cached.rules.name}-a{number}", now, advice=advice)
                decision = replace(decision, shadow=shadow)
                before = _same_advice(cached, decision, made) if advice else None
                if before is not None:
                    decision = before
                else:
                    counts = replace(counts, decisions=number)
                    made.append(decision)
                    reason = Reason.OBSERVE_MODE if advice else decision.reason
                    notes.append(Event(AGENT, now, reason, sentence(decision), decision.decision_id))
                    if decision.admit and not advice:
                        changed.append(book.known[decision.deployment_id])
            answers.append(decision)
        if made or changed:
            cached.write(Change(counts, changed, (), made, notes))
    except BaseException:
        if changed:
            # Those who are in memory by now are not in the ledger.
            cached.drop()
        raise
    return tuple(answers), made


def _decided(book: Book, request: AdmissionRequest, decision_id: str, now: float, *, advice: bool) -> AdmissionDecision:
    """Decide on a request; unless it is advice, one that is admitted is in the book afterwards, as reserved."""
    if advice:
        return replace(_judged(book, replace(request, request_id=""), decision_id, now)[0], advice=True)
    decision, curves = _judged(book, request, decision_id, now)
    if curves is not None and decision.admit:
        until = now + book.rules.start_within_s
        inside = reserved(request, now, decision_id, until, law_in(decision.prior))
        book.put(inside, curves)
    return decision


def _judged(
    book: Book, request: AdmissionRequest, decision_id: str, now: float
) -> tuple[AdmissionDecision, Curves | None]:
    """Return the decision, and the newcomer's futures where the rule was asked."""
    began = time.perf_counter()
    rules = book.rules
    blank = undecided(book, request, decision_id, now)
    try:
        check_request(request)
        _check_new(book, request.deployment_id)
    except BadInput as error:
        return replace(blank, detail=str(error), evaluation_us=_us(began)), None
    prior = prior_source(book, request, now)
    blank = replace(blank, prior=prior)
    if book.total + request.cores > rules.capacity_cores:
        detail = f"{book.total:,} of {rules.capacity_cores:,} cores are reserved: {request.cores:,} more do not fit"
        if request.cores > rules.capacity_cores:
            detail = f"{request.cores:,} cores are more than the whole cluster of {rules.capacity_cores:,}"
        return replace(blank, reason=Reason.REJECTED_FEASIBILITY, detail=detail, evaluation_us=_us(began)), None
    refreshed = book.refresh(now)
    curves = book.newcomer(request.cores, request.observations, law_in(prior))
    observed = prior.kind is not PriorKind.POPULATION
    refreshed += settle(book, curves, now, observed=observed)
    decision = judge(book, blank, curves, observed=observed)
    return replace(decision, refreshed=refreshed, evaluation_us=_us(began)), curves


def prior_source(book: Book, request: AdmissionRequest, now: float) -> PriorSource:
    """Return what a newcomer is judged by: prior observations, else what its names say, else the population."""
    rules, priors = book.rules, request.observations
    if not priors and rules.labels and (request.label or request.owner):
        return named_prior(book, request.owner, request.label, now)
    counted = float(max((max(p.deaths, p.scale_outs, p.size_draws) for p in priors), default=0.0))
    if len(priors) > 1:
        seen = Seen(float(request.cores), 0.0, 0.0, 0.0, 0.0, request.cores - 1.0, 1.0)
        return PriorSource(PriorKind.MIXTURE, counted, label_weights(rules.population, seen, priors))
    is_blank = not priors or priors[0].core_hours + priors[0].gap_hours + counted <= 0.0
    return PriorSource(PriorKind.POPULATION if is_blank else PriorKind.OBSERVATIONS, counted)


def sentence(decision: AdmissionDecision) -> str:
    """Return a decision in one line, for the journal."""
    return f"{decision.cluster}: {outcome(decision)}"


def outcome(decision: AdmissionDecision) -> str:
    """Return what became of a deployment and why, without its cluster."""
    verb = ("would admit" if decision.admit else "would refuse") if decision.advice else ""
    verb = verb or ("admitted" if decision.admit else "refused")
    return f"{verb} {decision.deployment_id} with {decision.cores} cores: {decision.detail}"


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
            "correct the capacity, or report the right size"
        )
        raise StateConflict("cores", event.cores, remedy)


def _check_new(book: Book, deployment_id: str) -> None:
    known = book.known.get(deployment_id)
    if known is not None and known.counts:
        by = f"admitted by {known.decision_id}" if known.decision_id else "it started without asking"
        raise StateConflict("deployment_id", deployment_id, f"it is inside already, with {known.cores} cores ({by})")


def _us(began: float) -> float:
    return (time.perf_counter() - began) * 1e6


def log_decisions(made: Sequence[AdmissionDecision]) -> list[Event]:
    """Log new decisions, and return what a person should look into: who was refused by a cluster that is unsafe."""
    for decision in made:
        log.info(
            "advice" if decision.advice else "admission",
            cluster=decision.cluster,
            decision=decision.decision_id,
            deployment=decision.deployment_id,
            cores=decision.cores,
            reason=decision.reason,
            detail=decision.detail,
        )
    unsafe = [one for one in made if one.reason is Reason.REJECTED_UNSAFE and not one.advice]
    return [Event(AGENT, decision.at, decision.reason, decision.detail, decision.cluster) for decision in unsafe]


def _same_advice(
    cached: CachedBook, advice: AdmissionDecision, made: Sequence[AdmissionDecision]
) -> AdmissionDecision | None:
    """Return the newest advice on the same deployment where it comes to the same, else None."""
    before = next((decision for decision in reversed(made) if decision.deployment_id == advice.deployment_id), None)
    before = before or next(iter(cached.store.newest(cached.rules.name, 1, advice.deployment_id)), None)
    if before is None:
        return None
    first, second = (
        (one.advice, one.deployment_id, one.cores, one.reason, one.config_hash) for one in (before, advice)
    )
    return before if first == second else None


def _decided_before(
    cached: CachedBook, book: Book, request: AdmissionRequest, made: Sequence[AdmissionDecision]
) -> AdmissionDecision | None:
    """Return the decision that this request got already, None for a new one."""
    if request.request_id:
        same = next((decision for decision in made if decision.request_id == request.request_id), None)
        found = same or cached.store.decision_of_request(cached.rules.name, request.request_id)
        if found is None:
            return None
        if (found.deployment_id, found.cores) != (request.deployment_id, request.cores):
            remedy = f"it belongs to {found.cores} cores of {found.deployment_id} ({found.decision_id})"
            raise StateConflict("request_id", request.request_id, remedy)
        return found
    known = book.known.get(request.deployment_id)
    if known is None or known.stage is not Stage.RESERVED:
        return None
    asked = (request.cores, request.observations, request.label, request.owner)
    if (known.cores, known.priors, known.label, known.owner) != asked:
        return None
    same = next((decision for decision in made if decision.decision_id == known.decision_id), None)
    return same or cached.store.decision(known.decision_id)


def observe_all(
    cached: CachedBook, book: Book, events: Sequence[DeploymentEvent], now: float, *, not_inside: str
) -> tuple[tuple[Taken, ...], list[Event]]:
    """Take in events; return the answer to each, and what was mended, which a person should look into.

    not_inside: what to do when an event names a deployment that is not. BadInput names what is wrong with an event,
    Moved says that another process wrote meanwhile; then nothing was taken in.
    """
    for event in events:
        there = book.known.get(str(event.deployment_id))
        check_event(event, now, None if there is None else there.last_at)
    name = cached.rules.name
    before = cached.store.events(name, {event.event_id for event in events})
    late, notes = cached.lapses(book, now)
    changed = {deployment.deployment_id: deployment for deployment in late}
    counts, taken, repairs = cached.counts, list[DeploymentEvent](), list[Event]()
    tallies: dict[Name, Tally | None] = {}
    answers: list[Taken] = []
    for event in events:
        known = changed.get(event.deployment_id) or book.known.get(event.deployment_id)
        first = before.get(event.event_id)
        if first is not None:
            check_same(first, event)
            answers.append(Taken(event.event_id, event.deployment_id, known.cores if known else 0, already_seen=True))
            continue
        result = applied(known, event, not_inside=not_inside)
        check_size(event, result.deployment.cores, cached.rules.capacity_cores)
        changed[event.deployment_id] = result.deployment
        tallies |= ended(cached.rules, book.tallies | tallies, known, result.deployment, event)
        before[event.event_id] = event
        taken.append(event)
        counts = counted(counts, event)
        if result.repaired:
            detail = f"{name}: {result.repaired}"
            repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, event.deployment_id))
        cores = result.deployment.cores
        answers.append(Taken(event.event_id, event.deployment_id, cores, repaired=result.repaired))
    if changed:
        tallies |= dropped(book.tallies | tallies)
        cached.write(Change(counts, list(changed.values()), taken, (), [*notes, *repairs], tallies))
        book.work_with(tallies)
    for deployment in changed.values():
        book.put(deployment)
    mended = book.mends()
    if mended is not None:
        detail = f"{name}: the total was {mended[0]}, the sizes add up to {mended[1]}"
        repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, name))
    for repair in repairs:
        log.warning("sizes_repaired", deployment=repair.subject, detail=repair.detail)
    return tuple(answers), repairs
