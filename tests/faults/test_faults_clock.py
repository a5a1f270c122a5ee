"""Somebody sets the clock: what rests goes on resting for as long as it should, and the loop decides on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from domain.decisions import Reason
from domain.errors import LedgerUnavailable
from tests.faults.evidence import SET, TERMINATE, told
from tests.faults.world import AGENT_KEY, MEDIUM, QUICK, SMALL, START, M, MakeWorld, Plan, World, final_reasons
from tests.stages import exhaustive

HOUR = 3600.0
STEPS = [-HOUR, HOUR, 25.0 * HOUR]
HELD = {Reason.STALE_INPUT, Reason.LOW_COVERAGE}
GROWING: dict[str, Any] = {
    "groups": (SMALL,),
    "sizes": (1,),
    "limits": replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=240.0, max_step_out=1, max_step_in=1),
}


def site_steps(world: World, seconds: float) -> None:
    """Set every clock of the site, the agent's and the VMs'; AWS keeps its own."""
    world.agent_clock.step(seconds)
    world.vm_clock_error_s += seconds


def sent(world: World) -> list[tuple[float, str, str]]:
    """When by AWS's clock, in minutes, each changing call was made, and what it asked for."""
    return [
        (
            round((call["at"] - START) / 60.0, 1),
            call["operation"],
            call["params"].get("DesiredCapacity") or call["params"].get("InstanceId", ""),
        )
        for call in world.control.mutations(access_key=AGENT_KEY)
        if call["operation"] in (SET, TERMINATE)
    ]


_PLAIN: dict[str, list[tuple[float, str, str]]] = {}
"""What is sent in the worlds whose clock is never set, by the test they belong to."""


def in_both(make_world: MakeWorld, play: Callable[[World, float], None], step: float, **plan: Any) -> World:
    """Play in a world whose clock is never set and in one whose clock is; the same is sent at the same true times."""
    if play.__qualname__ not in _PLAIN:
        plain = make_world(**plan)
        play(plain, 0.0)
        _PLAIN[play.__qualname__] = sent(plain)
        plain.close()
    world = make_world(**plan)
    play(world, step)
    assert sent(world) == _PLAIN[play.__qualname__]
    assert len(told(world, Reason.CLOCK_JUMP)) == 1
    return world


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", STEPS)
def test_cool_downs_neither_vanish_nor_last_longer(make_world: MakeWorld, step: float) -> None:
    def play(world: World, step: float) -> None:
        world.submit(50)
        world.tick(3)
        site_steps(world, step)
        world.tick(9)

    world = in_both(make_world, play, step, **GROWING)
    assert [minute for minute, _, _ in sent(world)] == [1.1, 6.1, 11.1]
    (text,) = told(world, Reason.CLOCK_JUMP)
    assert f"{'forward' if step > 0 else 'back'} by {abs(step):.0f} s" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", STEPS)
def test_decisions_go_on_at_once(make_world: MakeWorld, step: float) -> None:
    world = make_world(sizes=(2, 0, 0))
    world.tick(2)
    site_steps(world, step)
    world.submit(30)
    world.tick(2)
    assert [r.decisions[0].reason for r in world.reports[2:]] == [Reason.QUEUE_GREW, Reason.QUEUE_COVERED]
    assert world.last.at == world.agent_clock.now()


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_vm_ordered_before_is_not_overdue_after(make_world: MakeWorld, step: float) -> None:
    def play(world: World, step: float) -> None:
        world.submit(20)
        world.tick()
        site_steps(world, step)
        world.tick(4)

    world = in_both(make_world, play, step)
    assert set(final_reasons(world)) == {Reason.DONE}
    assert world.snapshot.groups[0].overdue == 0


@pytest.mark.parametrize("step", [HOUR, *exhaustive(-HOUR)])
def test_idleness_counts_the_minutes_that_passed(make_world: MakeWorld, step: float) -> None:
    def play(world: World, step: float) -> None:
        world.tick(2)
        site_steps(world, step)
        world.tick(6)

    world = in_both(make_world, play, step, sizes=(4, 1, 0), idle_s=240.0)
    assert {minute for minute, _, _ in sent(world)} == {4.1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_capacity_shortage_is_remembered_for_its_time(make_world: MakeWorld, step: float) -> None:
    def play(world: World, step: float) -> None:
        world.fault("capacity", instance_type=M.name, duration_s=200.0)
        world.submit(6)
        world.tick(4)
        site_steps(world, step)
        world.waiting = 60
        world.tick(6)

    limits = replace(QUICK, capacity_memory_s=300.0, max_step_out=1)
    world = in_both(make_world, play, step, groups=(SMALL, MEDIUM), sizes=(1, 0), limits=limits)
    assert len(told(world, Reason.CAPACITY_RETURNED)) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_an_open_intent_keeps_its_deadline(make_world: MakeWorld, step: float) -> None:
    def play(world: World, step: float) -> None:
        world.submit(8)
        world.fault("throttle", operations=[SET])
        world.tick(2)
        site_steps(world, step)
        world.tick(5)

    ends = []
    for by in (0.0, step):
        world = make_world(groups=(SMALL,), sizes=(1,))
        play(world, by)
        overdue = next(outcome for outcome in world.outcomes if outcome.status.final)
        ends.append((overdue.reason, overdue.at - world.agent_clock.error_s))
        world.close()
    assert ends[0] == ends[1]
    assert ends[0][0] is Reason.OVERDUE


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_drain_under_way_is_neither_cut_short_nor_left_without_heartbeats(make_world: MakeWorld, step: float) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), policy="constant:1")
    world.busy = dict.fromkeys(world.in_service("small"), 1.0)
    world.tick(2)
    draining = [vm for _, vm, state in world.vms() if state == "Terminating:Wait"]
    assert len(draining) == 1
    site_steps(world, step)
    world.tick(10)
    assert [vm for _, vm, state in world.vms() if state == "Terminating:Wait"] == draining
    assert told(world, Reason.DRAIN_TIMED_OUT) == []
    world.busy = {}
    world.tick(2)
    assert told(world, Reason.DRAINED) != []
    assert len(world.vms()) == 1


@pytest.mark.parametrize("error", [-HOUR, HOUR])
def test_a_host_with_a_wrong_clock_holds_until_it_is_put_right(make_world: MakeWorld, error: float) -> None:
    world = make_world(sizes=(2, 1, 0))
    world.agent_clock.step(error)
    world.tick(4)
    assert {r.decisions[0].reason for r in world.reports} <= HELD | {Reason.SAFE_FLOOR}
    assert world.mutations == []
    world.agent_clock.step(-error)
    world.submit(30)
    world.tick(2)
    assert world.last.reason in (Reason.QUEUE_GREW, Reason.QUEUE_COVERED)
    assert len(told(world, Reason.CLOCK_JUMP)) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [-HOUR, HOUR])
def test_a_host_whose_clock_goes_wrong_takes_no_vm(make_world: MakeWorld, error: float) -> None:
    world = make_world(sizes=(3, 1, 0), limits=replace(QUICK, hold_bins=2))
    world.tick()
    world.agent_clock.step(error)
    world.tick(8)
    assert world.count(TERMINATE) == 0
    assert world.mutations == []


@pytest.mark.exhaustive
def test_a_leap_second_smeared_or_not_is_no_step(make_world: MakeWorld) -> None:
    def play(world: World, per_minute: float, at_once: float) -> None:
        world.submit(50)
        for minute in range(12):
            world.tick()
            site_steps(world, per_minute + (at_once if minute == 4 else 0.0))
        assert told(world, Reason.CLOCK_JUMP) == []

    lines = []
    for smear, leap in ((0.0, 0.0), (1.0 / 1440.0, 0.0), (0.0, -1.0), (0.0, 1.0)):
        world = make_world(**GROWING)
        play(world, smear, leap)
        lines.append([(round(minute), operation, what) for minute, operation, what in sent(world)])
        world.close()
    assert lines[1:] == lines[:1] * 3
    assert len(lines[0]) == 3


def test_a_slow_database_is_no_step_of_the_clock(make_world: MakeWorld) -> None:
    world = make_world()
    world.tick()
    world.loop.fence = lambda epoch: world.clock.advance(8.0)
    world.tick(2)
    assert Reason.CLOCK_JUMP not in world.reasons


def test_a_step_while_the_agent_is_down_prolongs_no_cool_down_beyond_its_length(
    make_world: MakeWorld,
) -> None:
    world = make_world(**GROWING)
    world.submit(50)
    world.tick(2)
    site_steps(world, -HOUR)
    world.restart()
    world.tick(8)
    assert [minute for minute, _, _ in sent(world)] == [1.1, 8.1]  # nobody saw the step, so the rest begins anew
    assert final_reasons(world)[0] is Reason.DONE


def test_a_step_while_the_agent_is_down_keeps_no_intent_open_beyond_its_time(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.submit(8)
    world.fault("throttle", operations=[SET])
    world.tick(2)
    site_steps(world, -HOUR)
    world.restart()
    world.tick(6)
    assert final_reasons(world) == [Reason.OVERDUE]


def test_a_step_seen_while_the_ledger_is_full_is_carried_over_when_there_is_room(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(**GROWING)
    world.submit(50)
    world.tick(3)
    site_steps(world, HOUR)
    with monkeypatch.context() as patch:
        patch.setattr(FleetStore, "record", _no_room)
        world.tick(2)
        assert [report.failure for report in world.reports[3:]] == ["no room"] * 2
    world.tick(4)
    assert len(told(world, Reason.CLOCK_JUMP)) == 1
    assert [minute for minute, _, _ in sent(world)] == [1.1, 6.1]


def test_a_step_is_carried_over_once_where_the_answer_to_its_commit_is_lost(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(limits=replace(QUICK, cooldown_out_s=1800.0, cooldown_in_s=1800.0))
    world.tick()
    world.submit(20)
    world.tick()
    rest_s = FleetStore(world.ledger).loop_state("web").cooldowns[0].until - world.agent_clock.now()
    world.agent_clock.step(-1200.0)
    write, lost = FleetStore.record, iter([True])

    def record(*about: Any, **more: Any) -> None:
        write(*about, **more)
        if next(lost, False):
            raise LedgerUnavailable("the connection was lost after COMMIT")

    monkeypatch.setattr(FleetStore, "record", record)
    world.tick(2)
    left_s = FleetStore(world.ledger).loop_state("web").cooldowns[0].until - world.agent_clock.now()
    assert left_s == rest_s - 120.0


def test_a_step_that_was_not_recorded_is_not_laid_upon_the_times_of_another_leader(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(limits=replace(QUICK, cooldown_out_s=3000.0, cooldown_in_s=3000.0))
    world.tick(2)
    world.agent_clock.step(-1200.0)
    with monkeypatch.context() as patch:
        patch.setattr(FleetStore, "record", _no_room)
        world.tick()
    first = world.loop
    assert first._clock_step_s == -1200.0
    world.agent_clock.step(1200.0)
    world.restart()
    world.submit(20)
    world.tick()
    rests = FleetStore(world.ledger).loop_state("web").cooldowns
    # The first agent leads again.
    first.store = FleetStore(world.ledger)
    first.take_over(Leads(every=world.ledger.take_epoch("first", world.agent_clock.now())), first.actuator, None)
    world.loop = first
    world.tick()
    assert FleetStore(world.ledger).loop_state("web").cooldowns == rests != ()


def _no_room(*about: object, **more: object) -> None:
    raise LedgerUnavailable("no room")


@st.composite
def corrections(draw: st.DrawFn) -> dict[int, float]:
    """After which minute the clock is set, and by how much."""
    minutes = draw(st.lists(st.integers(1, 14), unique=True, max_size=4))
    return {minute: draw(st.floats(-4000.0, 4000.0).filter(lambda s: abs(s) > 6.0)) for minute in minutes}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_however_often_the_clock_is_set_each_change_is_followed_by_its_rest(part: int) -> None:
    @seed(part)
    @settings(max_examples=9, deadline=None)
    @given(corrections())
    def holds(steps: dict[int, float]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            world = World(Path(directory), Plan(**GROWING, interruptions=False))
            try:
                world.submit(50)
                for minute in range(1, 19):
                    world.tick()
                    site_steps(world, steps.get(minute, 0.0))
                times = [call["at"] for call in world.control.mutations(access_key=AGENT_KEY, operation=SET)]
                rests = [later - sooner for sooner, later in pairwise(times)]
                assert rests
                assert min(rests) >= 299.0
                # A step in the midst of a minute may cost that minute's samples, and the next minute is not whole.
                assert max(rests) <= 300.0 + 60.0 + 120.0 * len(steps)
                assert len(told(world, Reason.CLOCK_JUMP)) == len(steps)
            finally:
                world.close()

    holds()
