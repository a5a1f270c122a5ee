"""Events are told when something begins or ends, not while it lasts."""

from __future__ import annotations

from dataclasses import replace

from agent.autoscaling.tick import state_events
from agent.rails.state import CapacityMark, LoopState
from domain.decisions import Event, Reason
from tests.agent.rails.scenes import NOON, scene

SNAPSHOT = scene().snapshot
MARK = CapacityMark("m5a.large", "us-east-1a", NOON + 600.0, 600.0)
ANYWHERE = CapacityMark("m5a.xlarge", "", NOON + 300.0, 300.0)


def told(before: LoopState, after: LoopState, **snapshot: object) -> tuple[Event, ...]:
    return state_events("web", before, after, replace(SNAPSHOT, **snapshot), NOON)  # type: ignore[arg-type]


def test_a_calm_minute_tells_nothing() -> None:
    assert told(LoopState(capacity=(MARK,)), LoopState(capacity=(MARK,))) == ()


def test_lost_input_is_told_once_by_its_name() -> None:
    lost = LoopState(stale_bins=1)
    (event,) = told(LoopState(), lost, absent=("cpu", "queue"))
    assert event == Event("web", NOON, Reason.METRICS_LOST, "input lost: cpu, queue; holding", "cpu, queue")
    assert told(lost, LoopState(stale_bins=2), absent=("cpu", "queue")) == ()


def test_thin_coverage_is_told_as_its_share() -> None:
    (event,) = told(LoopState(), LoopState(stale_bins=1), coverage=0.4)
    assert (event.reason, event.detail) == (Reason.METRICS_LOST, "input lost: coverage 40%; holding")


def test_input_that_is_back_is_told_with_how_long_it_was_away() -> None:
    (event,) = told(LoopState(stale_bins=7), LoopState())
    assert (event.reason, event.detail) == (Reason.METRICS_RETURNED, "input back after 7 min")


def test_a_minute_that_could_not_be_read_says_nothing_about_input() -> None:
    assert state_events("web", LoopState(stale_bins=2), LoopState(stale_bins=2), None, NOON) == ()


def test_each_shortage_is_told_when_it_begins_and_when_it_is_over() -> None:
    began = told(LoopState(), LoopState(capacity=(MARK, ANYWHERE)))
    assert [event.detail for event in began] == [
        "AWS has no m5a.large in us-east-1a; not asked for again within 600 s",
        "AWS has no m5a.xlarge in any zone; not asked for again within 300 s",
    ]
    assert {event.reason for event in began} == {Reason.CAPACITY_LOST}
    (over,) = told(LoopState(capacity=(MARK, ANYWHERE)), LoopState(capacity=(ANYWHERE,)))
    assert over == Event(
        "web",
        NOON,
        Reason.CAPACITY_RETURNED,
        "m5a.large in us-east-1a may be asked for again",
        "m5a.large in us-east-1a",
    )


def test_a_shortage_met_again_while_it_is_remembered_is_not_told_again() -> None:
    again = replace(MARK, until=NOON + 900.0)
    assert told(LoopState(capacity=(MARK,)), LoopState(capacity=(again,))) == ()
