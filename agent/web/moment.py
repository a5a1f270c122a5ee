"""What the page shows of one moment: everything it needs, gathered from the view at one journal number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.kernel.decision import Card
from agent.kernel.page import Alert, DecisionItem, PageSection, PartPage, Scene, collapsed
from agent.ledger import Kind
from agent.view.view import AgentView, InputStatus, JournalRow
from domain.decisions import Reason
from domain.subject import Subject

DECISIONS, EVENTS = 15, 12
LISTED_KINDS = (Kind.EVENT, Kind.SETTINGS)
ROUTINE = frozenset({Reason.PROTECTED})
"""Events that the journal keeps and the page does not list: too many, and nothing to look into."""


@dataclass(frozen=True, slots=True)
class EventItem:
    """An event in a list; `subject` is "" for one of the agent itself."""

    seq: int
    subject: str
    at: float
    reason: str
    detail: str


def event_item(row: JournalRow) -> EventItem | None:
    """Return what the page lists among the events for a journal row, None for what it shows elsewhere."""
    subject = Subject(row.decision, row.subject).path
    if row.kind == Kind.EVENT and row.reason not in ROUTINE:
        return EventItem(row.seq, subject, row.at, row.reason, str(row.body.get("detail", "")))
    if row.kind == Kind.SETTINGS:
        first = row.reason == Reason.SETTINGS_RECORDED
        detail = "the first settings on this ledger" if first else "the agent runs with other settings than before"
        return EventItem(row.seq, subject, row.at, row.reason, detail)
    return None


@dataclass(frozen=True, slots=True)
class Moment:
    """One subject, or all, at journal number `seq` and time `at`; `drawn` by part, of those that draw theirs."""

    seq: int
    at: float
    agent: Mapping[str, Any]
    alerts: tuple[Alert, ...]
    drawn: Mapping[str, PageSection]
    decisions: tuple[DecisionItem, ...]
    inputs: InputStatus
    cards: tuple[Card, ...]
    events: tuple[EventItem, ...]


def moment(view: AgentView, pages: Mapping[str, PartPage], subject: Subject | None) -> Moment:
    """Return what there is to see now; BadInput names the subjects, LedgerUnavailable without a ledger to read."""
    # The number comes first: what is listed is cut off there, and the stream goes on from there.
    seq = view.parts.ledger.newest_seq()
    now = view.parts.now()
    leaders = view.parts.board.read().leaders
    scene = Scene(seq, now, view.parts.settings.mode.value, None if subject is None else subject.name, leaders)
    drawn = {name: page.gather(scene) for name, page in pages.items()}
    decisions = sorted((item for one in drawn.values() for item in one.decisions), key=lambda item: -item.seq)
    # Most rows may be routine, which is not listed.
    rows = view.latest(LISTED_KINDS, up_to_seq=seq, subject=subject, limit=10 * EVENTS)
    events = [item for item in map(event_item, rows) if item is not None]
    return Moment(
        seq=seq,
        at=now,
        agent=view.agent(),
        alerts=(*alerts(view), *(alert for one in drawn.values() for alert in one.alerts)),
        drawn=drawn,
        decisions=tuple(collapsed(decisions)[:DECISIONS]),
        inputs=view.inputs(),
        cards=() if subject is not None else cards(view, now),
        events=tuple(events[:EVENTS]),
    )


def cards(view: AgentView, now: float) -> tuple[Card, ...]:
    """Return the card of every subject that is decided for now, of the parts that do not draw theirs."""
    found, leaders = [], view.parts.board.read().leaders
    for part in view.parts.parts:
        for name in part.managed():
            if (card := part.card(name, now)) is None:
                continue
            leader = leaders.get(Subject(part.name, name).path)
            found.append(card if leader is None else replace(card, badges=(*card.badges, (f"led by {leader}", ""))))
    return tuple(found)


def alerts(view: AgentView) -> tuple[Alert, ...]:
    """Return what a person should look into, the gravest first; reads no ledger."""
    state, health = view.parts.board.read(), view.health()
    found = []
    if state.stopping:
        found.append(Alert("Stopping", "the agent is ending; no further turn begins"))
    elif not health.ok:
        found.append(Alert("Not turning", health.detail))
    if state.ledger_failure:
        found.append(Alert("Nothing is executed", state.ledger_failure))
    found += [Alert(name, sentence) for name, sentence in sorted(state.problems.items())]
    return tuple(found)
