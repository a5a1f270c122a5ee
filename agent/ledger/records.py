"""What reading the ledger gives: frozen records of journal rows, decisions and their intents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agent.autoscaling.decide import DecisionInputs
from domain.decisions import Decision, Intent, Outcome


class Kind(StrEnum):
    """What a journal row records."""

    DECISION = "decision"
    INTENT = "intent"
    OUTCOME = "outcome"
    EVENT = "event"
    SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One row of the journal; a reader that has seen `seq` goes on from there.

    ref: a decision's or an intent's id, or an event's subject.
    """

    seq: int
    at: float
    fleet: str
    kind: Kind
    ref: str
    reason: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """An intent, what it went through in order, and whether it is still open."""

    intent: Intent
    outcomes: tuple[Outcome, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Everything about one decision: its journal number, what it was made on, itself, and what came of its intents."""

    seq: int
    inputs: DecisionInputs
    decision: Decision
    intents: tuple[IntentRecord, ...]


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision in a list, without its inputs."""

    seq: int
    decision: Decision

    @property
    def changed(self) -> bool:
        """Whether it led to anything to do."""
        return bool(self.decision.intents)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What retention removed: journal rows, bytes given back to the disk, and whether nothing more is due."""

    rows: int
    bytes: int
    finished: bool
