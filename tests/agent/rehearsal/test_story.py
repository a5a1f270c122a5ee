"""Stories: faults strike in their minute, and the ledger must show what was made of them, in order."""

from typing import Any

import pytest

from agent.ledger.records import JournalEntry, Kind
from agent.rehearsal.story import (
    NOBODY,
    STORIES,
    Beat,
    Story,
    Teller,
    Told,
    missing,
    required_of,
    story_named,
    told_by,
)
from domain.decisions import Reason
from domain.errors import BadInput


class Stage:
    """Remembers what was done to it; gives a spot notice when `vm` is set."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.vm: str | None = None

    def shortage(self, vm_type: str, duration_s: float) -> None:
        self.done.append(("shortage", vm_type, duration_s))

    def metric_gap(self, duration_s: float) -> None:
        self.done.append(("gap", duration_s))

    def spot_notice(self) -> str | None:
        return self.vm

    def throttle(self, rate: float, duration_s: float) -> None:
        self.done.append(("throttle", rate, duration_s))

    def timeouts(self, count: int) -> None:
        self.done.append(("timeouts", count))


def entry(kind: Kind, reason: str, ref: str, at: float = 0.0, effects: tuple[str, ...] = ()) -> JournalEntry:
    return JournalEntry(1, at, "web", kind, ref, reason, {"effects": [{"reason": name} for name in effects]})


def test_each_fault_strikes_once_in_its_minute_and_in_order():
    teller, stage = Teller(story_named("story")), Stage()
    titles = [
        [struck.beat.title for struck in teller.advance(minute, 60.0 * minute, stage)]
        for minute in (0.0, 1.0, 26.5, 27.0)
    ]
    assert titles == [["no m5a.2xlarge for 8 min"], [], ["no measurements for 3 min"], []]
    assert stage.done == [("shortage", "m5a.2xlarge", 480.0), ("gap", 180.0)]


def test_a_fault_that_cannot_strike_yet_is_tried_again():
    teller, stage = Teller(story_named("spot")), Stage()
    assert teller.advance(41.0, 2460.0, stage) == ()
    stage.vm = "i-7"
    (struck,) = teller.advance(42.0, 2520.0, stage)
    assert (struck.vm, struck.at) == ("i-7", 2520.0)
    assert teller.advance(43.0, 2580.0, stage) == ()


def test_a_strike_that_fails_leaves_the_fault_to_be_tried_again():
    def refuse(_: object) -> str:
        raise OSError("no route")

    teller = Teller(Story("s", "", (Beat(0.0, "t", refuse),), ()))
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            teller.advance(1.0, 60.0, Stage())


def test_an_unknown_story_is_refused_with_the_list_of_those_there_are():
    with pytest.raises(BadInput, match="story, none, throttle, capacity, gap, spot, timeout"):
        story_named("flood")


def test_every_fault_of_every_story_says_what_meeting_it_looks_like():
    assert all(beat.met for story in STORIES for beat in story.beats)
    assert all(story.required for story in STORIES)


def test_the_default_story_requires_the_eight_events_of_the_demonstration():
    required = story_named("story").required
    assert len(required) >= 8
    assert {
        Reason.QUEUE_GREW,
        Reason.CAPACITY_LOST,
        Reason.CAPACITY_FALLBACK,
        Reason.NO_CAPACITY,
        Reason.METRICS_LOST,
        Reason.METRICS_RETURNED,
        Reason.SPOT_INTERRUPTION,
        Reason.DRAINED,
    } <= set(required)


A, B, C = Reason.QUEUE_GREW, Reason.CAPACITY_LOST, Reason.DONE


def test_reasons_in_their_order_are_not_missing():
    assert missing((A, B, C), [Told(A, 1.0), Told(C, 2.0), Told(B, 3.0), Told(C, 4.0)]) == ()


def test_a_reason_before_its_turn_does_not_count():
    assert missing((A, B), [Told(B, 1.0), Told(A, 2.0)]) == (B,)


def test_within_one_turn_any_order_will_do():
    assert missing((A, B), [Told(B, 2.0), Told(A, 2.0)]) == ()


def test_an_absent_reason_does_not_hide_those_after_it():
    assert missing((A, B, C), [Told(A, 1.0), Told(C, 2.0)]) == (B,)


def test_only_the_drain_of_the_interrupted_vm_counts_after_a_spot_interruption():
    required = (Reason.SPOT_INTERRUPTION, Reason.DRAINED)
    told = [Told(Reason.SPOT_INTERRUPTION, 1.0, "i-1"), Told(Reason.DRAINED, 2.0, "i-2")]
    assert missing(required, told) == (Reason.DRAINED,)
    assert missing(required, [*told, Told(Reason.DRAINED, 3.0, "i-1")]) == ()


def test_a_drain_without_an_interruption_before_it_may_be_of_any_vm():
    assert missing((Reason.DRAINED,), [Told(Reason.DRAINED, 2.0, "i-2")]) == ()


def test_the_rails_reasons_of_a_decision_are_told_with_its_own():
    told = told_by([entry(Kind.DECISION, "cooling_down", "web-4", 5.0, ("step_limit", "cooling_down", ""))])
    assert told == [Told(Reason.COOLING_DOWN, 5.0, "web-4"), Told(Reason.STEP_LIMIT, 5.0, "web-4")]


def test_a_fallback_that_came_to_nothing_is_none():
    held = entry(Kind.DECISION, "cooling_down", "web-4", 1.0, ("capacity_fallback",))
    done = entry(Kind.DECISION, "capacity_fallback", "web-5", 2.0, ("capacity_fallback",))
    intent = entry(Kind.INTENT, "capacity_fallback", "web-5.workers_m", 2.0)
    assert {told.at for told in told_by([held, done, intent]) if told.reason is Reason.CAPACITY_FALLBACK} == {2.0}


def test_what_no_reason_is_called_by_is_left_out():
    assert told_by([entry(Kind.EVENT, "no_such_reason", NOBODY)]) == []


def test_of_a_learned_policy_its_own_reason_is_required_and_nothing_that_is_its_choice():
    story = story_named("story")
    required = required_of(story, "learned")
    assert required[0] is Reason.LEARNED
    assert set(story.required) - set(required) == {
        Reason.QUEUE_GREW,
        Reason.NO_CAPACITY,
        Reason.CAPACITY_LOST,
        Reason.CAPACITY_FALLBACK,
        Reason.CAPACITY_RETURNED,
    }
    assert required_of(story, "queue-rule:horizon_s=150") == story.required
