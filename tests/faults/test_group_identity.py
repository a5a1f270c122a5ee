"""A group is more than its name: made anew, deleted, of other VM types, with hooks and states of other parties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.decisions import Reason
from domain.fleet import Group, VmType
from simulator.aws.group import Member
from tests.faults.world import MEDIUM, SMALL, MakeWorld, World

Make = MakeWorld

ALONE: dict[str, Any] = {"groups": (SMALL,), "sizes": (2,)}
DRAINING = "RecordLifecycleActionHeartbeat"


def made(make_world: Make, vms: int = 2, **plan: Any) -> World:
    """Return a world with one group of so many busy VMs that report."""
    world = make_world(**{**ALONE, "sizes": (vms,), **plan})
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.tick(2)
    return world


def make_anew(world: World, vm_type: str, vms: int) -> None:
    """Delete the group and make another of its name that launches this type."""
    world.owner.delete_auto_scaling_group(AutoScalingGroupName=SMALL.name, ForceDelete=True)
    world.control.advance(60.0)
    make_group(world, SMALL.name, vm_type, vms)


def make_group(world: World, name: str, vm_type: str, vms: int) -> None:
    """Make a group that launches this type."""
    client = world._client("ec2")
    client.create_launch_template(
        LaunchTemplateName=f"anew-{vm_type}", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": vm_type}
    )
    client.close()
    world.owner.create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchTemplate={"LaunchTemplateName": f"anew-{vm_type}", "Version": "$Latest"},
        MinSize=1,
        MaxSize=10,
        DesiredCapacity=vms,
        AvailabilityZones=["us-east-1a"],
    )
    world.control.ready_now()


def members(world: World) -> dict[str, Member]:
    """Return the group's members inside the cloud, by VM."""
    return world.running.cloud.regions["us-east-1"].groups[SMALL.name].members


def told(world: World, reason: Reason) -> list[str]:
    """Return the subjects of the events of a reason."""
    return [event.about for event in world.events if event.reason is reason]


def test_a_group_made_anew_with_another_type_holds_its_fleet_until_the_settings_agree(make_world: Make) -> None:
    world = made(make_world)
    make_anew(world, "m5a.4xlarge", 8)
    before = len(world.mutations)
    world.tick(6)
    assert world.last.reason is Reason.GROUP_UNSUPPORTED
    assert "TRIMTAB_FLEETS__web__GROUPS__small__VM_TYPE" in world.last.sentence
    assert world.mutations[before:] == []
    assert len(world.in_service("small")) == 8
    assert told(world, Reason.GROUP_RECREATED) == ["small"]
    assert told(world, Reason.DRIFT_ADOPTED) == []
    world.fleet = replace(world.fleet, groups=(replace(SMALL, vm_type=VmType("m5a.4xlarge", 16, 64.0, 0.688)),))
    world.fleets = (world.fleet,)
    world.restart()
    world.busy = dict.fromkeys(world.in_service("small"), 16.0)
    world.tick(2)
    assert (world.last.desired, world.snapshot.requested) == ((8,), (8,))
    assert told(world, Reason.GROUP_RECREATED) == ["small"]
    assert Reason.GROUP_SUPPORTED in world.reasons


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_made_anew_as_it_was_is_accepted_with_an_event(make_world: Make, restarted: bool) -> None:
    world = made(make_world)
    make_anew(world, SMALL.vm_type.name, 4)
    if restarted:
        world.restart()
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.tick(2)
    assert world.snapshot.requested == (4,)
    assert told(world, Reason.GROUP_RECREATED) == ["small"]
    assert told(world, Reason.DRIFT_ADOPTED) == []


def test_a_key_of_the_settings_that_names_another_group_is_accepted_and_the_event_names_both(make_world: Make) -> None:
    world = made(make_world)
    make_group(world, "web-next", SMALL.vm_type.name, 4)
    world.fleet = replace(world.fleet, groups=(replace(SMALL, name="web-next"),))
    world.fleets = (world.fleet,)
    world.restart()
    world.tick(2)
    (event,) = [event for event in world.events if event.reason is Reason.GROUP_RECREATED]
    assert (event.about, world.snapshot.requested) == ("small", (4,))
    assert [text for text in (SMALL.name, "web-next", "settings") if text not in event.detail] == []


def test_an_intent_does_not_go_on_at_a_group_made_anew(make_world: Make) -> None:
    world = made(make_world)
    world.submit(10)
    world.fault("throttle", operations=["SetDesiredCapacity"], duration_s=70.0)
    world.tick()
    (intent,) = world.last.intents
    make_anew(world, SMALL.vm_type.name, 2)
    world.tick()
    ended = next(one for one in world.outcomes if one.intent_id == intent.intent_id and one.status.final)
    assert ended.reason is Reason.SUPERSEDED


def test_a_group_that_is_being_deleted_gets_no_call(make_world: Make) -> None:
    world = made(make_world, protect_busy=True)
    world.submit(10)
    world.owner.delete_auto_scaling_group(AutoScalingGroupName=SMALL.name, ForceDelete=True)
    world.running.cloud.delays.terminate_s = (600.0, 600.0)
    before = len(world.mutations)
    world.running.cloud.regions["us-east-1"].groups[SMALL.name].deleting = True
    world.tick()
    assert world.last.reason in (Reason.GROUP_UNSUPPORTED, Reason.CLOUD_UNREADABLE)
    assert world.mutations[before:] == []


def test_a_vm_of_another_type_holds_the_fleet_and_keeps_its_job(make_world: Make) -> None:
    world = made(make_world)
    leaving, staying = world.in_service("small")
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
    members(world)[staying].instance_type = "m5a.xlarge"
    before = world.count(DRAINING)
    world.tick(10)
    assert world.last.reason is Reason.GROUP_UNSUPPORTED
    assert (leaving, "Terminating:Wait") in [(vm, state) for _, vm, state in world.vms("small")]
    assert world.count(DRAINING) - before >= 8
    assert {name for name, _ in world.mutations} <= {DRAINING}


def test_a_reading_that_is_refused_as_too_high_keeps_the_vm(make_world: Make) -> None:
    world = made(make_world, vms=3, protect_busy=True)
    leaving, staying, other = world.in_service("small")
    world.busy = {leaving: 4.0, staying: 4.0, other: 0.0}
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
    world.tick(10)
    assert world.store.refused_claims()
    assert (leaving, "Terminating:Wait") in [(vm, state) for _, vm, state in world.vms("small")]
    assert members(world)[staying].protected
    assert members(world)[leaving].actions
    assert world.count(DRAINING) >= 8


def launch_larger(world: World) -> None:
    """Let the owner set a launch template of another type for the group `small`."""
    client = world._client("ec2")
    client.create_launch_template(
        LaunchTemplateName="larger", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.4xlarge"}
    )
    client.close()
    template = {"LaunchTemplateName": "larger", "Version": "$Latest"}
    world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, LaunchTemplate=template)


def test_a_launch_template_of_another_type_holds_before_it_launches(make_world: Make) -> None:
    world = made(make_world)
    launch_larger(world)
    world.submit(20)
    world.tick()
    assert (world.last.reason, world.mutations) == (Reason.GROUP_UNSUPPORTED, [])


@pytest.mark.parametrize("group", [SMALL, MEDIUM])
def test_a_vm_launched_while_its_fleet_is_held_is_protected_and_keeps_its_hook(make_world: Make, group: Group) -> None:
    world = make_world(groups=(SMALL, MEDIUM), sizes=(2, 0), protect_busy=True)
    launch_larger(world)
    world.tick(2)
    before = set(world.in_service(group.key))
    world.owner.set_desired_capacity(AutoScalingGroupName=group.name, DesiredCapacity=len(before) + 2)
    world.control.ready_now()
    leaving, staying = sorted({*world.in_service(group.key)} - before)
    world.busy = {leaving: 2.0, staying: 2.0}
    world.tick(3)
    assert world.last.reason is Reason.GROUP_UNSUPPORTED
    instances = world.owner.describe_auto_scaling_groups(AutoScalingGroupNames=[group.name])["AutoScalingGroups"][0]
    assert {one["InstanceId"] for one in instances["Instances"] if one["ProtectedFromScaleIn"]} == {leaving, staying}
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
    world.tick(6)
    assert (leaving, "Terminating:Wait") in [(vm, state) for _, vm, state in world.vms(group.key)]


def put_foreign_hook(world: World) -> None:
    """Let another party hold terminating VMs too, by a hook that AWS lists first."""
    world.owner.put_lifecycle_hook(
        LifecycleHookName="a-upload-logs",
        AutoScalingGroupName=SMALL.name,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=900,
        DefaultResult="CONTINUE",
    )


def test_hooks_of_another_party_are_never_answered(make_world: Make) -> None:
    world = made(make_world, vms=3)
    put_foreign_hook(world)
    busy, idle, _ = world.in_service("small")
    world.busy = {**world.busy, idle: 0.0}
    for vm in (busy, idle):
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)
    world.tick(12)
    answers = [
        call for call in world.calls if call["operation"] in (DRAINING, "CompleteLifecycleAction") and call["mutating"]
    ]
    assert {call["params"]["LifecycleHookName"] for call in answers} == {"drain"}
    assert {call["status"] for call in answers} <= {200, 400}
    assert sum(call["status"] == 400 for call in answers) <= 1
    held = {vm: state for _, vm, state in world.vms("small")}
    assert (held[busy], held[idle]) == ("Terminating:Wait", "Terminating:Wait")


def test_a_busy_vm_that_only_another_partys_hook_holds_is_one_event_with_the_setting(make_world: Make) -> None:
    world = made(make_world, vms=3, hook=False)
    put_foreign_hook(world)
    busy, _, _ = world.in_service("small")
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=busy, ShouldDecrementDesiredCapacity=True)
    world.tick(5)
    (event,) = [event for event in world.events if event.reason is Reason.NOT_DRAINED]
    assert (event.about, "DRAIN_HOOK" in event.detail) == (busy, True)


def test_a_busy_vm_that_returns_into_a_warm_pool_is_kept_and_a_new_one_there_is_not_a_drain(make_world: Make) -> None:
    world = made(make_world, vms=3)
    returning, new, _ = world.in_service("small")
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=returning, ShouldDecrementDesiredCapacity=True)
    members(world)[returning].state = "Warmed:Pending:Wait"
    stray = members(world).pop(new)
    world.tick()
    members(world)[new] = stray
    stray.state = "Warmed:Pending:Wait"
    world.silent = {new}
    world.tick(5)
    assert world.count(DRAINING) >= 3
    assert told(world, Reason.DRAINING) == [returning]


def test_an_unknown_state_counts_is_left_alone_and_is_an_event(make_world: Make) -> None:
    world = made(make_world, vms=3)
    strange = world.in_service("small")[0]
    members(world)[strange].state = "Terminating:Sideways"
    world.busy = {}
    world.tick(8)
    assert told(world, Reason.LIFECYCLE_UNKNOWN) == [strange]
    assert strange in [vm for _, vm, _ in world.vms("small")]
    ended = [c["params"] for c in world.calls if c["operation"] == "TerminateInstanceInAutoScalingGroup"]
    assert strange not in [params["InstanceId"] for params in ended]


def test_a_reading_that_fails_does_not_end_the_care_for_a_vm_that_returns_into_a_warm_pool(make_world: Make) -> None:
    world = made(make_world, vms=3)
    returning = world.in_service("small")[0]
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=returning, ShouldDecrementDesiredCapacity=True)
    members(world)[returning].state = "Warmed:Pending:Wait"
    world.tick(2)
    world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=1)
    world.tick()
    before = world.count(DRAINING)
    world.tick(6)
    assert world.count(DRAINING) >= before + 3


def test_a_template_that_is_described_without_its_fields_names_no_type(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made(make_world)
    read = world.session.read

    def lacking(service: str, operation: str, **parameters: Any) -> Any:
        return {} if operation == "DescribeLaunchTemplateVersions" else read(service, operation, **parameters)

    monkeypatch.setattr(world.session, "read", lacking)
    world.tick(6)
    assert world.last.reason is Reason.QUEUE_COVERED
