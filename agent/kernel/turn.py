"""A turn of the loop: what one part did in it, for the board, the metrics and the alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import Fenced, LedgerError
from domain.subject import Subject

log = structlog.get_logger(__name__)


class Severity(StrEnum):
    """critical: nothing is being managed. warning: something is, but not as it should. info: a choice is a person's."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Condition:
    """A cause of an alarm that is not an event; `lasting` ones end with the first turn without them.

    about: a group, VM or request of the subject.
    """

    subject: Subject
    reason: Reason
    severity: Severity
    text: str
    about: str = ""
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class TurnReport:
    """The records of one turn of all parts; `failure` is why it ended early, when the ledger could not be used.

    results: intents with their outcomes. conditions: causes of alarms beside the events. counts: increments of
    counters by metric and label values. unread: subjects that AWS did not show, None where it was not asked. blind:
    every decision was held by its input. latest: the newest decision in a sentence. failure_reason: of its alarm.
    """

    at: float
    events: tuple[Event, ...] = ()
    results: tuple[tuple[Intent, Outcome], ...] = ()
    conditions: tuple[Condition, ...] = ()
    counts: tuple[tuple[str, tuple[str, ...], float], ...] = ()
    unread: tuple[str, ...] | None = None
    blind: bool = False
    latest: str = ""
    failure: str | None = None
    failure_reason: Reason = Reason.LEDGER_UNAVAILABLE


def turn_subjects(
    report: TurnReport, decision: str, turns: Iterable[tuple[str, Callable[[], Sequence[Event]]]]
) -> TurnReport:
    """Turn a decision's subjects, each by its name and call, and return the report with their events.

    An error of one subject is an event and stops no other. What the ledger refuses is the report's failure and ends the
    turn: what came before stays in it.
    """
    events = list(report.events)
    for name, turn in turns:
        try:
            events += turn()
        except (LedgerError, Fenced) as error:
            log.error("pool_stopped", decision=decision, pool=name, detail=str(error))
            return replace(report, events=tuple(events), failure=str(error))
        except Exception as error:
            log.exception("pool_failed", decision=decision, pool=name)
            detail = f"{decision} {name}: its turn was cut short: {type(error).__name__}: {error}"
            events.append(Event(Subject(decision, name), report.at, Reason.INTERNAL_ERROR, detail))
    return replace(report, events=tuple(events))
