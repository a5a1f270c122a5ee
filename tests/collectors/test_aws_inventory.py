"""The inventory: every group in one describe per tick, what is missing reported per group, and nothing read twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from collectors.aws import AwsOptions, AwsSession
from collectors.described_groups import HOOK_TAG, unclear_units
from collectors.inventory import FORGOTTEN_AFTER_S, Inventory
from domain.capacity_units import CapacityUnits
from domain.errors import CloudError, FailureClass
from domain.observed import DrainHook, Lifecycle
from tests.actuators.shift import AGENT, Shift, running_shift
from tests.golden import check_wording
from tests.simulator.aws.world import START

NAMES = ["web-s", "web-m", "web-l"]


@pytest.fixture
def shift() -> Iterator[Shift]:
    with running_shift() as made:
        yield made


def put_hook(
    shift: Shift, name: str, transition: str = "autoscaling:EC2_INSTANCE_TERMINATING", group: str = "web-s"
) -> None:
    shift.world.groups.put_lifecycle_hook(
        AutoScalingGroupName=group, LifecycleHookName=name, LifecycleTransition=transition, HeartbeatTimeout=120
    )


def calls_of(shift: Shift, inventory: Inventory, names: list[str]) -> Counter[str]:
    """Observe once and count the calls it took."""
    before = shift.control.calls()[-1]["seq"]
    inventory.observe(names, shift.now)
    return Counter(call["operation"] for call in shift.control.calls(before, access_key=AGENT))


def test_a_group_is_shown_with_its_bounds_zones_processes_and_vms(shift: Shift) -> None:
    shift.world.groups.suspend_processes(AutoScalingGroupName="web-s", ScalingProcesses=["AZRebalance"])
    observed = shift.inventory.observe(NAMES, shift.now)
    group = observed.groups["web-s"]
    assert (group.desired, group.minimum, group.maximum, group.zones, group.suspended) == (
        2,
        0,
        10,
        ("us-east-1a", "us-east-1b"),
        ("AZRebalance",),
    )
    assert [(one.lifecycle, one.healthy, one.protected, one.launched_at) for one in group.instances] == [
        (Lifecycle.IN_SERVICE, True, False, START)
    ] * 2
    assert observed.failures == {}
    assert observed.at == shift.now


def test_one_describe_a_tick_and_the_rest_from_memory(shift: Shift) -> None:
    inventory = Inventory(shift.session)
    assert calls_of(shift, inventory, NAMES) == {
        "DescribeAutoScalingGroups": 1,
        "DescribeLifecycleHooks": 3,
        "DescribeInstanceRefreshes": 3,
        "DescribeInstances": 1,
    }
    assert calls_of(shift, inventory, NAMES) == {"DescribeAutoScalingGroups": 1}
    shift.world.desire(3, "web-s")
    assert calls_of(shift, inventory, NAMES) == {"DescribeAutoScalingGroups": 1, "DescribeInstances": 1}
    shift.clock.advance(301.0)
    assert calls_of(shift, inventory, NAMES) == {
        "DescribeAutoScalingGroups": 1,
        "DescribeLifecycleHooks": 3,
        "DescribeInstanceRefreshes": 3,
    }


def test_groups_observed_in_turns_are_each_read_from_memory(shift: Shift) -> None:
    inventory = Inventory(shift.session)
    led, others = NAMES[:1], NAMES[1:]
    for names in (led, others):
        calls_of(shift, inventory, names)
    first = inventory.observe(led, shift.now).groups["web-s"].instances
    for names in (others, led):
        assert calls_of(shift, inventory, names) == {"DescribeAutoScalingGroups": 1}
    assert all(a is b for a, b in zip(inventory.observe(led, shift.now).groups["web-s"].instances, first, strict=True))
    shift.clock.advance(FORGOTTEN_AFTER_S)
    calls_of(shift, inventory, others)
    assert calls_of(shift, inventory, led)["DescribeInstances"] == 1


def test_a_vm_that_served_while_another_agent_led_returns_into_a_warm_pool_as_one_that_drains(shift: Shift) -> None:
    members = shift.world.running.cloud.regions["us-east-1"].groups["web-s"].members
    inventory, vm = Inventory(shift.session), shift.serving()[0]
    member = members.pop(vm)
    inventory.observe(["web-s"], shift.now)
    members[vm] = member
    inventory.forget(["web-s"])
    member.state = "Warmed:Pending:Wait"
    group = inventory.observe(["web-s"], shift.now).groups["web-s"]
    assert {one.vm: one.lifecycle for one in group.instances}[vm] is Lifecycle.DRAINING


@pytest.mark.exhaustive
def test_a_hundred_names_a_call_and_hooks_a_few_groups_a_tick(shift: Shift) -> None:
    for number in range(105):
        shift.world.group(f"many-{number}", size=(0, 0, 1), LaunchTemplate={"LaunchTemplateName": "web-s"})
    names = [f"many-{number}" for number in range(105)]
    inventory = Inventory(shift.session)
    assert calls_of(shift, inventory, names) == {
        "DescribeAutoScalingGroups": 2,
        "DescribeLifecycleHooks": 20,
        "DescribeInstanceRefreshes": 20,
    }
    assert set(inventory.observe(names, shift.now).groups) == set(names)


def test_states_are_folded_to_what_decisions_depend_on(shift: Shift) -> None:
    put_hook(shift, "drain")
    leaving, standby = shift.serving()
    shift.world.desire(3, "web-s")
    shift.world.groups.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
    shift.world.groups.enter_standby(
        AutoScalingGroupName="web-s", InstanceIds=[standby], ShouldDecrementDesiredCapacity=True
    )
    group = shift.inventory.observe(NAMES, shift.now).groups["web-s"]
    states = {one.vm: one.lifecycle for one in group.instances}
    assert states.pop(leaving) is Lifecycle.DRAINING
    assert states.pop(standby) is Lifecycle.STANDBY
    assert list(states.values()) == [Lifecycle.PENDING]
    shift.world.groups.complete_lifecycle_action(
        AutoScalingGroupName="web-s",
        LifecycleHookName="drain",
        InstanceId=leaving,
        LifecycleActionResult="CONTINUE",
    )
    group = shift.inventory.observe(NAMES, shift.now).groups["web-s"]
    assert {one.vm: one.lifecycle for one in group.instances}[leaving] is Lifecycle.TERMINATING


def test_the_drain_hook_is_the_terminating_one_of_its_name_and_others_are_not_ours(shift: Shift) -> None:
    put_hook(shift, "boot", "autoscaling:EC2_INSTANCE_LAUNCHING")
    put_hook(shift, "a-upload-logs")
    put_hook(shift, "drain-b")
    inventory = Inventory(shift.session)
    named = Inventory(shift.session, hook_name=lambda group: "drain-b").observe(NAMES, shift.now)
    assert inventory.observe(NAMES, shift.now).groups["web-s"].drain_hook is None
    assert named.groups["web-s"].drain_hook == DrainHook("drain-b", 120.0, 12_000.0)
    assert named.groups["web-m"].drain_hook is None
    launching = Inventory(shift.session, hook_name=lambda group: "boot").observe(NAMES, shift.now)
    assert launching.groups["web-s"].drain_hook is None
    # A tag of the group goes before the settings, and is followed at once.
    tag = {"ResourceId": "web-s", "ResourceType": "auto-scaling-group", "Key": HOOK_TAG, "PropagateAtLaunch": False}
    shift.world.groups.create_or_update_tags(Tags=[{**tag, "Value": "drain-b"}])
    assert inventory.observe(NAMES, shift.now).groups["web-s"].drain_hook == DrainHook("drain-b", 120.0, 12_000.0)


def test_a_hook_that_cannot_be_read_again_stays_as_known(shift: Shift) -> None:
    put_hook(shift, "drain")
    inventory = Inventory(shift.session)
    inventory.observe(NAMES, shift.now)
    shift.clock.advance(400.0)
    shift.control.add_fault("access_denied", operations=["DescribeLifecycleHooks"])
    assert inventory.observe(NAMES, shift.now).groups["web-s"].drain_hook == DrainHook("drain", 120.0, 12_000.0)


def test_the_hooks_of_all_groups_that_hold_vms_are_read_first_and_again_after_a_refusal(shift: Shift) -> None:
    """As after a take-over of many fleets, whose heartbeats are running."""
    names = ["idle-1", "idle-2", "busy-1", "busy-2", "busy-3"]
    for name in names:
        shift.world.group(name, size=(0, 1, 3), LaunchTemplate={"LaunchTemplateName": "web-s"})
        put_hook(shift, "drain", group=name)
    shift.control.ready_now()
    for name in names[2:]:
        shift.world.desire(0, name)
    inventory = Inventory(shift.session, details_per_tick=1)
    shift.control.add_fault("throttle", operations=["DescribeLifecycleHooks"])
    observed = inventory.observe(names, shift.now)
    assert [observed.groups[name].drain_hook for name in names] == [None] * 5
    shift.control.clear_faults()
    shift.clock.advance(60.0)
    observed = inventory.observe(names, shift.now)
    assert [observed.groups[name].drain_hook is not None for name in names] == [False, False, True, True, True]
    # The other details follow a few groups a turn, without their hooks once more.
    assert calls_of(shift, inventory, names)["DescribeLifecycleHooks"] == 1


def test_a_refresh_is_seen_and_may_be_forbidden_to_ask_about(shift: Shift) -> None:
    shift.world.groups.start_instance_refresh(AutoScalingGroupName="web-s")
    assert Inventory(shift.session).observe(NAMES, shift.now).groups["web-s"].refreshing
    shift.control.add_fault("access_denied", operations=["DescribeInstanceRefreshes"])
    observed = Inventory(shift.session).observe(NAMES, shift.now)
    assert not observed.groups["web-s"].refreshing
    assert observed.failures == {}


def test_a_group_that_does_not_exist_is_its_own_failure(shift: Shift) -> None:
    observed = shift.inventory.observe([*NAMES, "gone"], shift.now)
    assert set(observed.groups) == set(NAMES)
    assert observed.failures["gone"].failure is FailureClass.PERMANENT
    with pytest.raises(CloudError) as failed:
        shift.inventory.fresh("gone", shift.now)
    assert observed.failures["gone"].detail in str(failed.value)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("throttle", FailureClass.THROTTLE),
        ("expired_token", FailureClass.CREDENTIALS),
        ("internal_error", FailureClass.UNAVAILABLE),
        ("timeout_after", FailureClass.UNAVAILABLE),
    ],
)
def test_a_describe_that_fails_is_reported_for_its_groups_and_forgets_nothing(
    shift: Shift, fault: str, failure: FailureClass
) -> None:
    inventory = Inventory(shift.session)
    inventory.observe(NAMES, shift.now)
    shift.control.add_fault(fault, operations=["DescribeAutoScalingGroups"], count=1)
    observed = inventory.observe(NAMES, shift.now)
    assert observed.groups == {}
    assert {name: why.failure for name, why in observed.failures.items()} == dict.fromkeys(NAMES, failure)
    shift.control.advance(60.0)
    assert calls_of(shift, inventory, NAMES) == {"DescribeAutoScalingGroups": 1}


def test_unknown_launch_times_are_allowed_and_asked_for_again(shift: Shift) -> None:
    inventory = Inventory(shift.session)
    shift.control.add_fault("access_denied", operations=["DescribeInstances"], count=1)
    group = inventory.observe(NAMES, shift.now).groups["web-s"]
    assert [one.launched_at for one in group.instances] == [None, None]
    group = inventory.observe(NAMES, shift.now).groups["web-s"]
    assert [one.launched_at for one in group.instances] == [START, START]


def test_what_the_network_calls_a_vm_is_known_with_its_launch_time(shift: Shift) -> None:
    observed = Inventory(shift.session).observe(NAMES, shift.now)
    there = [one.vm for group in observed.groups.values() for one in group.instances]
    assert sorted(observed.names) == sorted(there)
    name, address = observed.names[there[0]]
    assert name.startswith("ip-" + address.replace(".", "-"))


def test_an_endpoint_that_is_down_is_reported_and_never_raised(shift: Shift) -> None:
    options = AwsOptions("us-east-1", "http://127.0.0.1:1", read_attempts=1, access_key_id="A", secret_access_key="s")
    observed = Inventory(AwsSession(options, shift.clock, read_only=True)).observe(NAMES, shift.now)
    assert {why.failure for why in observed.failures.values()} == {FailureClass.UNAVAILABLE}


def test_a_vm_that_is_as_it_was_is_the_same_value_and_a_changed_one_is_reported_anew(shift: Shift) -> None:
    inventory = Inventory(shift.session)
    before = inventory.observe(NAMES, shift.now).groups["web-s"].instances
    again = inventory.observe(NAMES, shift.now).groups["web-s"].instances
    assert [one is other for one, other in zip(before, again, strict=True)] == [True, True]
    shift.world.groups.set_instance_protection(
        AutoScalingGroupName="web-s", InstanceIds=[before[0].vm], ProtectedFromScaleIn=True
    )
    after = {one.vm: one for one in inventory.observe(NAMES, shift.now).groups["web-s"].instances}
    assert after == {before[0].vm: replace(before[0], protected=True), before[1].vm: before[1]}


GROUP = {"AutoScalingGroupName": "web-s", "Instances": []}


def weighing(weight: str) -> dict[str, str]:
    return {"InstanceType": "m5a.large", "WeightedCapacity": weight}


def weigh(shift: Shift, *weights: int, **about: int) -> None:
    types = ("m5a.large", "m5a.xlarge")
    overrides = [
        {"InstanceType": name, "WeightedCapacity": str(weight)} for name, weight in zip(types, weights, strict=False)
    ]
    template = {"LaunchTemplateName": "web-s", "Version": "$Latest"}
    mixed = {"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}}
    shift.world.groups.update_auto_scaling_group(AutoScalingGroupName="web-s", MixedInstancesPolicy=mixed, **about)


def test_sizes_are_vms_beside_the_units_that_aws_holds_and_each_vm_has_its_weight(shift: Shift) -> None:
    plain = shift.inventory.fresh("web-s", shift.now)
    assert plain.units == plain.capacity == CapacityUnits(2, 0, 10, 2, 2)
    weigh(shift, 3, DesiredCapacity=6, MinSize=1, MaxSize=11)
    group = shift.inventory.fresh("web-s", shift.now)
    assert group.units == CapacityUnits(6, 1, 11, 6, 2, weight=3, heaviest=3)
    assert (group.desired, group.minimum, group.maximum, group.counted) == (2, 1, 3, 2)
    assert [one.weight for one in group.instances] == [3, 3]
    template = {"LaunchTemplateName": "web-s", "Version": "$Latest"}
    shift.world.groups.update_auto_scaling_group(AutoScalingGroupName="web-s", LaunchTemplate=template)
    kept = shift.inventory.observe(NAMES, shift.now).groups["web-s"]
    assert kept.units == CapacityUnits(6, 1, 11, 6, 2, weight=1, heaviest=3)
    assert [one.weight for one in kept.instances] == [3, 3]


def test_several_weights_are_a_failure_with_the_remedy(shift: Shift) -> None:
    weigh(shift, 3, 1, DesiredCapacity=6)
    failures = shift.inventory.observe([*NAMES, "gone"], shift.now).failures
    assert failures["web-s"].failure is FailureClass.UNSUPPORTED
    said = {"several weights": failures["web-s"].detail, "no such group": failures["gone"].detail}
    about = {"vCPUs": {"DesiredCapacityType": "vcpu"}, "a weight of 1.5": {"Instances": [weighing("1.5")]}}
    said |= {name: str(unclear_units({**GROUP, **described})) for name, described in about.items()}
    check_wording("aws_inventory", said)
    weigh(shift, 3, 3)
    assert "web-s" in shift.inventory.observe(NAMES, shift.now).groups


@pytest.mark.parametrize("weight", ["0", "-1", "1.5", "two", "\u00b2"])
def test_a_weight_that_is_no_whole_number_is_refused(weight: str) -> None:
    mixed = {"MixedInstancesPolicy": {"LaunchTemplate": {"Overrides": [weighing(weight)]}}}
    for described in ({**GROUP, **mixed}, {**GROUP, "Instances": [weighing(weight)]}):
        assert repr(weight) in str(unclear_units(described))


def test_sizes_that_count_vcpus_or_memory_are_refused() -> None:
    for unit in ("vcpu", "memory-mib"):
        assert f" {unit}, " in str(unclear_units({**GROUP, "DesiredCapacityType": unit}))
    assert unclear_units({**GROUP, "DesiredCapacityType": "units"}) is None
