"""The part of a minute in the report of the turn."""

from __future__ import annotations

from agent.autoscaling.report import MinuteReport, with_fleets
from agent.kernel.turn import TurnReport
from domain.decisions import Decision, Event, Mode, Proposal, Reason
from domain.subject import Subject, fleet_subject

NOON = 1_772_366_400.0
EARLIER = Event(Subject("placement", "main"), NOON, Reason.FLEET_FOUND, "an earlier part")


def decided(fleet: str, reason: Reason, at: float = NOON) -> Decision:
    return Decision(f"{fleet}-1", fleet, at, Mode.ACT, Proposal(fleet, "hold", (1,), reason), (), (1,), reason, "why")


def turned(*decisions: Decision, failure: str | None = None, unread: tuple[str, ...] = ()) -> TurnReport:
    minute = MinuteReport(NOON, decisions=decisions, failure=failure, unread=unread)
    return with_fleets(TurnReport(NOON, events=(EARLIER,)), minute)


def test_a_turn_is_blind_where_every_decision_was_held_by_its_input() -> None:
    stale, covered = decided("a", Reason.STALE_INPUT), decided("b", Reason.QUEUE_COVERED)
    assert [turned(stale).blind, turned(stale, covered).blind, turned().blind] == [True, False, False]


def test_what_aws_did_not_show_is_unread_and_a_failure_before_it_was_asked_tells_nothing() -> None:
    assert turned(decided("a", Reason.CLOUD_UNREADABLE), unread=("b",)).unread == ("a", "b")
    assert turned(decided("a", Reason.QUEUE_COVERED)).unread == ()
    assert turned(failure="the ledger cannot be read").unread is None
    assert turned(failure="the ledger cannot be read", unread=("b",)).unread == ("b",)


def test_the_newest_decision_is_the_latest_sentence_and_earlier_parts_stay() -> None:
    report = turned(decided("a", Reason.QUEUE_COVERED, NOON), decided("b", Reason.QUEUE_COVERED, NOON + 1.0))
    assert report.latest == "12:00:01 UTC b: why"
    assert report.events == (EARLIER,)


def test_counts_and_conditions_have_the_fleet_as_their_subject() -> None:
    report = turned(decided("a", Reason.STALE_INPUT))
    assert ("trimtab_decisions_total", ("a", Reason.STALE_INPUT), 1.0) in report.counts
    assert [(one.subject, one.reason, one.lasting) for one in report.conditions] == [
        (fleet_subject("a"), Reason.STALE_INPUT, True)
    ]
