"""Somebody else's hands on the groups: noticed, respected, and never fought."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from actuators.drift import DriftRule
from agent.autoscaling.state import FleetStore
from domain.decisions import Reason, Status
from tests.faults.hands import between_look_and_leap, resume, set_by_hand, suspend
from tests.faults.world import AGENT_KEY, QUICK, MakeWorld, World, final_reasons

SET, TERMINATE = "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"
COOLING = replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=300.0)


def told(world: World, reason: Reason) -> list[str]:
    """The subjects of the events with this reason, in order."""
    return [event.about for event in world.events if event.reason is reason]


def refused(world: World) -> list[str]:
    """The agent's changing calls that AWS refused."""
    return [str(call["operation"]) for call in world.control.mutations(access_key=AGENT_KEY) if call["status"] != 200]


# Sizes set by hand


@pytest.mark.parametrize(
    ("rule", "reason"),
    [(DriftRule.ADOPT, Reason.DRIFT_ADOPTED), (DriftRule.REPORT, Reason.DRIFT_REPORTED)],
)
def test_a_size_set_by_hand_is_reported_once_and_not_set_back(
    make_world: MakeWorld, rule: DriftRule, reason: Reason
) -> None:
    world = make_world(drift=rule, policy="hold")
    world.tick(2)
    set_by_hand(world, "small", 4)
    world.tick(6)
    assert told(world, reason) == ["small"]
    assert world.mutations == []
    assert world.desired()["small"] == 4


def test_the_next_decision_starts_from_the_size_set_by_hand(world: World) -> None:
    world.tick(2)
    set_by_hand(world, "small", 3)
    world.submit(40)
    world.tick()
    assert world.snapshot.requested == (3, 0, 0)
    assert world.last.reason is Reason.QUEUE_GREW
    assert all(intent.before == {"small": 3}.get(intent.group, 0) for intent in world.last.intents)
    assert world.desired()["small"] >= 3
    assert told(world, Reason.DRIFT_ADOPTED) == ["small"]


def test_what_was_added_by_hand_and_stays_idle_is_scaled_in_like_any_other_and_not_earlier(
    make_world: MakeWorld,
) -> None:
    world = make_world(limits=replace(QUICK, in_periods=3))
    world.tick(2)
    set_by_hand(world, "small", 3)
    world.tick(2)
    assert world.mutations == []
    world.tick(8)
    assert world.desired()["small"] == 1


def test_a_maximum_lowered_by_hand_is_kept_and_no_call_is_refused(world: World) -> None:
    world.tick(2)
    for group in world.fleet.groups:
        world.owner.update_auto_scaling_group(AutoScalingGroupName=group.name, MaxSize=2)
    world.submit(200)
    world.tick(6)
    assert world.desired() == {"small": 2, "medium": 2, "large": 2}
    assert refused(world) == []
    assert world.ledger.open_intents() == ()


def test_a_maximum_lowered_at_the_last_moment_ends_the_intent_without_a_call(world: World) -> None:
    world.tick(2)

    def lower() -> None:
        for group in world.fleet.groups:
            world.owner.update_auto_scaling_group(AutoScalingGroupName=group.name, MaxSize=1)

    between_look_and_leap(world, lower)
    world.submit(20)
    report = world.tick()
    assert {outcome.reason for outcome in report.outcomes} == {Reason.ABOVE_MAXIMUM}
    assert world.mutations == []


def test_a_minimum_raised_by_hand_is_kept(world: World) -> None:
    world.tick(2)
    world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", MinSize=3)
    world.tick(8)
    assert world.desired()["small"] == 3
    assert world.mutations == []
    assert refused(world) == []


def test_another_scaler_on_the_same_group_is_reported_and_fought_no_faster_than_the_cooldown(
    make_world: MakeWorld,
) -> None:
    world = make_world(limits=COOLING, drift=DriftRule.REPORT)
    world.submit(20)
    for _ in range(12):
        world.tick()
        set_by_hand(world, "small", 1)
        set_by_hand(world, "medium", 0)
        set_by_hand(world, "large", 0)
    for name in ("workers-s", "workers-m", "workers-l"):
        calls = world.control.mutations(access_key=AGENT_KEY, operation=SET)
        at = [call["at"] for call in calls if call["params"]["AutoScalingGroupName"] == name]
        assert all(later - earlier >= COOLING.cooldown_out_s for earlier, later in pairwise(at))
    assert 2 <= world.count(SET) <= 9
    assert set(final_reasons(world)) == {Reason.SUPERSEDED}
    assert any("workers-l to 0" in outcome.detail for outcome in world.outcomes)


def test_a_scale_out_undone_by_hand_is_not_done_again_in_the_same_minute(world: World) -> None:
    world.tick()
    world.submit(20)
    world.tick()
    asked = world.count(SET)
    set_by_hand(world, "small", 1)
    set_by_hand(world, "large", 0)
    world.waiting = 0
    world.tick(3)
    assert world.count(SET) == asked
    assert world.ledger.open_intents() == ()


# Suspended processes and instance refresh


def test_no_drain_is_begun_while_terminate_is_suspended_and_no_cooldown_either(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(4, 0, 0), limits=COOLING)
    suspend(world, "Terminate")
    world.tick(6)
    assert world.last.reason is Reason.TERMINATE_SUSPENDED
    assert world.mutations == []
    assert {state for _, _, state in world.vms()} == {"InService"}
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    resume(world, "Terminate")
    world.tick()
    assert world.desired()["small"] == 1


def test_nothing_is_asked_for_while_launch_is_suspended_and_no_cooldown_is_begun(
    make_world: MakeWorld,
) -> None:
    world = make_world(limits=COOLING)
    suspend(world, "Launch")
    world.submit(20)
    world.tick(3)
    assert world.last.reason is Reason.LAUNCH_SUSPENDED
    assert world.mutations == []
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    resume(world, "Launch")
    world.tick()
    assert world.count(SET) == len(world.last.intents) > 0


@pytest.mark.parametrize(
    ("process", "sizes", "jobs", "reason"),
    [("Terminate", (4, 0, 0), 0, Reason.TERMINATE_SUSPENDED), ("Launch", (1, 0, 0), 20, Reason.LAUNCH_SUSPENDED)],
)
def test_a_process_suspended_at_the_last_moment_skips_the_action_without_call_or_cooldown(
    make_world: MakeWorld, process: str, sizes: tuple[int, ...], jobs: int, reason: Reason
) -> None:
    world = make_world(sizes=sizes, limits=COOLING, idle_s=60.0 if not jobs else 120.0)
    world.submit(jobs)
    between_look_and_leap(world, lambda: suspend(world, process))
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, reason)] * len(world.last.intents)
    assert world.last.intents != ()
    assert world.mutations == []
    state = FleetStore(world.ledger).loop_state("web")
    assert (state.cooldowns, state.changes) == ((), ())
    resume(world, process)
    world.tick()
    assert world.mutations != []


def test_a_spot_notice_begins_no_drain_while_terminate_is_suspended(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    suspend(world, "Terminate")
    world.tick()
    world.control.spot_notice(world.in_service("small")[:1], queue=world.notices)
    report = world.tick()
    assert [outcome.reason for outcome in report.outcomes] == [Reason.TERMINATE_SUSPENDED]
    world.tick(3)
    assert world.mutations == []


def test_no_drain_is_begun_during_an_instance_refresh_and_scaling_in_goes_on_after_it(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(4, 0, 0), limits=COOLING)
    world.tick()
    world.owner.start_instance_refresh(AutoScalingGroupName="workers-s")
    began = world.clock.now()
    while world.clock.now() - began < 240.0:
        world.tick()
    assert world.mutations == []
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    assert world.last.reason is Reason.REFRESH_IN_PROGRESS
    world.tick(8)
    assert world.desired()["small"] == 1


def test_work_is_still_answered_during_the_refresh_of_another_group(world: World) -> None:
    world.tick()
    world.owner.start_instance_refresh(AutoScalingGroupName="workers-s")
    world.submit(20)
    world.tick(4)
    assert world.desired()["large"] > 0
