"""A turn of the loop: what one part did in it, for the board, the metrics and the alarms."""

from __future__ import annotations

from dataclasses import dataclass

from domain.decisions import Decision, Event, Outcome, Reason
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did; `failure` says why nothing was executed, when the ledger could not be used.

    failure_reason: what the failure is an alarm for.
    """

    at: float
    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[Decision, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    events: tuple[Event, ...] = ()
    failure: str | None = None
    failure_reason: Reason = Reason.LEDGER_UNAVAILABLE
