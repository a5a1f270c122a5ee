"""The turn of a decision's pools: one pool's trouble stops no other, and what came before a failure stays told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.kernel.turn import TurnReport, turn_subjects
from domain.decisions import Event, Reason
from domain.errors import Fenced, LedgerUnavailable
from domain.subject import AGENT, Subject

NOW = 60.0
BEFORE = Event(AGENT, NOW, Reason.LATE_CALL, "of a part that turned before")


def lost(pool: str) -> Event:
    """Return what a pool tells of its turn."""
    return Event(Subject("placement", pool), NOW, Reason.CONTAINERS_LOST, "two containers")


def broken() -> Sequence[Event]:
    """Fail by a mistake of ours."""
    raise KeyError("host-7")


def test_one_pools_trouble_stops_no_other() -> None:
    turns = (("a", lambda: [lost("a")]), ("b", broken), ("c", lambda: [lost("c")]))
    report = turn_subjects(TurnReport(NOW, events=(BEFORE,)), "placement", turns)
    trouble = Event(
        Subject("placement", "b"), NOW, Reason.INTERNAL_ERROR, "placement b: its turn was cut short: KeyError: 'host-7'"
    )
    assert report == TurnReport(NOW, events=(BEFORE, lost("a"), trouble, lost("c")))


@pytest.mark.parametrize("error", [Fenced("another agent leads"), LedgerUnavailable("the disk is full")])
def test_what_the_ledger_refuses_ends_the_turn_and_what_came_before_stays_reported(error: Exception) -> None:
    asked = []

    def refused() -> Sequence[Event]:
        raise error

    turns = (("a", lambda: [lost("a")]), ("b", refused), ("c", lambda: asked.append("c") or []))
    report = turn_subjects(TurnReport(NOW, events=(BEFORE,)), "placement", turns)
    assert (report.events, report.failure, asked) == ((BEFORE, lost("a")), str(error), [])
