"""Events of deployments: each taken in once, in their order, all of them or none; what does not add up is mended."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from agent.admission.answers import check_same, check_size, counted
from agent.admission.book import Book
from agent.admission.deployments import applied
from agent.admission.memory import AGENT, Keeping
from agent.admission.records import Accepted, AlreadySeen, DeploymentEvent
from agent.admission.validation import check_event
from agent.ledger.admission import Change
from domain.decisions import Event, Reason

log = structlog.get_logger(__name__)


def observe_all(
    keeping: Keeping, book: Book, events: Sequence[DeploymentEvent], now: float, *, not_inside: str
) -> tuple[tuple[Accepted | AlreadySeen, ...], list[Event]]:
    """Take in events; return the answer to each, and what was mended, which a person should look into.

    not_inside: what to do when one is told of a deployment that is not. BadInput names what is wrong with an event,
    Moved says that another process wrote meanwhile; then nothing was taken in.
    """
    for event in events:
        there = book.known.get(str(event.deployment_id))
        check_event(event, now, None if there is None else there.last_at)
    name = keeping.rules.name
    before = keeping.store.events(name, {event.event_id for event in events})
    late, notes = keeping.lapses(book, now)
    changed = {deployment.deployment_id: deployment for deployment in late}
    counts, taken, repairs = keeping.counts, list[DeploymentEvent](), list[Event]()
    answers: list[Accepted | AlreadySeen] = []
    for event in events:
        known = changed.get(event.deployment_id) or book.known.get(event.deployment_id)
        first = before.get(event.event_id)
        if first is not None:
            check_same(first, event)
            answers.append(AlreadySeen(event.event_id, event.deployment_id, known.cores if known else 0))
            continue
        result = applied(known, event, not_inside=not_inside)
        check_size(event, result.deployment.cores, keeping.rules.capacity_cores)
        changed[event.deployment_id] = result.deployment
        before[event.event_id] = event
        taken.append(event)
        counts = counted(counts, event)
        if result.repaired:
            detail = f"{name}: {result.repaired}"
            repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, event.deployment_id))
        cores = result.deployment.cores
        answers.append(Accepted(event.event_id, event.deployment_id, cores, result.repaired))
    if changed:
        keeping.write(Change(counts, list(changed.values()), taken, (), [*notes, *repairs]))
    for deployment in changed.values():
        book.put(deployment)
    mended = book.mends()
    if mended is not None:
        detail = f"{name}: the total was {mended[0]}, the sizes add up to {mended[1]}"
        repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, name))
    for repair in repairs:
        log.warning("sizes_repaired", deployment=repair.subject, detail=repair.detail)
    return tuple(answers), repairs
