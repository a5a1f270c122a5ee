"""AWS has no VM of a type: seen in the activities, reported with type and zone, and not left trying for hours."""

from dataclasses import replace

import pytest

from domain.decisions import CapacityShortage, Direction, Reason, Status
from domain.errors import FailureClass
from domain.observed import Observed
from tests.actuators.shift import AGENT, Shift

SHORT = tuple(CapacityShortage("m5a.large", zone) for zone in ("us-east-1b", "us-east-1a"))


def test_a_shortage_is_reported_at_the_next_tick_and_the_unfulfilled_size_given_back(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large")
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason, outcome.failure, outcome.achieved) == (
        Status.FAILED,
        Reason.NO_CAPACITY,
        FailureClass.CAPACITY,
        0,
    )
    assert set(outcome.shortages) == set(SHORT)
    assert shift.mutations == [("SetDesiredCapacity", "4"), ("SetDesiredCapacity", "2")]
    shift.control.clear_faults()
    shift.control.advance(3600.0)
    assert len(shift.serving()) == 2  # AWS does not launch VMs that are no longer requested


def test_giving_back_never_goes_below_what_aws_counts_in_states_that_do_not_serve(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=6, deadline_s=120.0)
    shift.apply(intent)
    shift.control.advance(90.0)
    members = shift.world.running.cloud.region("us-east-1").groups["web-s"].members
    for vm in shift.serving()[:2]:
        members[vm].state = "EnteringStandby"
    shift.control.advance(60.0)
    outcome = shift.follow(intent)
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.PARTIAL, Reason.OVERDUE, 2)
    assert shift.mutations == [("SetDesiredCapacity", "6")]


def test_another_type_takes_the_load_at_once(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large")
    large, xlarge = shift.intent(Direction.OUT, target=4), shift.intent(Direction.OUT, "m", target=3)
    shift.apply(large)
    assert shift.tick(large).reason is Reason.NO_CAPACITY
    assert shift.settle(xlarge, shift.apply(xlarge)).status is Status.DONE


def test_what_did_come_is_kept(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=6)
    shift.apply(intent)
    vms = set(shift.serving())
    shift.control.add_fault("capacity", instance_type="m5a.large")
    lost = sorted(vms)[:2]
    shift.world.client("ec2").terminate_instances(InstanceIds=lost)
    shift.control.advance(120.0)
    outcome = shift.settle(intent, shift.follow(intent))
    assert (outcome.status, outcome.reason, outcome.asked, outcome.achieved) == (
        Status.PARTIAL,
        Reason.NO_CAPACITY,
        4,
        2,
    )
    assert shift.group().desired == 4
    assert set(shift.serving()) == vms - set(lost)


def test_giving_up_never_goes_below_the_size_before_the_intent(shift: Shift) -> None:
    """A VM that died meanwhile is AWS's to replace, not ours to write off."""
    shift.control.add_fault("capacity", instance_type="m5a.large")
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    shift.world.client("ec2").terminate_instances(InstanceIds=shift.serving()[:1])
    shift.control.advance(70.0)
    assert len(shift.serving()) == 1
    assert shift.follow(intent).reason is Reason.NO_CAPACITY
    assert shift.group().desired == 2


def test_one_short_zone_of_two_is_aws_s_own_affair(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large", zone="us-east-1a")
    intent = shift.intent(Direction.OUT, target=4)
    outcome = shift.settle(intent, shift.apply(intent))
    assert (outcome.status, outcome.achieved) == (Status.DONE, 2)
    assert shift.mutations == [("SetDesiredCapacity", "4")]


def test_aws_gets_a_moment_to_try_another_zone_by_itself(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large")
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    assert shift.tick(intent, 3.0).reason is Reason.ACCEPTED
    assert shift.tick(intent, 3.0).reason is Reason.NO_CAPACITY


def test_a_launch_under_way_elsewhere_is_waited_for(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large", zone="us-east-1a")
    intent = shift.intent(Direction.OUT, target=4)
    before = shift.observe().groups["web-s"]
    shift.apply(intent)
    shift.control.advance(20.0)
    not_shown_yet = Observed(shift.now, {"web-s": replace(before, desired=4)})
    assert shift.actuator.follow(intent, not_shown_yet, shift.now, shift.permit).reason is Reason.ACCEPTED


def test_a_size_that_another_party_raised_further_is_not_lowered(shift: Shift) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large")
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    shift.world.desire(6, "web-s")
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.NO_CAPACITY)
    assert shift.mutations == [("SetDesiredCapacity", "4")]


@pytest.mark.parametrize("fault", ["throttle", "timeout_before", "timeout_after"])
def test_giving_back_is_itself_repeated_until_it_is_known_to_have_happened(shift: Shift, fault: str) -> None:
    shift.control.add_fault("capacity", instance_type="m5a.large")
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    shift.control.add_fault(fault, operations=["SetDesiredCapacity"], count=1)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.NO_CAPACITY)
    assert set(outcome.shortages) == set(SHORT)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.NO_CAPACITY)
    took_effect = [c for c in shift.control.mutations(access_key=AGENT) if c["fault"] in (None, "timeout_after")]
    assert [call["params"]["DesiredCapacity"] for call in took_effect] == ["4", "2"]
    assert shift.group().desired == 2


def test_a_launch_that_fails_for_another_reason_reports_it(shift: Shift) -> None:
    shift.world.client("ec2").create_launch_template_version(
        LaunchTemplateName="web-s", LaunchTemplateData={"ImageId": "ami-12c6146b"}
    )
    intent = shift.intent(Direction.OUT, target=3)
    shift.apply(intent)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason, outcome.shortages) == (Status.FAILED, Reason.PERMANENT_FAILURE, ())
    assert "launch template" in outcome.detail
    assert shift.group().desired == 2
