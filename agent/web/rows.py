"""Rows of the journal as the page lists them: decisions and events, from the journal's own bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.ledger import Kind
from agent.view.records import JournalRow
from agent.web.text import arrows, counted
from domain.decisions import Direction, Reason, Verdict

ROUTINE = frozenset({Reason.PROTECTED})
"""Events that the journal keeps and the page does not list: too many, and nothing to look into."""


@dataclass(frozen=True, slots=True)
class RailWord:
    """A rail that changed a decision: its name, what it did, and its sentence."""

    rail: str
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DecisionItem:
    """A decision in a list; `change` is what is to be done, `why` what the policy saw, then what rails changed."""

    seq: int
    id: str
    fleet: str
    at: float
    reason: str
    change: str
    why: str
    changed: bool
    rails: tuple[RailWord, ...]


@dataclass(frozen=True, slots=True)
class EventItem:
    """An event in a list; `fleet` is "" for one of the agent itself."""

    seq: int
    fleet: str
    at: float
    reason: str
    detail: str


def item_of(row: JournalRow) -> DecisionItem | EventItem | None:
    """Return what the page lists for a journal row, None for the kinds that it shows elsewhere."""
    if row.kind == Kind.DECISION:
        return decision_item(row.seq, row.body)
    if row.kind == Kind.EVENT and row.reason not in ROUTINE:
        return EventItem(row.seq, row.fleet, row.at, row.reason, str(row.body.get("detail", "")))
    if row.kind == Kind.SETTINGS:
        first = row.reason == Reason.SETTINGS_RECORDED
        detail = "the first settings on this ledger" if first else "the agent runs with other settings than before"
        return EventItem(row.seq, row.fleet, row.at, row.reason, detail)
    return None


def decision_item(seq: int, body: Mapping[str, Any]) -> DecisionItem:
    """Return a decision in a list from its recorded body."""
    # The sentence is change, reason, the proposal's detail and the rails' sentences; the page sets them apart.
    change, joint, _ = str(body["sentence"]).partition(f" ({body['reason']}): ")
    replaced = [
        f"{intent['group']}: {counted(len(intent['victims']), 'VM')} replaced"
        for intent in body["intents"]
        if intent["direction"] == Direction.REPLACE
    ]
    effects = {effect["rail"]: effect for effect in body["effects"] if effect["verdict"] != Verdict.PASSED}
    return DecisionItem(
        seq=seq,
        id=str(body["decision_id"]),
        fleet=str(body["fleet"]),
        at=float(body["at"]),
        reason=str(body["reason"]),
        change=_change(change if joint else "held", replaced),
        why=arrows(str(body["proposal"]["detail"] if joint else change)),
        changed=bool(body["intents"]),
        rails=tuple(RailWord(name, str(e["verdict"]), arrows(str(e["detail"]))) for name, e in effects.items()),
    )


def _change(change: str, replaced: list[str]) -> str:
    said = [] if replaced and change == "no change" else [arrows(change)]
    return ", ".join(said + replaced)
