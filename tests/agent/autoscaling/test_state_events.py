"""Events are told when something begins or ends, not while it lasts."""

from __future__ import annotations

from dataclasses import replace

from agent.autoscaling.state_events import state_events
from agent.rails.state import CapacityMark, LoopState
from domain.decisions import Event, Reason
from tests.agent.rails.scenes import NOON, scene
from tests.golden import check_wording

SNAPSHOT = scene().snapshot
MARK = CapacityMark("m5a.large", "us-east-1a", NOON + 600.0, 600.0)
ANYWHERE = CapacityMark("m5a.xlarge", "", NOON + 300.0, 300.0)


def told(before: LoopState, after: LoopState, **snapshot: object) -> tuple[Event, ...]:
    return state_events("web", before, after, replace(SNAPSHOT, **snapshot), NOON)  # type: ignore[arg-type]


def test_a_calm_minute_tells_nothing() -> None:
    assert told(LoopState(capacity=(MARK,)), LoopState(capacity=(MARK,))) == ()


def test_lost_input_is_reported_once_by_its_name() -> None:
    lost = LoopState(stale_bins=1)
    (event,) = told(LoopState(), lost, absent=("cpu", "queue"))
    assert (event.subject.name, event.at, event.reason, event.about) == ("web", NOON, Reason.METRICS_LOST, "cpu, queue")
    assert told(lost, LoopState(stale_bins=2), absent=("cpu", "queue")) == ()


def test_thin_coverage_is_lost_input_and_input_that_is_back_is_reported() -> None:
    assert [event.reason for event in told(LoopState(), LoopState(stale_bins=1), coverage=0.4)] == [Reason.METRICS_LOST]
    assert [event.reason for event in told(LoopState(stale_bins=7), LoopState())] == [Reason.METRICS_RETURNED]


def test_a_minute_that_could_not_be_read_says_nothing_about_input() -> None:
    assert state_events("web", LoopState(stale_bins=2), LoopState(stale_bins=2), None, NOON) == ()


def test_each_shortage_is_reported_when_it_begins_and_when_it_is_over() -> None:
    began = told(LoopState(), LoopState(capacity=(MARK, ANYWHERE)))
    assert [event.reason for event in began] == [Reason.CAPACITY_LOST] * 2
    (over,) = told(LoopState(capacity=(MARK, ANYWHERE)), LoopState(capacity=(ANYWHERE,)))
    assert (over.reason, over.about) == (Reason.CAPACITY_RETURNED, "m5a.large in us-east-1a")


def test_the_wording_of_state_events() -> None:
    lost = LoopState(stale_bins=1)
    events = {
        "inputs lost": told(LoopState(), lost, absent=("cpu", "queue")),
        "coverage lost": told(LoopState(), lost, coverage=0.4),
        "input back": told(LoopState(stale_bins=7), LoopState()),
        "shortages": told(LoopState(), LoopState(capacity=(MARK, ANYWHERE))),
        "shortage over": told(LoopState(capacity=(MARK,)), LoopState()),
    }
    check_wording("state-events", {name: "\n".join(one.detail for one in some) for name, some in events.items()})


def test_a_shortage_met_again_while_it_is_remembered_is_not_told_again() -> None:
    again = replace(MARK, until=NOON + 900.0)
    assert told(LoopState(capacity=(MARK,)), LoopState(capacity=(again,))) == ()


def test_an_input_is_lost_from_the_first_whole_minute_on_and_a_start_alone_loses_and_returns_nothing() -> None:
    end = SNAPSHOT.bin_end

    def told_since(since: float, before: LoopState, after: LoopState) -> list[Reason]:
        return [event.reason for event in state_events("web", before, after, SNAPSHOT, NOON, since)]

    begins, earlier, now = end - 60.0, end - 60.0, end
    one, two = LoopState(stale_bins=1, last_bin_end=earlier), LoopState(stale_bins=2, last_bin_end=now)
    whole = LoopState(last_bin_end=now)
    assert told_since(begins + 1.0, LoopState(), one) == []
    assert told_since(begins, one, two) == [Reason.METRICS_LOST]
    assert told_since(begins, two, two) == []
    assert told_since(begins, one, whole) == []
    assert told_since(begins, LoopState(stale_bins=7, last_bin_end=earlier), whole) == [Reason.METRICS_RETURNED]
    assert told_since(begins - 60.0, one, two) == []
    assert told_since(begins - 60.0, one, whole) == [Reason.METRICS_RETURNED]
