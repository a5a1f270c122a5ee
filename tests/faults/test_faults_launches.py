"""Launches that end before service: given back, an alarm and a pause of the type after three in a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from domain.decisions import CapacityShortage, Direction, Reason, Status
from tests.faults.evidence import intents, told
from tests.faults.world import AGENT_KEY, MEDIUM, QUICK, SMALL, M, MakeWorld, World
from tests.stages import exhaustive

PATIENT = replace(QUICK, capacity_memory_s=600.0, boot_deadline_s=600.0)
TWO_TYPES: dict[str, Any] = {"groups": (SMALL, MEDIUM), "sizes": (1, 0), "limits": PATIENT}


def hook_that_abandons(world: World, heartbeat_s: int) -> None:
    """A launch hook that nobody completes, as when the user data of the image fails."""
    world.owner.put_lifecycle_hook(
        LifecycleHookName="warm-up",
        AutoScalingGroupName=MEDIUM.name,
        LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
        HeartbeatTimeout=heartbeat_s,
        DefaultResult="ABANDON",
    )


def launches(world: World) -> int:
    activities = world.owner.describe_scaling_activities(AutoScalingGroupName=MEDIUM.name)["Activities"]
    return sum(one["Description"].startswith("Launching") for one in activities)


@pytest.mark.parametrize("heartbeat_s", [30, *exhaustive(90)])
def test_launches_that_a_hook_abandons_are_given_back_and_their_type_is_left_alone(
    make_world: MakeWorld, heartbeat_s: int
) -> None:
    world = make_world(**TWO_TYPES)
    hook_that_abandons(world, heartbeat_s)
    world.submit(6)
    world.tick(12)
    ended = next(one for one in world.outcomes if one.status.final and one.intent_id.endswith("medium"))
    assert (ended.status, ended.reason, ended.achieved) == (Status.FAILED, Reason.LAUNCHES_FAILING, 0)
    assert ended.shortages == (CapacityShortage(M.name, "", failing=True),)
    assert world.desired()["medium"] == 0
    assert world.vms("medium") == []
    assert len(world.in_service("small")) >= 3, "another type takes the load"
    assert len(told(world, Reason.LAUNCHES_FAILING)) == 1
    assert told(world, Reason.DRIFT_ADOPTED) == []
    before = launches(world)
    world.tick(2)
    assert launches(world) == before


def test_an_intent_is_done_when_its_vms_are_in_service_and_not_when_they_are_pending(
    make_world: MakeWorld,
) -> None:
    world = make_world(**TWO_TYPES)
    hook_that_abandons(world, 3600)
    world.submit(6)
    world.tick(3)
    assert [state for _, _, state in world.vms("medium")] == ["Pending:Wait"]
    (intent,) = world.ledger.open_intents()
    assert (intent.group, intent.direction) == ("medium", Direction.OUT)
    (vm,) = [vm for _, vm, _ in world.vms("medium")]
    world.owner.complete_lifecycle_action(
        LifecycleHookName="warm-up", AutoScalingGroupName=MEDIUM.name, InstanceId=vm, LifecycleActionResult="CONTINUE"
    )
    world.tick(2)
    assert world.ledger.open_intents() == ()
    assert world.in_service("medium") == [vm]


def test_a_group_grows_further_while_its_vms_boot_and_all_are_given_back_when_launches_fail(
    make_world: MakeWorld,
) -> None:
    world = make_world(**TWO_TYPES)
    hook_that_abandons(world, 240)
    world.submit(6)
    world.tick(3)
    (first,) = world.ledger.open_intents()
    world.submit(12)
    world.tick(2)
    (second,) = [one for one in world.ledger.open_intents() if one.group == first.group]
    assert (second.direction, second.before) == (Direction.OUT, first.target)
    ended = FleetStore(world.ledger).decision(first.decision_id).intents[0].outcomes[-1]
    assert (ended.status, ended.reason, ended.achieved) == (Status.PARTIAL, Reason.SUPERSEDED, ended.asked)
    assert ended in world.outcomes
    assert world.desired()["medium"] == second.target
    world.tick(14)
    assert len(told(world, Reason.LAUNCHES_FAILING)) == 1
    assert world.vms("medium") == []
    assert told(world, Reason.DRIFT_ADOPTED) == []


def test_no_vm_in_service_is_removed_while_others_of_its_group_boot(make_world: MakeWorld) -> None:
    world = make_world(groups=(MEDIUM,), sizes=(2,), limits=PATIENT)
    hook_that_abandons(world, 3600)
    world.submit(12)
    world.tick(2)
    (intent,) = world.ledger.open_intents()
    world.waiting = 0
    world.tick(6)
    assert {decision.reason for report in world.reports[-3:] for decision in report.decisions} == {Reason.IN_FLIGHT}
    assert world.ledger.open_intents() == (intent,)
    assert len(world.in_service("medium")) == 2


def test_vms_that_end_in_service_before_they_report_mark_their_type_and_are_overdue(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(SMALL, MEDIUM), sizes=(1, 0), limits=replace(QUICK, boot_deadline_s=240.0))
    world.submit(6)
    for _ in range(12):
        world.silent |= set(world.in_service("medium"))
        world.tick()
        for vm in world.in_service("medium"):
            if vm in world.silent:
                world.owner.set_instance_health(InstanceId=vm, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False)
        if told(world, Reason.LAUNCHES_FAILING):
            break
        world.silent |= {vm for _, vm, _ in world.vms("medium")}
    (mark,) = FleetStore(world.ledger).loop_state("web").capacity
    assert (mark.vm_type, mark.zone, mark.failing) == (M.name, "", True)
    asked = len([one for one in intents(world, Direction.OUT) if one["group"] == "medium"])
    world.tick(4)
    assert len([one for one in intents(world, Direction.OUT) if one["group"] == "medium"]) == asked


def first_launch_abandoned(world: World) -> None:
    """The agent's VM ends before service, once, and AWS starts another in its place, which waits long."""
    hook_that_abandons(world, 7000)
    world.submit(6)
    world.tick(3)
    ((_, vm, _),) = world.vms("medium")
    world.owner.complete_lifecycle_action(
        LifecycleHookName="warm-up", AutoScalingGroupName=MEDIUM.name, InstanceId=vm, LifecycleActionResult="ABANDON"
    )
    world.tick(2)


def terminated(world: World) -> set[str]:
    calls = world.control.mutations(access_key=AGENT_KEY, operation="TerminateInstanceInAutoScalingGroup")
    return {str(call["params"]["InstanceId"]) for call in calls}


def test_vms_that_another_party_asked_for_meanwhile_are_not_given_back(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES)
    first_launch_abandoned(world)
    world.owner.set_desired_capacity(AutoScalingGroupName=MEDIUM.name, DesiredCapacity=6)
    world.tick(10)
    assert world.desired()["medium"] == 6
    assert terminated(world) == set()


def test_a_vm_that_works_before_it_is_in_service_is_not_given_back(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.world.REPORTING", ("InService", "Pending:Wait"))
    world = make_world(**TWO_TYPES)
    first_launch_abandoned(world)
    (early,) = [vm for _, vm, state in world.vms("medium") if state == "Pending:Wait"]
    world.busy[early] = 4.0
    world.tick(12)
    assert early not in terminated(world)


def one_vm_boots(world: World, heartbeat_s: int) -> str:
    """The agent's first VM of `medium` is held by a hook; returns its id."""
    hook_that_abandons(world, heartbeat_s)
    world.submit(6)
    world.tick(3)
    ((_, vm, state),) = world.vms("medium")
    assert state == "Pending:Wait"
    return vm


def test_scale_outs_that_supersede_one_another_end_overdue_where_no_vm_comes_into_service(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(MEDIUM,), sizes=(0,), limits=PATIENT)
    hook_that_abandons(world, 7000)
    world.submit(4)
    world.tick(5)
    world.submit(4)
    world.tick(9)
    assert world.desired() == {"medium": 2}
    world.tick(3)
    ends = [(one.status, one.reason) for one in world.outcomes if one.status.final]
    assert ends == [(Status.PARTIAL, Reason.SUPERSEDED), (Status.FAILED, Reason.OVERDUE)]
    (breaker,) = FleetStore(world.ledger).loop_state("web").breakers
    assert (breaker.group, breaker.failures) == ("medium", 1)


def test_a_size_that_another_party_sets_while_vms_boot_is_reported(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES)
    vm = one_vm_boots(world, 7000)
    world.owner.set_desired_capacity(AutoScalingGroupName=MEDIUM.name, DesiredCapacity=4)
    world.submit(60)
    world.tick(2)
    assert world.desired()["medium"] == 4
    world.owner.complete_lifecycle_action(
        LifecycleHookName="warm-up", AutoScalingGroupName=MEDIUM.name, InstanceId=vm, LifecycleActionResult="CONTINUE"
    )
    world.tick(2)
    assert [event.about for event in world.events if event.reason is Reason.DRIFT_ADOPTED] == ["medium"]
    assert world.desired()["medium"] > 4


def test_at_the_deadline_the_vms_of_the_scale_out_before_stay(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES)
    first = one_vm_boots(world, 7000)
    world.submit(4)
    world.tick(2)
    (second,) = [vm for _, vm, _ in world.vms("medium") if vm != first]
    world.owner.complete_lifecycle_action(
        LifecycleHookName="warm-up",
        AutoScalingGroupName=MEDIUM.name,
        InstanceId=second,
        LifecycleActionResult="ABANDON",
    )
    ended = next(one for _ in range(12) for one in world.tick().outcomes if one.status.final)
    assert (ended.status, ended.reason, ended.achieved) == (Status.FAILED, Reason.PERMANENT_FAILURE, 0)
    assert first not in terminated(world)
    assert told(world, Reason.DRIFT_ADOPTED) == []


def test_vms_that_boot_are_kept_where_aws_has_none_for_the_one_that_ended(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES)
    first = one_vm_boots(world, 7000)
    world.submit(12)
    world.tick(2)
    booting = {vm for _, vm, _ in world.vms("medium")}
    ended = next(vm for vm in sorted(booting) if vm != first)
    for zone in ("us-east-1a", "us-east-1b"):
        world.fault("capacity", instance_type=M.name, zone=zone, duration_s=3000)
    world.owner.complete_lifecycle_action(
        LifecycleHookName="warm-up", AutoScalingGroupName=MEDIUM.name, InstanceId=ended, LifecycleActionResult="ABANDON"
    )
    world.tick(3)
    over = next(one for one in world.outcomes if one.status.final and one.reason is Reason.NO_CAPACITY)
    assert (over.status, over.achieved, over.asked) == (Status.PARTIAL, 2, 3)
    assert world.desired()["medium"] == 3
    assert {vm for _, vm, _ in world.vms("medium")} == booting - {ended}
    assert told(world, Reason.DRIFT_ADOPTED) == []


def test_launches_are_followed_after_a_replacement_took_the_place_of_their_scale_out(make_world: MakeWorld) -> None:
    world = make_world(groups=(MEDIUM,), sizes=(2,), limits=replace(QUICK, boot_deadline_s=600.0))
    hook_that_abandons(world, 130)
    world.tick()
    world.busy = dict.fromkeys(world.in_service("medium"), 4.0)
    world.submit(16)
    world.tick(2)
    size = world.desired()["medium"]
    (vm,) = world.in_service("medium")[:1]
    world.control.spot_notice([vm], queue=world.notices)
    world.tick()
    (intent,) = world.last.intents
    assert (intent.direction, intent.victims, intent.target) == (Direction.REPLACE, (vm,), size)
    assert intent.before < size, "what is in service"
    world.tick(8)
    (ended,) = [one for one in world.outcomes if one.intent_id == intent.intent_id and one.status.final]
    assert ended.reason is Reason.LAUNCHES_FAILING
    assert world.desired()["medium"] == len(world.in_service("medium")) == 1


def test_a_replacement_that_follows_launches_is_done_when_they_are_in_service(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), limits=replace(QUICK, boot_deadline_s=600.0))
    world.tick(2)
    world.submit(10)
    world.tick()
    world.control.spot_notice(world.in_service("small")[:1], queue=world.notices)
    world.tick(4)
    replaced = [one for one in world.outcomes if one.status.final][-1]
    assert (replaced.reason, len(world.in_service("small"))) == (Reason.DONE, world.desired()["small"])
    assert world.ledger.open_intents() == ()
