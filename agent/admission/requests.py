"""Requests to come in: decided or advised on in their order, recorded before they are answered, each request once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent.admission.answers import advised, decided, same_advice, told
from agent.admission.book import Book
from agent.admission.deployments import Stage
from agent.admission.memory import AGENT, Keeping
from agent.admission.records import AdmissionDecision, AdmissionRequest
from agent.ledger.admission import Change
from domain.decisions import Event, Reason
from domain.errors import StateConflict

log = structlog.get_logger(__name__)

Answers = tuple[tuple[AdmissionDecision, ...], list[AdmissionDecision]]
"""The answer to each request, and those decisions among them that are new."""


def admit_all(keeping: Keeping, book: Book, requests: Sequence[AdmissionRequest], now: float) -> Answers:
    """Decide on requests, each knowing those admitted before it; all are recorded and in the book, or none.

    StateConflict when a request id stands for something else, Moved when another process wrote meanwhile.
    """
    changed, notes = keeping.lapses(book, now)
    counts = keeping.counts
    answers: list[AdmissionDecision] = []
    made: list[AdmissionDecision] = []
    try:
        for deployment in changed:
            book.put(deployment)
        for request in requests:
            decision = _decided_before(keeping, book, request, made)
            if decision is None:
                counts = replace(counts, decisions=counts.decisions + 1)
                decision = decided(book, request, f"{keeping.rules.name}-a{counts.decisions}", now)
                made.append(decision)
                notes.append(Event(AGENT, now, decision.reason, told(decision), decision.decision_id))
                if decision.admit:
                    changed.append(book.known[decision.deployment_id])
            answers.append(decision)
        if made or changed:
            keeping.write(Change(counts, changed, (), made, notes))
    except BaseException:
        if changed:
            # Those who are in memory by now are not in the ledger.
            keeping.drop()
        raise
    return tuple(answers), made


def advise_all(keeping: Keeping, book: Book, requests: Sequence[AdmissionRequest], now: float) -> Answers:
    """Say what would be decided on requests, each as if it alone asked; nobody is in the book or the ledger after it.

    A request that was decided on, while the agent acted, gets its decision. What comes to the same as the deployment's
    newest advice is not recorded again: then that one is the answer. Errors as with `admit_all`.
    """
    gone, notes = keeping.lapses(book, now)
    counts = keeping.counts
    answers: list[AdmissionDecision] = []
    made: list[AdmissionDecision] = []
    try:
        for deployment in gone:
            book.put(deployment)
        for request in requests:
            decision = _decided_before(keeping, book, request, ())
            if decision is None:
                number = f"{keeping.rules.name}-a{counts.decisions + 1}"
                decision = advised(book, replace(request, request_id=""), number, now)
                before = _newest(keeping, decision.deployment_id, made)
                if before is not None and same_advice(before, decision):
                    decision = before
                else:
                    counts = replace(counts, decisions=counts.decisions + 1)
                    made.append(decision)
                    notes.append(Event(AGENT, now, Reason.OBSERVE_MODE, told(decision), decision.decision_id))
            answers.append(decision)
        if made or gone:
            keeping.write(Change(counts, gone, (), made, notes))
    except BaseException:
        if gone:
            keeping.drop()
        raise
    return tuple(answers), made


def said(made: Sequence[AdmissionDecision]) -> list[Event]:
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


def _newest(keeping: Keeping, deployment_id: str, made: Sequence[AdmissionDecision]) -> AdmissionDecision | None:
    here = next((decision for decision in reversed(made) if decision.deployment_id == deployment_id), None)
    return here or next(iter(keeping.store.newest(keeping.rules.name, 1, deployment_id)), None)


def _decided_before(
    keeping: Keeping, book: Book, request: AdmissionRequest, made: Sequence[AdmissionDecision]
) -> AdmissionDecision | None:
    """Return the decision that this request got already, None for a new one."""
    if request.request_id:
        same = next((decision for decision in made if decision.request_id == request.request_id), None)
        found = same or keeping.store.decision_of_request(keeping.rules.name, request.request_id)
        if found is None:
            return None
        if (found.deployment_id, found.cores) != (request.deployment_id, request.cores):
            remedy = f"it stands for {found.cores} cores of {found.deployment_id} ({found.decision_id})"
            raise StateConflict("request_id", request.request_id, remedy)
        return found
    known = book.known.get(request.deployment_id)
    if known is None or known.stage is not Stage.RESERVED:
        return None
    if (known.cores, known.priors) != (request.cores, request.observations):
        return None
    same = next((decision for decision in made if decision.decision_id == known.decision_id), None)
    return same or keeping.store.decision(known.decision_id)
