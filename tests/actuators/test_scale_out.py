"""Scaling out: an absolute size, requested once, followed until the VMs exist."""

from domain.decisions import Direction, Reason, Status
from tests.actuators.shift import Shift


def test_the_size_is_set_absolutely_and_the_intent_is_done_when_the_vms_are_there(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.asked, outcome.achieved) == (
        Status.IN_PROGRESS,
        Reason.ACCEPTED,
        2,
        0,
    )
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.DONE, Reason.DONE, 2)
    assert len(shift.serving()) == 4
    assert shift.mutations == [("SetDesiredCapacity", "4")]


def test_a_size_already_set_by_another_party_is_an_outcome_and_no_call(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    shift.world.desire(5, "web-s")
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.NOTHING_TO_DO)
    assert outcome.detail == "desired capacity of web-s is 5 already; 4 was requested"
    assert shift.mutations == []


def test_a_maximum_lowered_by_hand_is_read_now(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    shift.world.groups.update_auto_scaling_group(AutoScalingGroupName="web-s", MaxSize=3)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.ABOVE_MAXIMUM)
    assert shift.mutations == []


def test_nothing_is_asked_of_a_group_whose_launches_are_suspended(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    shift.world.groups.suspend_processes(AutoScalingGroupName="web-s", ScalingProcesses=["Launch"])
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.LAUNCH_SUSPENDED)
    assert shift.mutations == []


def test_nothing_is_done_while_an_instance_refresh_runs(shift: Shift) -> None:
    out = shift.intent(Direction.OUT, target=4)
    into = shift.intent(Direction.IN, victims=shift.serving()[:1])
    shift.world.groups.start_instance_refresh(AutoScalingGroupName="web-s")
    for intent in (out, into):
        outcome = shift.apply(intent)
        assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.REFRESH_IN_PROGRESS)
    assert shift.mutations == []


def test_launches_suspended_at_the_last_moment_end_at_the_deadline_and_are_given_back(shift: Shift) -> None:
    def suspend_between_check_and_call() -> None:
        shift.world.groups.suspend_processes(AutoScalingGroupName="web-s", ScalingProcesses=["Launch"])

    shift.start_agent(fence=suspend_between_check_and_call)
    intent = shift.intent(Direction.OUT, target=4, deadline_s=180.0)
    outcome = shift.settle(intent, shift.apply(intent))
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.FAILED, Reason.OVERDUE, 0)
    assert shift.now - intent.created_at == 180.0
    assert shift.mutations == [("SetDesiredCapacity", "4"), ("SetDesiredCapacity", "2")]
    assert len(shift.serving()) == 2


def test_a_size_that_an_operator_took_back_is_not_asked_for_again(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    shift.apply(intent)
    shift.world.desire(2, "web-s")
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.SUPERSEDED)
    assert shift.mutations == [("SetDesiredCapacity", "4")]


def test_a_group_that_is_gone_ends_the_intent_and_leaves_the_others_alone(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    other = shift.intent(Direction.OUT, "m", target=3)
    shift.world.groups.delete_auto_scaling_group(AutoScalingGroupName="web-s", ForceDelete=True)
    shift.control.advance(60.0)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.PERMANENT_FAILURE)
    assert "no Auto Scaling group is named web-s in us-east-1: check its name and TRIMTAB_AWS__REGION" in outcome.detail
    assert shift.follow(intent).reason is Reason.PERMANENT_FAILURE
    assert shift.settle(other, shift.apply(other)).status is Status.DONE


def test_an_intent_of_a_fleet_that_the_settings_dropped_is_closed(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    observed = shift.observe()
    shift.actuator.observe([], shift.now)
    for outcome in (
        shift.actuator.apply(intent, observed, shift.now, shift.permit),
        shift.actuator.follow(intent, observed, shift.now, shift.permit),
    ):
        assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.PERMANENT_FAILURE)
    assert shift.mutations == []


def test_a_group_that_cannot_be_read_keeps_its_intent_until_the_deadline(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4, deadline_s=180.0)
    shift.apply(intent)
    shift.control.add_fault("access_denied", operations=["DescribeAutoScalingGroups"])
    for _ in range(2):
        outcome = shift.tick(intent)
        assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.CLOUD_UNREADABLE)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.OVERDUE)
    assert outcome.detail.startswith("what was achieved cannot be read: DescribeAutoScalingGroups: AccessDenied")
    assert shift.mutations == [("SetDesiredCapacity", "4")]
