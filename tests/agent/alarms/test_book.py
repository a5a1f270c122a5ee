"""Alarms: sent when they begin, again while they last, and when they end."""

from __future__ import annotations

from agent.alarms.book import AlarmBook
from agent.autoscaling.report import MinuteReport, with_fleets
from agent.kernel.turn import Severity, TurnReport
from domain.decisions import (
    Decision,
    Direction,
    Event,
    Intent,
    Mode,
    Outcome,
    Proposal,
    RailEffect,
    Reason,
    Status,
    Verdict,
)
from domain.subject import fleet_subject
from tests.golden import check_wording

START = 1_772_366_400.0


def decided(at: float, reason: Reason, *effects: Reason) -> Decision:
    said = tuple(RailEffect("rail", Verdict.VETOED, (2,), (1,), effect, f"{effect} said") for effect in effects)
    proposal = Proposal("web", "hold", (1,), reason)
    return Decision("web-1", "web", at, Mode.ACT, proposal, said, (1,), reason, f"no change ({reason})")


def turn(minute: int, *decisions: Decision, **report: object) -> TurnReport:
    at = START + 60.0 * minute
    return with_fleets(TurnReport(at), MinuteReport(at, decisions=decisions, **report))  # type: ignore[arg-type]


def test_a_condition_is_sent_once_and_again_when_it_ends() -> None:
    book = AlarmBook()
    first = book.turn(turn(0, decided(START, Reason.STALE_INPUT)))
    assert [(alarm.severity, alarm.subject.name, alarm.reason) for alarm in first] == [
        (Severity.WARNING, "web", Reason.STALE_INPUT)
    ]
    sentences = {"a condition": first[0].sentence}
    assert book.turn(turn(1, decided(START + 60, Reason.STALE_INPUT))) == ()
    assert [alarm.count for alarm in book.active] == [2]
    over = book.turn(turn(2, decided(START + 120, Reason.QUEUE_COVERED)))
    assert [(alarm.reason, alarm.resolved, alarm.since) for alarm in over] == [(Reason.STALE_INPUT, True, START)]
    assert book.active == ()
    lost = Event(fleet_subject("web"), START, Reason.CAPACITY_LOST, "AWS has none", "m5a.large in us-east-1a")
    (sentences["an event"],) = (alarm.sentence for alarm in book.turn(turn(3, events=(lost,))))
    (sentences["a failure"],) = (alarm.sentence for alarm in book.turn(turn(4, failure="the disk is full")))
    sentences["a condition that is over"] = over[0].sentence
    check_wording("alarms", sentences)


def test_a_condition_that_lasts_is_sent_again_after_the_repeat_time() -> None:
    book = AlarmBook(repeat_s=120.0)
    sent = [bool(book.turn(turn(minute, decided(START + 60 * minute, Reason.FLEET_SICK)))) for minute in range(5)]
    assert sent == [True, False, True, False, True]


def test_a_rail_speaks_too() -> None:
    sent = AlarmBook().turn(turn(0, decided(START, Reason.LOAD_LOW, Reason.CIRCUIT_OPEN, Reason.COOLING_DOWN)))
    assert [(alarm.reason, alarm.text) for alarm in sent] == [(Reason.CIRCUIT_OPEN, "circuit_open said")]


def test_ordinary_decisions_and_routine_events_are_no_alarms() -> None:
    events = tuple(
        Event(fleet_subject("web"), START, reason, "") for reason in (Reason.PROTECTED, Reason.DRAINED, Reason.OPERATOR)
    )
    book = AlarmBook()
    assert book.turn(turn(0, decided(START, Reason.QUEUE_GREW, Reason.STEP_LIMIT), events=events)) == ()


def test_an_event_is_over_when_it_has_been_quiet() -> None:
    book = AlarmBook(quiet_s=120.0)
    lost = Event(fleet_subject("web"), START, Reason.CAPACITY_LOST, "AWS has none", "m5a.large in us-east-1a")
    (sent,) = book.turn(turn(0, events=(lost,)))
    assert (sent.about, sent.severity) == ("m5a.large in us-east-1a", Severity.WARNING)
    assert book.turn(turn(1)) == ()
    (over,) = book.turn(turn(2))
    assert over.resolved


def test_two_subjects_are_two_alarms() -> None:
    events = tuple(Event(fleet_subject("web"), START, Reason.CAPACITY_LOST, "none", zone) for zone in ("a", "b"))
    assert [alarm.about for alarm in AlarmBook().turn(turn(0, events=events))] == ["a", "b"]


INTENT = Intent("1", "1", "web-two", "workers_s", Direction.OUT, 1, 3, (), 1, START, START + 600.0)


def test_an_ended_intent_names_its_fleet_and_group() -> None:
    outcome = Outcome("web-two-17.workers_s", Status.FAILED, Reason.CREDENTIALS, 2, 0, START, "the key expired")
    (sent,) = AlarmBook().turn(turn(0, results=((INTENT, outcome),)))
    assert (sent.subject.name, sent.about, sent.severity) == ("web-two", "workers_s", Severity.CRITICAL)


def test_an_intent_still_open_is_no_alarm() -> None:
    outcome = Outcome("web-1.s", Status.IN_PROGRESS, Reason.CREDENTIALS, 2, 0, START)
    assert AlarmBook().turn(turn(0, results=((INTENT, outcome),))) == ()


def test_a_turn_without_a_ledger_is_critical_and_ends_no_other_alarm() -> None:
    book = AlarmBook()
    book.turn(turn(0, decided(START, Reason.CLOUD_UNREADABLE)))
    (sent,) = book.turn(turn(1, failure="the disk is full"))
    assert (sent.severity, sent.reason) == (Severity.CRITICAL, Reason.LEDGER_UNAVAILABLE)
    assert {alarm.reason for alarm in book.active} == {Reason.CLOUD_UNREADABLE, Reason.LEDGER_UNAVAILABLE}
    over = book.turn(turn(2, decided(START + 120, Reason.QUEUE_COVERED)))
    assert {alarm.reason for alarm in over if alarm.resolved} == {Reason.CLOUD_UNREADABLE, Reason.LEDGER_UNAVAILABLE}


def test_a_minute_that_was_not_listened_to_as_a_whole_alarms_for_no_absent_input() -> None:
    book, stale = AlarmBook(), decided(START, Reason.STALE_INPUT, Reason.LOW_COVERAGE)
    assert book.turn(turn(0, stale, partial=("web",))) == ()
    other = turn(1, decided(START, Reason.CLOUD_UNREADABLE), partial=("web",))
    assert [alarm.reason for alarm in book.turn(other)] == [Reason.CLOUD_UNREADABLE]
    assert {alarm.reason for alarm in book.turn(turn(2, stale)) if not alarm.resolved} == {
        Reason.STALE_INPUT,
        Reason.LOW_COVERAGE,
    }


def test_a_turn_that_ended_before_aws_was_asked_ends_no_condition() -> None:
    book = AlarmBook()
    book.turn(turn(0, decided(START, Reason.STALE_INPUT)))
    assert book.turn(TurnReport(START + 60.0)) == ()
    assert [(alarm.reason, alarm.resolved) for alarm in book.turn(turn(2))] == [(Reason.STALE_INPUT, True)]
