"""Reading scaling activities: what failed, where, for which type, since when."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.activities import Kind, parse_activity, read_activities, read_resizes, shortages, still_launching
from collectors.aws import AwsSession
from domain.decisions import CapacityShortage, Direction
from tests.actuators.shift import Shift

AT = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)
SHORT = (
    "We currently do not have sufficient m5a.large capacity in the Availability Zone you requested (eu-west-1b). "
    "Our system will be working on provisioning additional capacity. Launching EC2 instance failed."
)


def described(**about: object) -> dict[str, object]:
    return {
        "Description": "Launching a new EC2 instance",
        "StartTime": AT,
        "StatusCode": "Failed",
        "Cause": "At 2026-11-20T12:00:00Z a user request explicitly set group desired capacity changing the desired "
        "capacity from 2 to 4.  At 2026-11-20T12:00:01Z an instance was started",
        **about,
    }


def test_a_failed_launch_names_type_zone_and_the_size_that_caused_it() -> None:
    activity = parse_activity(described(StatusMessage=SHORT, Details='{"Availability Zone": "eu-west-1c"}'))
    assert (activity.kind, activity.failed, activity.no_capacity, activity.zone, activity.desired_to) == (
        Kind.LAUNCH,
        True,
        True,
        "eu-west-1c",
        4,
    )
    assert shortages([activity], "m5a.2xlarge") == (CapacityShortage("m5a.large", "eu-west-1b"),)


@pytest.mark.parametrize(
    ("message", "shortage"),
    [
        (
            "There is no Spot capacity available that matches your request. Launching EC2 instance failed.",
            ("t3.micro", ""),
        ),
        (
            "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket.",
            ("t3.micro", ""),
        ),
        (
            "The requested instance type (m6g.metal) is not supported in your requested Availability Zone (us-east-1e)",
            ("m6g.metal", "us-east-1e"),
        ),
        ("Could not launch On-Demand Instances. InsufficientInstanceCapacity - no c5.24xlarge", ("c5.24xlarge", "")),
        (
            "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request "
            "configuration.",
            ("t3.micro", ""),
        ),
    ],
)
def test_every_message_of_missing_capacity_is_a_shortage(message: str, shortage: tuple[str, str]) -> None:
    assert shortages([parse_activity(described(StatusMessage=message))], "t3.micro") == (CapacityShortage(*shortage),)


def test_a_wrong_image_is_no_shortage() -> None:
    activity = parse_activity(
        described(StatusMessage="The image id '[ami-0]' does not exist. Launching EC2 instance failed.")
    )
    assert activity.failed
    assert shortages([activity], "t3.micro") == ()


def test_a_launch_counts_as_under_way_until_its_vm_shows_in_the_group() -> None:
    waiting = parse_activity(described(StatusCode="WaitingForSpotInstanceId"))
    booting = parse_activity(
        described(StatusCode="InProgress", Description="Launching a new EC2 instance: i-0123456789abcdef0")
    )
    assert still_launching([waiting], ())
    assert still_launching([booting], ())
    assert not still_launching([booting], ("i-0123456789abcdef0",))
    assert not still_launching([parse_activity(described(StatusMessage=SHORT))], ())


@given(st.text(), st.text(), st.text(), st.sampled_from(["Failed", "InProgress", "Odd"]))
def test_no_text_of_aws_breaks_the_reading(description: str, cause: str, details: str, status: str) -> None:
    activity = parse_activity(
        described(Description=description, Cause=cause, Details=details, StatusCode=status, StatusMessage=description)
    )
    assert activity.started_at == AT.timestamp()
    assert len(shortages([activity], "t3.micro")) <= 1


def test_reading_stops_at_the_moment_of_the_intent(shift: Shift) -> None:
    shift.control.advance(100.0)
    intent = shift.intent(Direction.OUT, target=4)
    before = shift.control.calls()[-1]["seq"]
    shift.apply(intent)
    since = read_activities(shift.session, "web-s", intent.created_at)
    assert [(one.kind, one.desired_to) for one in since] == [(Kind.LAUNCH, 4)] * 2
    assert len(read_activities(shift.session, "web-s", 0.0)) == 4
    assert len(shift.control.calls(before, operation="DescribeScalingActivities")) == 2


def test_an_old_activity_still_in_progress_hides_none_that_ended_since() -> None:
    """AWS lists those in progress first: a VM that drains for an hour stands before the launch of a minute ago."""
    old = AT - datetime.timedelta(hours=1)
    draining = described(Description="Terminating EC2 instance: i-0aaaaaaaa", StartTime=old, StatusCode="InProgress")
    launched = described(StatusCode="Successful")
    ended = described(StartTime=old, StatusCode="Successful")
    beyond = described(StatusCode="Successful", StartTime=None)

    class Listed:
        """A session whose account has these."""

        def pages(self, service: str, operation: str, **about: object) -> Iterator[dict[str, Any]]:
            for one in (draining, launched, ended, beyond):
                yield {"Activities": [one | {"AutoScalingGroupName": "web"}]}

    session, since = cast(AwsSession, Listed()), AT.timestamp() - 300.0
    assert [one.started_at for one in read_activities(session, "web", since)] == [AT.timestamp()]
    assert [(one.direction, one.at) for one in read_resizes(session, ["web"], since)] == [
        (Direction.OUT, AT.timestamp())
    ]
