"""Somebody else's hands on the groups, and the operators' own switches: noticed, respected, and never fought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from actuators.drift import DriftRule
from agent.rails.base import RailLimits
from agent.state import Pause, PauseScope, Pin
from agent.tick import Ports, run_tick
from domain.decisions import Mode, Origin, Reason, Status
from tests.loop.world import AGENT_KEY, QUICK, World, final_reasons

SET, TERMINATE = "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"
COOLING = replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=300.0)


def told(world: World, reason: Reason) -> list[str]:
    """The subjects of the events with this reason, in order."""
    return [event.subject for event in world.events if event.reason is reason]


def set_by_hand(world: World, key: str, size: int) -> None:
    name = next(group.name for group in world.fleet.groups if group.key == key)
    world.owner.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)


def suspend(world: World, process: str) -> None:
    for group in world.fleet.groups:
        world.owner.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])


def resume(world: World, process: str) -> None:
    for group in world.fleet.groups:
        world.owner.resume_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])


def between_look_and_leap(world: World, action: Callable[[], None]) -> None:
    """Do something after the next turn decided, before it reads the group again to act."""
    seen: list[int] = []

    def strike(**_: object) -> None:
        seen.append(1)
        if len(seen) == 2:
            action()

    client = world.ports.actuator._session.client("autoscaling")  # type: ignore[attr-defined]
    client.meta.events.register("before-send.auto-scaling.DescribeAutoScalingGroups", strike)


def refused(world: World) -> list[str]:
    """The agent's changing calls that AWS refused."""
    return [str(call["operation"]) for call in world.control.mutations(access_key=AGENT_KEY) if call["status"] != 200]


# Sizes set by hand


@pytest.mark.parametrize(
    ("rule", "reason"),
    [(DriftRule.ADOPT, Reason.DRIFT_ADOPTED), (DriftRule.REPORT, Reason.DRIFT_REPORTED)],
)
def test_a_size_set_by_hand_is_told_once_and_not_set_back(
    make_world: Callable[..., World], rule: DriftRule, reason: Reason
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
    make_world: Callable[..., World],
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


def test_another_scaler_on_the_same_group_is_told_of_and_fought_no_faster_than_the_cooldown(
    make_world: Callable[..., World],
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
    assert "somebody set workers-l to 0 after it had been 2" in {outcome.detail for outcome in world.outcomes}


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
    make_world: Callable[..., World],
) -> None:
    world = make_world(sizes=(4, 0, 0), limits=COOLING)
    suspend(world, "Terminate")
    world.tick(6)
    assert world.last.reason is Reason.TERMINATE_SUSPENDED
    assert world.mutations == []
    assert {state for _, _, state in world.vms()} == {"InService"}
    assert world.ledger.loop_state("web").cooldowns == ()
    resume(world, "Terminate")
    world.tick()
    assert world.desired()["small"] == 1


def test_nothing_is_asked_for_while_launch_is_suspended_and_no_cooldown_is_begun(
    make_world: Callable[..., World],
) -> None:
    world = make_world(limits=COOLING)
    suspend(world, "Launch")
    world.submit(20)
    world.tick(3)
    assert world.last.reason is Reason.LAUNCH_SUSPENDED
    assert world.mutations == []
    assert world.ledger.loop_state("web").cooldowns == ()
    resume(world, "Launch")
    world.tick()
    assert world.count(SET) == len(world.last.intents) > 0


@pytest.mark.parametrize(
    ("process", "sizes", "jobs", "reason"),
    [("Terminate", (4, 0, 0), 0, Reason.TERMINATE_SUSPENDED), ("Launch", (1, 0, 0), 20, Reason.LAUNCH_SUSPENDED)],
)
def test_a_process_suspended_at_the_last_moment_skips_the_action_without_call_or_cooldown(
    make_world: Callable[..., World], process: str, sizes: tuple[int, ...], jobs: int, reason: Reason
) -> None:
    world = make_world(sizes=sizes, limits=COOLING, idle_s=60.0 if not jobs else 120.0)
    world.submit(jobs)
    between_look_and_leap(world, lambda: suspend(world, process))
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, reason)] * len(world.last.intents)
    assert world.last.intents != ()
    assert world.mutations == []
    state = world.ledger.loop_state("web")
    assert (state.cooldowns, state.changes) == ((), ())
    resume(world, process)
    world.tick()
    assert world.mutations != []


def test_a_spot_notice_begins_no_drain_while_terminate_is_suspended(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    suspend(world, "Terminate")
    world.tick()
    world.control.spot_notice(world.in_service("small")[:1], queue=world.notices)
    report = world.tick()
    assert [outcome.reason for outcome in report.outcomes] == [Reason.TERMINATE_SUSPENDED]
    world.tick(3)
    assert world.mutations == []


def test_no_drain_is_begun_during_an_instance_refresh_and_scaling_in_goes_on_after_it(
    make_world: Callable[..., World],
) -> None:
    world = make_world(sizes=(4, 0, 0), limits=COOLING)
    world.tick()
    world.owner.start_instance_refresh(AutoScalingGroupName="workers-s")
    began = world.clock.now()
    while world.clock.now() - began < 240.0:
        world.tick()
    assert world.mutations == []
    assert world.ledger.loop_state("web").cooldowns == ()
    assert world.last.reason is Reason.REFRESH_IN_PROGRESS
    world.tick(8)
    assert world.desired()["small"] == 1


def test_work_is_still_answered_during_the_refresh_of_another_group(world: World) -> None:
    world.tick()
    world.owner.start_instance_refresh(AutoScalingGroupName="workers-s")
    world.submit(20)
    world.tick(4)
    assert world.desired()["large"] > 0


# The operators' own switches


def pause(world: World, scope: PauseScope, until: float | None = None) -> None:
    world.ledger.pause("web", Pause(scope, "ada", "release", world.clock.now(), until))


def pin(world: World, minutes: float, **desired: int) -> None:
    now = world.clock.now()
    world.ledger.pin("web", Pin(desired, "ada", "load test", now, now + 60.0 * minutes))


def test_a_pin_applies_at_the_next_turn_and_expires_by_itself(world: World) -> None:
    world.tick()
    pin(world, 4.0, small=3)
    world.tick()
    assert world.desired()["small"] == 3
    assert world.last.proposal.origin is Origin.POLICY
    assert world.last.reason is Reason.PINNED
    world.tick(2)
    assert world.desired()["small"] == 3
    world.tick(5)
    assert world.desired()["small"] == 1


def test_a_pin_holds_against_waiting_work(world: World) -> None:
    world.tick()
    pin(world, 60.0, small=2, medium=0, large=0)
    world.submit(50)
    world.tick(5)
    assert world.desired() == {"small": 2, "medium": 0, "large": 0}
    assert world.count(SET) == 1


def test_a_pause_of_scaling_in_holds_only_that(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(4, 0, 0))
    pause(world, PauseScope.IN)
    world.tick(4)
    assert world.last.reason is Reason.PAUSED
    assert world.mutations == []
    world.submit(60)
    world.tick()
    assert world.last.reason is Reason.QUEUE_GREW
    assert world.count(SET) > 0
    assert world.count(TERMINATE) == 0


def test_a_pause_of_everything_holds_until_it_is_over_and_starts_no_cooldown(make_world: Callable[..., World]) -> None:
    world = make_world(limits=COOLING)
    world.tick()
    pause(world, PauseScope.ALL, world.clock.now() + 200.0)
    world.submit(20)
    world.tick(3)
    assert world.mutations == []
    assert world.ledger.loop_state("web").cooldowns == ()
    world.tick()
    assert world.count(SET) > 0


def test_a_pause_survives_a_restart_and_resume_lifts_it(world: World) -> None:
    world.tick()
    pause(world, PauseScope.ALL)
    world.restart()
    world.submit(20)
    world.tick(3)
    assert world.mutations == []
    assert world.ledger.resume("web", PauseScope.ALL, at=world.clock.now(), owner="ada")
    world.tick()
    assert world.count(SET) > 0


def test_a_pause_lets_drains_that_have_begun_come_to_their_end(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick(2)
    assert world.count(TERMINATE) == 2
    pause(world, PauseScope.ALL)
    world.tick(3)
    assert len(world.vms()) == 1
    assert world.count("CompleteLifecycleAction") == 2


# Protection of busy VMs


def protected(world: World) -> set[str]:
    groups = world.owner.describe_auto_scaling_groups()["AutoScalingGroups"]
    return {vm["InstanceId"] for group in groups for vm in group["Instances"] if vm["ProtectedFromScaleIn"]}


def test_busy_vms_are_protected_and_idle_again_they_are_not(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0, second: 1.0}
    world.tick()
    assert protected(world) == {first, second}
    world.busy = {second: 1.0}
    world.tick()
    assert protected(world) == {second}
    assert world.count("SetInstanceProtection") == 2


def test_protection_is_taken_off_again_by_a_restarted_agent(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0, second: 1.0}
    world.tick()
    world.restart()
    world.busy = {}
    world.tick()
    assert protected(world) == set()
    world.tick()
    assert world.ledger.loop_state("web").protected == ()


def test_protection_that_somebody_sets_after_ours_was_taken_off_is_theirs(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, *_ = world.in_service("small")
    world.busy = {first: 2.0}
    world.tick()
    world.busy = {}
    world.tick(2)
    world.owner.set_instance_protection(
        AutoScalingGroupName="workers-s", InstanceIds=[first], ProtectedFromScaleIn=True
    )
    world.restart()
    world.tick(2)
    assert protected(world) == {first}


def test_protection_set_by_somebody_else_is_left_alone_and_its_vm_too(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), protect_busy=True)
    keep = world.in_service("small")[0]
    world.owner.set_instance_protection(AutoScalingGroupName="workers-s", InstanceIds=[keep], ProtectedFromScaleIn=True)
    world.tick(10)
    assert protected(world) == {keep}
    assert keep in world.in_service("small")
    assert world.count("SetInstanceProtection") == 0


def test_a_protected_busy_vm_is_not_drained_while_an_idle_one_is_there(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0), protect_busy=True)
    busy, *_ = world.in_service("small")
    world.busy = {busy: 2.0}
    world.running_jobs = 2
    world.tick(6)
    assert world.in_service("small") == [busy]


# Two agents on one ledger


def other_agent_takes_over(world: World) -> None:
    world.ledger.take_epoch("other host", world.clock.now())


def turn_of(world: World, ports: Ports) -> str | None:
    world.pass_minute()
    return run_tick(world.clock.now(), ports).failure


def test_a_deposed_agent_changes_nothing_from_then_on_and_says_who_leads(world: World) -> None:
    world.tick()
    other_agent_takes_over(world)
    world.submit(50)
    for _ in range(5):
        failure = turn_of(world, world.ports)
        assert failure is not None
        assert "other host leads since epoch 2; this process must not act" in failure
    assert world.mutations == []


def test_an_agent_deposed_between_decision_and_call_does_not_make_the_call(world: World) -> None:
    world.tick()
    between_look_and_leap(world, lambda: other_agent_takes_over(world))
    world.submit(20)
    report = world.tick()
    assert world.mutations == []
    assert "other host leads since epoch 2; this process must not act" in (report.failure or "")
    decided = world.ledger.open_intents()
    assert decided != (), "recorded before, and left to the new leader"
    world.restart()
    world.tick(3)
    assert world.count(SET) == len(decided)
    assert world.ledger.open_intents() == ()


def test_two_agents_side_by_side_make_each_change_once(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(1, 0, 0))
    world.tick()
    first, first_ledger = world.ports, world.ledger
    world._start_agent()
    world.submit(20)
    for _ in range(4):
        world.tick()
        assert "must not act" in (run_tick(world.clock.now(), first).failure or "")
    assert world.count(SET) == len({o.intent_id for o in world.outcomes})
    assert world.ledger.open_intents() == ()
    first_ledger.close()


def test_a_deposed_agent_lets_its_drains_to_the_new_leader(make_world: Callable[..., World]) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick(2)
    asked = len(world.mutations)
    other_agent_takes_over(world)
    for _ in range(2):
        assert turn_of(world, world.ports) is not None
    assert len(world.mutations) == asked
    world.restart()
    world.tick(3)
    assert len(world.vms()) == 1


def test_an_agent_that_only_observes_deposes_nobody_by_looking(make_world: Callable[..., World]) -> None:
    world = make_world(mode=Mode.OBSERVE, limits=RailLimits())
    set_by_hand(world, "small", 3)
    world.tick(5)
    assert world.mutations == []
