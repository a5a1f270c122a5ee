"""Scaling out: an absolute size, requested once, followed until the VMs exist."""

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("by_hand", "asked", "reason"),
    [
        (("set_desired_capacity", {"DesiredCapacity": 5}), [Direction.OUT], Reason.NOTHING_TO_DO),
        (("set_desired_capacity", {"DesiredCapacity": 1}), [Direction.IN], Reason.NOTHING_TO_DO),
        (("update_auto_scaling_group", {"MaxSize": 3}), [Direction.OUT], Reason.ABOVE_MAXIMUM),
        (("update_auto_scaling_group", {"MinSize": 2}), [Direction.IN], Reason.BELOW_MINIMUM),
        (("suspend_processes", {"ScalingProcesses": ["Launch"]}), [Direction.OUT], Reason.LAUNCH_SUSPENDED),
        (
            ("suspend_processes", {"ScalingProcesses": ["Terminate"]}),
            [Direction.IN, Direction.REPLACE],
            Reason.TERMINATE_SUSPENDED,
        ),
        (("start_instance_refresh", {}), [Direction.OUT, Direction.IN], Reason.REFRESH_IN_PROGRESS),
    ],
)
def test_what_was_changed_by_hand_since_the_decision_is_read_before_the_call(
    shift: Shift, by_hand: tuple[str, dict[str, Any]], asked: list[Direction], reason: Reason
) -> None:
    intents = [
        shift.intent(way, target=4) if way is Direction.OUT else shift.intent(way, victims=shift.serving()[:1])
        for way in asked
    ]
    operation, parameters = by_hand
    getattr(shift.world.groups, operation)(AutoScalingGroupName="web-s", **parameters)
    for intent in intents:
        outcome = shift.apply(intent)
        assert (outcome.status, outcome.reason) == (Status.SKIPPED, reason)
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
    assert "TRIMTAB_AWS__REGION" in outcome.detail
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
    assert "AccessDenied" in outcome.detail
    assert shift.mutations == [("SetDesiredCapacity", "4")]
