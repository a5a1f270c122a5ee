"""What an intent comes to, for every state in which AWS may show its group; each on an AWS that answers as told."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.base import Act, Refusal
from actuators.outcomes import Report, achieved, asked
from actuators.sizes import CLOCK_SKEW_S, QUIET_S
from domain.decisions import CapacityShortage, Direction, Outcome, Reason, Status
from domain.errors import FailureClass, Fenced
from domain.observed import GroupObserved, Lifecycle, ReadFailure
from tests.actuators.scripted import (
    LATE,
    NOW,
    SHORT,
    A,
    B,
    C,
    Cloud,
    D,
    activity,
    apply,
    error,
    follow,
    group,
    leaving,
    out,
    vms,
)


def result_of(outcome: Outcome) -> tuple[Status, Reason, int]:
    return outcome.status, outcome.reason, outcome.achieved


# Out


def test_a_scale_out_is_sent_once_with_the_absolute_size() -> None:
    cloud = Cloud(group(2, *vms(A, B)))
    outcome = apply(cloud, out())
    assert result_of(outcome) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    parameters = {"AutoScalingGroupName": "web-s", "DesiredCapacity": 4, "HonorCooldown": False}
    assert cloud.calls == [("SetDesiredCapacity", parameters)]
    assert [(call.act, call.subject, call.group, call.vm) for call in cloud.asked] == [(Act.LAUNCH, "web", "s", "")]


def test_a_group_that_holds_the_vms_is_done_without_a_call() -> None:
    cloud = Cloud()
    assert result_of(follow(cloud, out(), group(4, *vms(A, B, C, D)))) == (Status.DONE, Reason.DONE, 2)
    assert cloud.calls == []


def test_vms_that_are_pending_may_end_before_service_and_keep_the_intent_open() -> None:
    cloud, seen = Cloud(), group(4, *vms(A, B, C), *vms(D, lifecycle=Lifecycle.PENDING))
    assert result_of(follow(cloud, out(), seen)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 2)
    cloud.group = seen
    assert result_of(follow(cloud, out(), seen, LATE)) == (Status.PARTIAL, Reason.OVERDUE, 1)
    assert cloud.calls == [], "a VM that boots slowly is kept"


def abandoned(*names: str) -> list[dict[str, object]]:
    return [activity("Cancelled", at=NOW + 5.0 * k, vm=vm, message="abandoned") for k, vm in enumerate(names)]


@pytest.mark.parametrize(("ended", "given_back"), [(2, False), (3, True)])
def test_after_three_launches_in_a_row_that_ended_before_service_the_next_is_given_back(
    ended: int, given_back: bool
) -> None:
    seen = group(3, *vms(A, B), *vms(C, lifecycle=Lifecycle.PENDING))
    cloud = Cloud(seen, activities=abandoned("i-00000011", "i-00000012", "i-00000013")[:ended])
    outcome = follow(cloud, out(target=3), seen)
    terminated = {"InstanceId": C, "ShouldDecrementDesiredCapacity": True}
    assert cloud.calls == ([("TerminateInstanceInAutoScalingGroup", terminated)] if given_back else [])
    assert [(call.act, call.vm) for call in cloud.asked] == ([(Act.LOWER_DESIRED, C)] if given_back else [])
    assert outcome.reason is (Reason.LAUNCHES_FAILING if given_back else Reason.ACCEPTED)


def test_at_the_deadline_what_was_launched_since_is_given_back_down_to_the_size_before() -> None:
    names = ("i-00000021", "i-00000022", "i-00000023")
    seen = group(4, *vms(A), *vms(*names, lifecycle=Lifecycle.PENDING))
    launched = [activity("InProgress", vm=name) for name in names]
    cloud = Cloud(seen, activities=[*launched, *abandoned("i-00000011")])
    assert follow(cloud, out(), seen, LATE).reason is Reason.PERMANENT_FAILURE
    assert [call.vm for call in cloud.asked if call.act is Act.LOWER_DESIRED and call.vm] == list(names[:2])


def test_a_launch_that_came_into_service_ends_the_row() -> None:
    seen = group(4, *vms(A, B, D), *vms(C, lifecycle=Lifecycle.PENDING))
    row = abandoned("i-00000011", "i-00000012", "i-00000013")
    cloud = Cloud(seen, activities=[*row[:1], activity("Successful", vm=D), *row[1:]])
    assert result_of(follow(cloud, out(), seen)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 1)


def test_a_launch_that_a_smaller_size_cancelled_is_no_failure() -> None:
    taken = activity("Successful", kind="Terminating", vm=C, cause="a user request, shrinking the capacity from 4 to 3")
    set_to_four = activity("Cancelled", vm=C, cause="changing the desired capacity from 2 to 4")
    cloud = Cloud(activities=[taken, set_to_four])
    assert result_of(follow(cloud, out(), group(3, *vms(A, B, D)))) == (Status.PARTIAL, Reason.SUPERSEDED, 1)


def test_while_aws_launches_it_is_waited_for() -> None:
    cloud = Cloud(activities=[activity("InProgress", vm=D)])
    outcome = follow(cloud, out(), group(4, *vms(A, B, C)))
    assert result_of(outcome) == (Status.IN_PROGRESS, Reason.ACCEPTED, 1)
    assert cloud.calls == []


def failed_launch(**about: Any) -> dict[str, Any]:
    return activity("Failed", message=SHORT, **about)


def give_back(seen: GroupObserved, cloud: Cloud | None = None, now: float = NOW + 60.0) -> tuple[Outcome, Cloud]:
    cloud = cloud or Cloud(seen, [failed_launch(at=now - QUIET_S)])
    return follow(cloud, out(), group(4, *vms(A, B, C)), now), cloud


def test_what_aws_cannot_launch_is_given_back_once_it_is_quiet() -> None:
    outcome, cloud = give_back(group(4, *vms(A, B, C), counted=3))
    assert result_of(outcome) == (Status.PARTIAL, Reason.NO_CAPACITY, 1)
    assert outcome.shortages == (CapacityShortage("m5a.large", "us-east-1b"),)
    assert outcome.failure is FailureClass.CAPACITY
    assert cloud.sizes == [3]
    assert [call.act for call in cloud.asked] == [Act.LOWER_DESIRED]


def test_a_failure_is_left_to_awss_own_next_attempt_at_first() -> None:
    now = NOW + 60.0
    cloud = Cloud(group(4, *vms(A, B)), [failed_launch(at=now - QUIET_S + 0.5)])
    assert result_of(follow(cloud, out(), group(4, *vms(A, B)), now)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    cloud.activities = [activity("InProgress", at=now - 1.0, vm=D), failed_launch(at=now - 30.0)]
    assert result_of(follow(cloud, out(), group(4, *vms(A, B)), now)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    # A launch whose VM shows in the group is no longer under way.
    cloud.activities = [activity("InProgress", at=now - 1.0, vm=B), failed_launch(at=now - 30.0)]
    assert follow(cloud, out(), group(4, *vms(A, B)), now).reason is Reason.NO_CAPACITY


def test_only_activities_since_the_intent_count_with_the_skew_of_two_clocks() -> None:
    now = NOW + 60.0
    for at, counts in ((NOW - CLOCK_SKEW_S, True), (NOW - CLOCK_SKEW_S - 0.1, False)):
        cloud = Cloud(group(4, *vms(A, B)), [failed_launch(at=at)])
        outcome = follow(cloud, out(), group(4, *vms(A, B)), now)
        assert (outcome.reason is Reason.NO_CAPACITY) is counts


@pytest.mark.parametrize(
    ("fresh", "lowered_to"),
    [
        (group(4, *vms(A, B, C), counted=3), 3),
        (group(4, *vms(A, B), counted=2), 2),
        (group(4, *vms(A), counted=1), 2),
        (group(4, *vms(A, B), counted=2, minimum=3), 3),
        (group(4, *vms(A, B), counted=3), 3),
        (group(4, *vms(A, B), counted=4), None),
        (group(5, *vms(A, B), counted=2), None),
        (group(3, *vms(A, B), counted=2), None),
    ],
)
def test_giving_back_takes_no_vm_and_overrides_nobody(fresh: GroupObserved, lowered_to: int | None) -> None:
    outcome, cloud = give_back(fresh)
    assert cloud.sizes == ([lowered_to] if lowered_to else [])
    assert outcome.status.final


def test_a_launch_that_succeeds_meanwhile_is_what_was_asked() -> None:
    outcome, cloud = give_back(group(4, *vms(A, B, C, D), counted=4))
    assert (result_of(outcome), cloud.calls) == ((Status.DONE, Reason.DONE, 2), [])


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (FailureClass.THROTTLE, Status.IN_PROGRESS, Reason.NO_CAPACITY),
        (FailureClass.UNAVAILABLE, Status.IN_PROGRESS, Reason.NO_CAPACITY),
        (FailureClass.UNKNOWN_OUTCOME, Status.IN_PROGRESS, Reason.NO_CAPACITY),
        (FailureClass.CREDENTIALS, Status.PARTIAL, Reason.NO_CAPACITY),
        (FailureClass.PERMANENT, Status.PARTIAL, Reason.NO_CAPACITY),
        (FailureClass.READ_ONLY, Status.PARTIAL, Reason.NO_CAPACITY),
        (FailureClass.UNSUPPORTED, Status.PARTIAL, Reason.GROUP_UNSUPPORTED),
    ],
)
def test_a_capacity_that_cannot_be_lowered_is_tried_again_where_that_may_help(
    failure: FailureClass, status: Status, reason: Reason
) -> None:
    seen = group(4, *vms(A, B, C), counted=3)
    cloud = Cloud(seen, [failed_launch()], fails={"SetDesiredCapacity": error(failure)})
    outcome, _ = give_back(seen, cloud)
    assert result_of(outcome) == (status, reason, 1)


def test_giving_back_waits_for_the_permit_and_for_the_lead() -> None:
    seen = group(4, *vms(A, B, C), counted=3)
    cloud = Cloud(seen, [failed_launch()], refusals={"give_back": Refusal(Reason.PAUSED, "paused", over=False)})
    outcome, _ = give_back(seen, cloud)
    assert result_of(outcome) == (Status.IN_PROGRESS, Reason.PAUSED, 1)
    assert cloud.calls == []
    cloud = Cloud(seen, [failed_launch()], fails={"SetDesiredCapacity": Fenced("another leads")})
    assert result_of(give_back(seen, cloud)[0]) == (Status.IN_PROGRESS, Reason.NOT_LEADER, 1)


def test_at_the_deadline_it_ends_with_what_came() -> None:
    seen = group(4, *vms(A, B, C), counted=3)
    cloud = Cloud(seen)
    assert not follow(cloud, out(), seen, LATE - 0.1).status.final
    outcome = follow(cloud, out(), seen, LATE)
    assert result_of(outcome) == (Status.PARTIAL, Reason.OVERDUE, 1)
    assert cloud.sizes == [3]
    cloud = Cloud(seen, fails={"SetDesiredCapacity": error(FailureClass.THROTTLE)})
    assert result_of(follow(cloud, out(), seen, LATE)) == (Status.IN_PROGRESS, Reason.OVERDUE, 1)


def test_launches_that_fail_for_another_reason_are_said_with_awss_words() -> None:
    now = NOW + 60.0
    cloud = Cloud(group(4, *vms(A, B), counted=2), [activity("Failed", message="The image id does not exist")])
    outcome = follow(cloud, out(), group(4, *vms(A, B)), now)
    assert result_of(outcome) == (Status.FAILED, Reason.PERMANENT_FAILURE, 0)
    assert outcome.failure is FailureClass.PERMANENT
    assert "image id does not exist" in outcome.detail
    assert cloud.sizes == [2]


def test_of_several_failures_the_newest_is_said() -> None:
    failures = [activity("Failed", message=words, at=at) for words, at in (("no image", NOW + 9.0), ("no key", NOW))]
    outcome = follow(Cloud(group(4, *vms(A, B), counted=2), failures), out(), group(4, *vms(A, B)))
    assert "no image" in outcome.detail
    assert "no key" not in outcome.detail


def test_below_its_target_it_is_sent_again_unless_it_was_there() -> None:
    seen = group(2, *vms(A, B))
    cloud = Cloud(seen)
    assert result_of(follow(cloud, out(), seen)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    assert len(cloud.calls) == 1
    there = "a user request changing the desired capacity from 2 to 4. An instance was started"
    cloud = Cloud(seen, [activity("Successful", cause=there)])
    outcome = follow(cloud, out(), seen)
    assert result_of(outcome) == (Status.FAILED, Reason.SUPERSEDED, 0)
    other = "a user request changing the desired capacity from 2 to 3. An instance was started"
    cloud = Cloud(seen, [activity("Successful", cause=other)])
    assert follow(cloud, out(), seen).reason is Reason.ACCEPTED


def test_below_its_target_after_failed_launches_it_was_given_back() -> None:
    seen = group(3, *vms(A, B, C))
    cloud = Cloud(seen, [failed_launch()])
    outcome = follow(cloud, out(), seen)
    assert result_of(outcome) == (Status.PARTIAL, Reason.NO_CAPACITY, 1)
    assert cloud.calls == []


def test_below_its_target_at_the_deadline_it_never_came() -> None:
    cloud = Cloud(group(2, *vms(A, B)))
    outcome = follow(cloud, out(), group(2, *vms(A, B)), LATE)
    assert result_of(outcome) == (Status.FAILED, Reason.OVERDUE, 0)
    assert cloud.calls == []


def test_activities_that_cannot_be_read_are_waited_for_until_the_deadline_unless_credentials_fail() -> None:
    seen = group(4, *vms(A, B, C), counted=3)
    cloud = Cloud(seen, error(FailureClass.THROTTLE))
    assert result_of(follow(cloud, out(), seen)) == (Status.IN_PROGRESS, Reason.THROTTLED, 1)
    assert result_of(follow(cloud, out(), seen, LATE)) == (Status.PARTIAL, Reason.OVERDUE, 1)
    cloud = Cloud(seen, error(FailureClass.CREDENTIALS))
    assert result_of(follow(cloud, out(), seen)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 1)


# A group that was not read


@pytest.mark.parametrize(
    ("failed", "now", "status", "reason"),
    [
        (None, NOW, Status.IN_PROGRESS, Reason.CLOUD_UNREADABLE),
        (None, LATE, Status.FAILED, Reason.OVERDUE),
        (ReadFailure(FailureClass.THROTTLE, "slow"), LATE - 0.1, Status.IN_PROGRESS, Reason.CLOUD_UNREADABLE),
        (ReadFailure(FailureClass.THROTTLE, "slow"), LATE, Status.FAILED, Reason.OVERDUE),
        (ReadFailure(FailureClass.PERMANENT, "gone"), NOW, Status.FAILED, Reason.PERMANENT_FAILURE),
        (ReadFailure(FailureClass.UNSUPPORTED, "mixed"), NOW, Status.FAILED, Reason.GROUP_UNSUPPORTED),
    ],
)
def test_a_group_that_was_not_read_is_waited_for_unless_it_is_gone(
    failed: ReadFailure | None, now: float, status: Status, reason: Reason
) -> None:
    cloud = Cloud()
    outcome = follow(cloud, out(), None, now, **({} if failed is None else {"failed": failed}))
    assert result_of(outcome) == (status, reason, 0)
    assert outcome.detail.endswith(failed.detail if failed else "")
    assert outcome.failure is (failed.failure if failed else None)
    assert cloud.calls == []


# In and replace


@pytest.mark.parametrize(("direction", "shrinks"), [(Direction.IN, True), (Direction.REPLACE, False)])
def test_victims_are_terminated_by_id_one_by_one(direction: Direction, shrinks: bool) -> None:
    cloud = Cloud(group(4, *vms(A, B, C, D)))
    outcome = apply(cloud, leaving(C, A, direction=direction))
    assert result_of(outcome) == (Status.DONE, Reason.DONE, 2)
    sent = [(name, each["InstanceId"], each["ShouldDecrementDesiredCapacity"]) for name, each in cloud.calls]
    operation = "TerminateInstanceInAutoScalingGroup"
    assert sent == [(operation, C, shrinks), (operation, A, shrinks)]
    act = Act.REMOVE if shrinks else Act.REPLACE
    assert [(call.act, call.vm) for call in cloud.asked] == [(act, C), (act, A)]


@pytest.mark.parametrize(
    ("failure", "code", "status", "reason", "sent"),
    [
        (FailureClass.THROTTLE, "Throttling", Status.IN_PROGRESS, Reason.THROTTLED, [A, B]),
        (FailureClass.UNKNOWN_OUTCOME, "Timeout", Status.UNKNOWN, Reason.UNKNOWN_OUTCOME, [A, B]),
        (FailureClass.CREDENTIALS, "AccessDenied", Status.PARTIAL, Reason.CREDENTIALS, [A, B]),
        (FailureClass.UNAVAILABLE, "InternalError", Status.IN_PROGRESS, Reason.UNAVAILABLE, [A, B]),
        (FailureClass.UNAVAILABLE, "ScalingActivityInProgress", Status.IN_PROGRESS, Reason.UNAVAILABLE, [A, B, C]),
        (FailureClass.PERMANENT, "ValidationError", Status.PARTIAL, Reason.PERMANENT_FAILURE, [A, B, C]),
        (FailureClass.PERMANENT, "ScalingActivityInProgress", Status.PARTIAL, Reason.PERMANENT_FAILURE, [A, B, C]),
    ],
)
def test_a_failure_that_the_next_vm_would_meet_stops_the_rest(
    failure: FailureClass, code: str, status: Status, reason: Reason, sent: list[str]
) -> None:
    cloud = Cloud(group(4, *vms(A, B, C, D)), fails={B: error(failure, code)})
    outcome = apply(cloud, leaving(A, B, C))
    assert [parameters["InstanceId"] for _, parameters in cloud.calls] == sent
    assert result_of(outcome) == (status, reason, len(sent) - 1)


def test_a_lost_lead_and_a_refusal_stop_the_rest_and_a_busy_vm_only_itself() -> None:
    cloud = Cloud(group(4, *vms(A, B, C, D)), fails={B: Fenced("another leads")})
    assert result_of(apply(cloud, leaving(A, B, C))) == (Status.IN_PROGRESS, Reason.NOT_LEADER, 1)
    for over, status in ((True, Status.PARTIAL), (False, Status.IN_PROGRESS)):
        cloud = Cloud(group(4, *vms(A, B, C, D)), refusals={B: Refusal(Reason.PAUSED, "paused", over=over)})
        assert result_of(apply(cloud, leaving(A, B, C))) == (status, Reason.PAUSED, 1)
        assert len(cloud.calls) == 1
    cloud = Cloud(group(4, *vms(A, B, C, D)), refusals={B: Refusal(Reason.BUSY, "busy")})
    outcome = apply(cloud, leaving(A, B, C))
    assert result_of(outcome) == (Status.PARTIAL, Reason.BUSY, 2)
    assert B in outcome.detail


def test_when_every_victim_is_busy_or_protected_nothing_is_done() -> None:
    cloud = Cloud(group(4, *vms(A, B, C, D)), refusals={"remove": Refusal(Reason.BUSY, "busy")})
    assert result_of(apply(cloud, leaving(A, B))) == (Status.SKIPPED, Reason.BUSY, 0)
    cloud = Cloud(group(4, *vms(A, B, protected=True), *vms(C, D)))
    outcome = apply(cloud, leaving(A, B))
    assert result_of(outcome) == (Status.SKIPPED, Reason.PROTECTED, 0)
    assert cloud.calls == []
    outcome = apply(Cloud(group(4, *vms(A, B, protected=True), *vms(C, D))), leaving(A, C))
    assert result_of(outcome) == (Status.PARTIAL, Reason.PROTECTED, 1)
    assert result_of(apply(Cloud(group(4, *vms(A, B, protected=True), *vms(C, D))), leaving(A, C), (A,))) == (
        (Status.DONE, Reason.DONE, 2)
    )


def test_a_victim_that_left_by_itself_counts_and_one_that_another_party_replaced_supersedes() -> None:
    cloud = Cloud(group(4, *vms(A, B, C)))
    # D is gone while the size stands: AWS is replacing it, and two are to leave.
    outcome = apply(cloud, leaving(C, D))
    assert result_of(outcome) == (Status.DONE, Reason.DONE, 2)
    cloud = Cloud(group(3, *vms(A, B, C)))
    # Another party lowered the size by one: one victim is left to take.
    assert result_of(apply(cloud, leaving(A, B))) == (Status.PARTIAL, Reason.SUPERSEDED, 1)
    assert len(cloud.calls) == 1


def test_of_vms_that_are_kept_those_of_other_parties_are_said_first() -> None:
    seen = group(4, *vms(A, protected=True), *vms(B, C, D))
    outcome = apply(Cloud(seen, refusals={B: Refusal(Reason.BUSY, "busy")}), leaving(A, B, C))
    assert result_of(outcome) == (Status.PARTIAL, Reason.PROTECTED, 1)
    outcome = apply(Cloud(seen, refusals={B: Refusal(Reason.BUSY, "busy")}), leaving(A, B))
    assert result_of(outcome) == (Status.SKIPPED, Reason.PROTECTED, 0)


def test_victims_out_of_service_are_done_without_a_call() -> None:
    cloud = Cloud()
    outcome = follow(cloud, leaving(A, B), group(2, *vms(C, D), *vms(A, B, lifecycle=Lifecycle.DRAINING)))
    assert result_of(outcome) == (Status.DONE, Reason.DONE, 2)
    assert cloud.calls == []


def test_victims_still_in_service_at_the_deadline_are_named() -> None:
    outcome = follow(Cloud(), leaving(A, B), group(3, *vms(B, C, D)), LATE)
    assert result_of(outcome) == (Status.PARTIAL, Reason.OVERDUE, 1)
    assert (A in outcome.detail, B in outcome.detail) == (False, True)
    assert follow(Cloud(group(3, *vms(B, C, D))), leaving(A, B), group(3, *vms(B, C, D)), LATE - 0.1).reason is not (
        Reason.OVERDUE
    )


def test_what_is_missing_of_a_scale_in_is_sent() -> None:
    seen = group(3, *vms(B, C, D))
    cloud = Cloud(seen)
    assert result_of(follow(cloud, leaving(A, B), seen)) == (Status.DONE, Reason.DONE, 2)
    assert [parameters["InstanceId"] for _, parameters in cloud.calls] == [B]


def test_a_size_that_fell_before_its_vms_left_is_waited_for_and_not_lowered_twice() -> None:
    seen = group(2, *vms(A, B, C, D))
    cloud = Cloud(seen)
    outcome = follow(cloud, leaving(A, B), seen, NOW + 119.9)
    assert result_of(outcome) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    outcome = follow(cloud, leaving(A, B), seen, NOW + 120.0)
    assert result_of(outcome) == (Status.FAILED, Reason.SUPERSEDED, 0)
    assert cloud.calls == []
    # Above the target after the lag, the rest is sent.
    cloud = Cloud(group(3, *vms(A, B, C, D)))
    follow(cloud, leaving(A, B), group(3, *vms(A, B, C, D)), NOW + 120.0)
    assert len(cloud.calls) == 1
    # A replacement leaves the size: a size that fell says nothing of it.
    cloud = Cloud(seen)
    follow(cloud, leaving(A, direction=Direction.REPLACE), seen)
    assert len(cloud.calls) == 1


# The reading before each call


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (FailureClass.THROTTLE, Status.IN_PROGRESS, Reason.THROTTLED),
        (FailureClass.UNAVAILABLE, Status.IN_PROGRESS, Reason.UNAVAILABLE),
        (FailureClass.CREDENTIALS, Status.FAILED, Reason.CREDENTIALS),
        (FailureClass.PERMANENT, Status.FAILED, Reason.PERMANENT_FAILURE),
        (FailureClass.UNSUPPORTED, Status.FAILED, Reason.GROUP_UNSUPPORTED),
    ],
)
def test_nothing_is_sent_to_a_group_that_cannot_be_read_right_now(
    failure: FailureClass, status: Status, reason: Reason
) -> None:
    cloud = Cloud(error(failure))
    outcome = apply(cloud, out())
    assert result_of(outcome) == (status, reason, 0)
    assert cloud.calls == []


def test_what_the_check_refuses_is_skipped_at_first_and_waited_for_or_ended_later() -> None:
    there = group(4, *vms(A, B))
    assert result_of(apply(Cloud(there), out())) == (Status.SKIPPED, Reason.NOTHING_TO_DO, 0)
    below = group(2, *vms(A, B, C))
    assert result_of(follow(Cloud(there), out(), below)) == (Status.IN_PROGRESS, Reason.ACCEPTED, 0)
    small = group(2, *vms(A, B, C), maximum=3)
    assert result_of(apply(Cloud(small), out())) == (Status.SKIPPED, Reason.ABOVE_MAXIMUM, 0)
    assert result_of(follow(Cloud(small), out(), below)) == (Status.PARTIAL, Reason.ABOVE_MAXIMUM, 1)


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (FailureClass.THROTTLE, Status.IN_PROGRESS, Reason.THROTTLED),
        (FailureClass.UNKNOWN_OUTCOME, Status.UNKNOWN, Reason.UNKNOWN_OUTCOME),
        (FailureClass.CAPACITY, Status.FAILED, Reason.NO_CAPACITY),
        (FailureClass.CREDENTIALS, Status.FAILED, Reason.CREDENTIALS),
        (FailureClass.PERMANENT, Status.FAILED, Reason.PERMANENT_FAILURE),
        (FailureClass.READ_ONLY, Status.SKIPPED, Reason.OBSERVE_MODE),
    ],
)
def test_a_failed_call_is_an_outcome_of_its_class(failure: FailureClass, status: Status, reason: Reason) -> None:
    cloud = Cloud(group(2, *vms(A, B)), fails={"SetDesiredCapacity": error(failure)})
    outcome = apply(cloud, out())
    assert (result_of(outcome), outcome.failure) == ((status, reason, 0), failure)
    assert (outcome.shortages == (CapacityShortage("m5a.large", ""),)) is (failure is FailureClass.CAPACITY)


def test_a_launch_waits_for_the_lead_and_for_the_permit() -> None:
    cloud = Cloud(group(2, *vms(A, B)), fails={"SetDesiredCapacity": Fenced("another leads")})
    assert result_of(apply(cloud, out())) == (Status.IN_PROGRESS, Reason.NOT_LEADER, 0)
    for over, status in ((True, Status.SKIPPED), (False, Status.IN_PROGRESS)):
        cloud = Cloud(group(2, *vms(A, B)), refusals={"launch": Refusal(Reason.PAUSED, "paused", over=over)})
        assert result_of(apply(cloud, out())) == (status, Reason.PAUSED, 0)
        assert cloud.calls == []


# Counting


def test_what_was_asked_and_achieved_is_counted_by_direction() -> None:
    assert (asked(out(2, 5)), asked(leaving(A, B))) == (3, 2)
    for serving, done in (((A,), 0), ((A, B), 0), ((A, B, C), 1), ((A, B, C, D), 2), ((A, B, C, D, "i-5"), 2)):
        assert achieved(out(2, 4), group(4, *vms(*serving))) == done
    assert achieved(leaving(A, B), group(4, *vms(B, C))) == 1


def test_a_failure_after_some_vms_is_partial_where_it_is_final() -> None:
    report = Report(leaving(A, B), NOW)
    assert report.after(error(FailureClass.CREDENTIALS), 1, "m").status is Status.PARTIAL
    assert report.after(error(FailureClass.CREDENTIALS), 0, "m").status is Status.FAILED
    assert report.after(error(FailureClass.THROTTLE), 1, "m").status is Status.IN_PROGRESS
    outcome = report.after(error(FailureClass.PERMANENT, "Bad"), 0, "m", "first")
    assert (outcome.intent_id, outcome.at, outcome.asked) == ("i1", NOW, 2)
