"""A turn of the loop: what one part did in it, for the board, the metrics and the alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from domain.decisions import Decision, Event, Intent, Outcome, Reason
from domain.errors import Fenced, LedgerError
from domain.snapshot import Snapshot
from domain.subject import Subject

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TickReport:
    """The records of one tick; `failure` is why it ended early, when the ledger could not be used.

    results: intents with their outcomes. failure_reason: what the failure is an alarm for. unread: fleets whose groups
    AWS did not show, where nothing was decided for them. partial: fleets whose minute began before this process
    listened.
    """

    at: float
    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[Decision, ...] = ()
    results: tuple[tuple[Intent, Outcome], ...] = ()
    events: tuple[Event, ...] = ()
    failure: str | None = None
    failure_reason: Reason = Reason.LEDGER_UNAVAILABLE
    unread: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of `results`."""
        return tuple(outcome for _, outcome in self.results)


def pools_turned(
    report: TickReport, decision: str, turns: Iterable[tuple[str, Callable[[], Sequence[Event]]]]
) -> TickReport:
    """Turn a decision's pools, each by its name and call, and return the report with their events.

    One pool's trouble is an event and stops no other. What the ledger refuses is the report's failure and ends the
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
