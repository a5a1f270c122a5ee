"""The replay of a fleet: it sees what the agent would see, and its VMs boot as long as recorded."""

from dataclasses import replace

from agent.autoscaling.decide import DecisionInputs
from domain.controls import Window
from domain.workload import make_trace
from simulator.autoscaling.twin_world import Machine
from tests.trainer.learning.recording import RULE, WORLD, batches, loop_of
from trainer.learning.replay import Lived, RecordedBoot, RecordedBoots, idle_seconds, play

POINTS = (60.0, 60.0)


def test_a_launch_takes_the_recorded_boot_nearest_to_it_and_each_one_once() -> None:
    boots = [RecordedBoot(0, 1005.0, 75.0), RecordedBoot(0, 1300.0, 200.0), RecordedBoot(1, 1000.0, 30.0)]
    boots.append(RecordedBoot(1, 9000.0, 40.0))
    drawn = RecordedBoots(1, boots, start_s=1000.0, lag_s=5.0)
    assert drawn.ready_at(0, 0, POINTS, 240.0) == 240.0 + 5.0 + 200.0
    assert drawn.ready_at(0, 1, POINTS, 0.0) == 5.0 + 75.0
    # None is left near it: drawn from the world's boot times, which have the delay in them.
    assert drawn.ready_at(0, 2, POINTS, 0.0) == 60.0
    assert drawn.ready_at(1, 0, POINTS, 0.0) == 5.0 + 30.0
    assert drawn.ready_at(1, 1, POINTS, 0.0) == 60.0


def test_idle_time_counts_whole_minutes_as_the_agent_does() -> None:
    new = Machine(0, 0, 2, 8.0, 1.0, requested_at=0.0, ready_at=95.0, idle_since=95.0, free=2)
    assert idle_seconds(new, 180.0, 10.0) == 120.0
    worked = Machine(0, 0, 2, 8.0, 1.0, requested_at=0.0, ready_at=10.0, idle_since=95.0, free=2)
    assert idle_seconds(worked, 120.0, 10.0) == 0.0
    assert idle_seconds(worked, 180.0, 10.0) == 60.0
    busy = Machine(0, 0, 2, 8.0, 1.0, requested_at=0.0, ready_at=10.0, idle_since=95.0, free=1)
    assert idle_seconds(busy, 180.0, 10.0) == 0.0


def test_a_minute_has_the_idle_time_and_the_windows_that_were_recorded() -> None:
    window = Window("night", 0.0, 3600.0)
    lived = [Lived(idle_s=60.0, windows=(window,))] * 5 + [Lived(idle_s=6000.0)] * 5
    seen: list[DecisionInputs] = []
    loop, late = loop_of(), make_trace("late", [3000.0], [60.0])
    play(
        loop,
        replace(WORLD, initial=(1, 0, 0)),
        late,
        ["hold"] * 10,
        0,
        lived=lived,
        seen=lambda one, _: seen.append(one),
    )
    idle = [sum(group.idle_long for group in one.snapshot.groups) for one in seen]
    assert idle[4] == 1
    assert idle[5:] == [0] * 5
    assert [one.windows for one in seen] == [(window,)] * 5 + [()] * 5


def test_a_busy_vm_is_not_idle_even_where_no_idle_time_is_asked_for() -> None:
    seen: list[DecisionInputs] = []
    world, work = replace(WORLD, initial=(1, 0, 0)), make_trace("work", [0.0], [300.0])
    play(replace(loop_of(), idle_s=0.0), world, work, ["hold"] * 10, 0, seen=lambda one, _: seen.append(one))
    assert [one.snapshot.groups[0].idle_long for one in seen][1:] == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_a_vm_that_boots_beyond_the_deadline_is_overdue() -> None:
    loop = loop_of()
    seen: list[DecisionInputs] = []
    boots = [RecordedBoot(group, 60.0 * minute, 900.0) for group in range(3) for minute in range(20) for _ in range(6)]
    play(loop, WORLD, batches(0.3), [RULE] * 18, 0, boots=boots, seen=lambda one, _: seen.append(one))
    assert loop.limits.boot_deadline_s < 900.0
    assert max(sum(group.overdue for group in one.snapshot.groups) for one in seen) > 0
