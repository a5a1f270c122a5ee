"""Measurements that do not fit together for minutes are events that say where to look, once in twenty minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from agent.autoscaling.stalls import Stalls
from domain.decisions import Event, Reason
from tests.agent.autoscaling.snapshot.scene import Scene, running

Queue = Mapping[str, float]


def watch(minutes: int, queue: Callable[[int], Queue], busy: Callable[[int], Mapping[str, float]]) -> list[Event]:
    """Let minutes pass on two VMs; `busy` gives what each reports of its cores and the work on them."""
    scene, stalls, events = Scene(), Stalls(), []
    scene.place("s", running("i-1"), running("i-2"))
    for minute in range(minutes):
        snapshot = scene.minute({"i-1": 50.0, "i-2": 50.0}, queue(minute), **busy(minute))
        events += stalls.events(snapshot, scene.folded.stuck, scene.now)
        stalls.recorded()
    return events


def idle(minute: int) -> Mapping[str, float]:
    return {"busy_cores": 0.0, "work_core_seconds": 0.0}


def at_work(minute: int) -> Mapping[str, float]:
    return {"busy_cores": 2.0, "work_core_seconds": 60.0 * (minute + 1)}


def test_jobs_that_wait_beside_idle_vms_are_told_after_five_minutes_and_while_it_lasts() -> None:
    events = watch(30, lambda minute: {"waiting": 40 + minute, "running": 0}, idle)
    assert [event.reason for event in events] == [Reason.JOBS_NOT_TAKEN] * 2
    assert [text for text in ("45 jobs wait for 5 min", "2 of 2 VMs") if text not in events[0].detail] == []
    assert events[1].at - events[0].at == 1200.0


def test_a_minute_without_waiting_jobs_begins_anew() -> None:
    assert watch(30, lambda minute: {"waiting": minute % 5, "running": 0}, idle) == []


def test_jobs_that_wait_while_vms_are_at_work_are_no_stall() -> None:
    assert watch(40, lambda minute: {"waiting": 40, "running": 4}, at_work) == []


def test_a_queue_that_is_repeated_while_nothing_else_moves_is_told_with_what_statsd_does() -> None:
    events = watch(17, lambda minute: {"waiting": 40, "running": 0}, idle)
    assert [event.reason for event in events] == [Reason.JOBS_NOT_TAKEN, Reason.INPUT_REPEATS]
    assert (events[1].about, "deleteGauges" in events[1].detail) == ("queue", True)


@pytest.mark.parametrize("moves", ["waiting", "oldest_wait_seconds"])
def test_a_queue_in_which_anything_moves_is_not_repeated(moves: str) -> None:
    events = watch(30, lambda minute: {"waiting": 40, "running": 0, moves: 40 + minute}, idle)
    assert Reason.INPUT_REPEATS not in {event.reason for event in events}


def test_vms_that_are_busy_for_half_an_hour_with_the_same_work_are_named() -> None:
    def hung(minute: int) -> Mapping[str, float]:
        return {"busy_cores": 2.0, "work_core_seconds": 0.0}

    events = watch(33, lambda minute: {"waiting": 0, "running": 2}, hung)
    assert [(event.reason, event.about) for event in events] == [(Reason.WORK_STUCK, "s")]
    assert "i-1, i-2" in events[0].detail


def test_idle_vms_and_vms_whose_work_moves_are_not_stuck() -> None:
    assert watch(40, lambda minute: {"waiting": 0, "running": 0}, idle) == []
    assert watch(40, lambda minute: {"waiting": 0, "running": 2}, lambda minute: {"busy_cores": 2.0}) == []
    assert watch(40, lambda minute: {"waiting": 0, "running": 2}, at_work) == []


def test_a_clock_that_was_set_silences_nothing() -> None:
    scene, stalls = Scene(), Stalls()
    scene.place("s", running("i-1"))
    for minute in range(6):
        snapshot = scene.minute({"i-1": 5.0}, {"waiting": 9 + minute, "running": 0}, busy_cores=0.0)
        events = stalls.events(snapshot, {}, scene.now)
    assert [event.reason for event in events] == [Reason.JOBS_NOT_TAKEN]
    stalls.recorded()
    stalls.clock_stepped(-7200.0)
    known = stalls._lasting["web", Reason.JOBS_NOT_TAKEN, ""]
    assert (known.told_at, known.since) == (scene.now - 7200.0, scene.now - 300.0 - 7200.0)
