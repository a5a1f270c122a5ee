"""Parameters and tags as they are sent, activities as they are read, and the actuator's own doors."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from actuators.activities import Kind, failed_launches, parse_activity, read_activities, shortages, still_launching
from actuators.autoscaling_group import AutoScalingActuator
from actuators.base import Act, ChangingCall, Held, Refusal
from actuators.values import GroupTags, Parameters
from domain.decisions import CapacityShortage, Direction, Intent, Reason, Status
from domain.errors import CloudError, FailureClass, LedgerUnavailable
from domain.fleet import Fleet, Group, VmType
from domain.observed import Lifecycle, Observed
from tests.actuators.scripted import HOOK, NOW, Cloud, activity, error, group, vms

A, B, C, D = "i-0000000a", "i-0000000b", "i-0000000c", "i-0000000d"
WEB = Fleet("web", (Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 0, 10),))


class Store(Cloud):
    """A parameter store with one parameter, or one that fails."""

    def __init__(self, found: str | CloudError) -> None:
        super().__init__()
        self.found = found

    def read(self, service: str, operation: str, **parameters: Any) -> Mapping[str, Any]:
        assert (service, operation, parameters) == ("ssm", "GetParameter", {"Name": "/rates"})
        if isinstance(self.found, CloudError):
            raise self.found
        return {"Parameter": {"Value": self.found}}


def test_a_parameter_is_read_and_an_absent_one_is_none() -> None:
    assert Parameters(Store("0.3")).get("/rates") == "0.3"  # type: ignore[arg-type]
    absent = error(FailureClass.PERMANENT, "ParameterNotFound", "GetParameter")
    assert Parameters(Store(absent)).get("/rates") is None  # type: ignore[arg-type]
    denied = error(FailureClass.CREDENTIALS, "AccessDenied", "GetParameter")
    with pytest.raises(CloudError, match="AccessDenied"):
        Parameters(Store(denied)).get("/rates")  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "tier"), [(1, "Standard"), (4096, "Standard"), (4097, "Advanced")])
def test_a_parameter_is_put_over_the_one_before_in_the_tier_that_holds_it(length: int, tier: str) -> None:
    store = Store("")
    value = "x" * length
    Parameters(store).put("main", "/rates", value, store.permit)  # type: ignore[arg-type]
    about = {"Name": "/rates", "Value": value, "Type": "String", "Overwrite": True, "Tier": tier}
    assert store.calls == [("PutParameter", about)]
    assert [(call.act, call.subject, call.group) for call in store.asked] == [(Act.PUBLISH, "main", "/rates")]
    store.refusals["publish"] = Refusal(Reason.PAUSED, "paused")
    with pytest.raises(Held):
        Parameters(store).put("main", "/rates", value, store.permit)  # type: ignore[arg-type]


def test_tags_are_sent_sorted_and_stay_off_the_vms() -> None:
    cloud = Cloud()
    GroupTags(cloud).put("batch", "web-s", {"b": "2", "a": "1"}, cloud.permit)  # type: ignore[arg-type]
    shared = {"ResourceId": "web-s", "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
    tags = [{**shared, "Key": "a", "Value": "1"}, {**shared, "Key": "b", "Value": "2"}]
    assert cloud.calls == [("CreateOrUpdateTags", {"Tags": tags})]
    assert [(call.act, call.subject, call.group) for call in cloud.asked] == [(Act.MARK, "batch", "web-s")]


class Pages:
    """Scaling activities in pages of one each."""

    def __init__(self, *described: dict[str, Any]) -> None:
        self.described, self.given = described, 0

    def pages(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        about = {"AutoScalingGroupName": "web-s", "MaxRecords": 100}
        assert (service, operation, parameters) == ("autoscaling", "DescribeScalingActivities", about)
        for one in self.described:
            self.given += 1
            yield {"Activities": [one]}
        yield {}


def test_activities_are_read_newest_first_down_to_the_first_older_one() -> None:
    pages = Pages(*(activity("Successful", at=NOW - seconds) for seconds in (0.0, 10.0, 20.0, 30.0)))
    found = read_activities(pages, "web-s", NOW - 10.0)  # type: ignore[arg-type]
    assert [one.started_at for one in found] == [NOW, NOW - 10.0]
    assert pages.given == 3
    assert len(read_activities(pages, "web-s", 0.0)) == 4  # type: ignore[arg-type]


def test_no_more_pages_are_read_than_asked_for() -> None:
    pages = Pages(*(activity("Successful", at=NOW - seconds) for seconds in range(20)))
    assert len(read_activities(pages, "web-s", 0.0, most_pages=3)) == 3  # type: ignore[arg-type]
    pages.given = 0
    assert len(read_activities(pages, "web-s", 0.0)) == pages.given == 10  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["StartTime", "StatusCode"])
def test_an_activity_without_its_time_or_status_is_no_answer(name: str) -> None:
    pages = Pages(activity("Successful") | {name: None})
    with pytest.raises(CloudError, match=name) as caught:
        read_activities(pages, "web-s", 0.0)  # type: ignore[arg-type]
    assert caught.value.failure is FailureClass.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "failed", "running"),
    [
        ("Successful", False, False),
        ("Failed", True, False),
        ("Cancelled", True, False),
        ("InProgress", False, True),
        ("PreInService", False, True),
    ],
)
def test_an_activity_failed_runs_or_is_over(status: str, failed: bool, running: bool) -> None:
    one = parse_activity(activity(status, vm=A))
    assert (one.failed, one.running, one.vm, one.no_capacity) == (failed, running, A, False)


@pytest.mark.parametrize(
    ("word", "kind"), [("Launching", Kind.LAUNCH), ("Terminating", Kind.TERMINATE), ("Moving", Kind.OTHER)]
)
def test_the_first_word_says_what_an_activity_is(word: str, kind: Kind) -> None:
    one = parse_activity(activity("Failed", kind=word, message="You have exceeded: InstanceLimitExceeded"))
    assert one.kind is kind
    launches = (one,) if kind is Kind.LAUNCH else ()
    assert failed_launches([one]) == launches
    assert shortages([one], "m5a.large") == tuple(CapacityShortage("m5a.large", "") for _ in launches)
    assert not still_launching([one], ())


def test_what_an_activity_does_not_say_is_left_open() -> None:
    bare = {"StartTime": datetime.datetime.fromtimestamp(NOW, datetime.UTC), "StatusCode": "Failed"}
    one = parse_activity(bare)
    assert (one.kind, one.vm, one.zone, one.desired_to, one.cause, one.message) == (Kind.OTHER, None, "", None, "", "")
    assert one.started_at == NOW
    for details in ("", "[1]", "{", '{"Availability Zone": "us-east-1b"}'):
        zone = parse_activity(bare | {"Details": details}).zone
        assert zone == ("us-east-1b" if "us-east" in details else "")


def test_each_shortage_is_named_once_newest_first() -> None:
    def short(vm_type: str) -> dict[str, Any]:
        return activity("Failed", message=f"We currently do not have sufficient {vm_type} capacity")

    found = [parse_activity(short(name)) for name in ("m5a.xlarge", "m5a.large", "m5a.xlarge")]
    assert shortages(found, "t3.micro") == (CapacityShortage("m5a.xlarge", ""), CapacityShortage("m5a.large", ""))


# The actuator


def an_actuator(cloud: Cloud, **about: Any) -> AutoScalingActuator:
    return AutoScalingActuator(cloud, cloud, (WEB,), **about)  # type: ignore[arg-type]


def an_intent(fleet: str = "web", key: str = "s") -> Intent:
    return Intent("i1", "d1", fleet, key, Direction.OUT, 2, 4, (), 1, NOW, NOW + 600.0)


@pytest.mark.parametrize(("fleet", "key"), [("gone", "s"), ("web", "gone")])
def test_an_intent_of_a_group_that_the_settings_dropped_ends(fleet: str, key: str) -> None:
    cloud = Cloud(group(2, *vms(A, B)))
    actuator = an_actuator(cloud)
    for step in (actuator.apply, actuator.follow):
        outcome = step(an_intent(fleet, key), Observed(NOW), NOW, cloud.permit)
        assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.PERMANENT_FAILURE)
    assert cloud.calls == []
    assert actuator.apply(an_intent(), Observed(NOW), NOW, cloud.permit).reason is Reason.ACCEPTED


def tended(cloud: Cloud, **about: Any) -> list[str]:
    seen = group(3, *vms(A), *vms(B, lifecycle=Lifecycle.DRAINING), drain_hook=HOOK)
    actuator = an_actuator(cloud, **about)
    actuator.tend(WEB, Observed(NOW, {"web-s": seen}), {A: 1.0, B: 1.0}, NOW, cloud.permit)
    return [operation for operation, _ in cloud.calls]


def test_drains_and_protection_are_tended_unless_the_process_only_observes() -> None:
    heartbeat, protect = "RecordLifecycleActionHeartbeat", "SetInstanceProtection"
    assert tended(Cloud()) == [heartbeat, protect]
    assert tended(Cloud(), protect_busy=False) == [heartbeat]
    assert tended(Cloud(read_only=True)) == []
    unread = Cloud()
    assert an_actuator(unread).tend(WEB, Observed(NOW), {A: 1.0}, NOW, unread.permit) == ()


def test_a_fence_that_cannot_be_read_leaves_the_events_of_the_calls_before_it() -> None:
    began = [activity("InProgress", at=NOW - 60.0, kind="Terminating", vm=vm) for vm in (A, B)]
    seen = group(4, *vms(A, B, lifecycle=Lifecycle.DRAINING), *vms(C), *vms(D, protected=True), drain_hook=HOOK)
    cloud = Cloud(activities=began)
    for cut, reasons in ((1, [Reason.DRAINED]), (3, [Reason.DRAINED, Reason.DRAINED, Reason.PROTECTED])):

        def permit(call: ChangingCall, most: int = cut) -> None:
            if len(cloud.calls) == most:
                raise LedgerUnavailable("no room")

        cloud.calls.clear()
        tend = an_actuator(cloud, owned_protection=(D,)).tend
        happened = tend(WEB, Observed(NOW, {"web-s": seen}), {A: 0.0, B: 0.0, C: 1.0, D: 0.0}, NOW, permit)
        assert [event.reason for event in happened] == [Reason.DRAINING, Reason.DRAINING, *reasons]
        assert len(cloud.calls) == cut


def test_vms_protected_before_a_restart_are_ours_to_take() -> None:
    intent = Intent("i1", "d1", "web", "s", Direction.IN, 2, 1, (A,), 1, NOW, NOW + 600.0)
    for about, status in (
        ({"owned_protection": (A,)}, Status.DONE),
        ({"owned_protection": (A,), "protect_busy": False}, Status.DONE),
        ({}, Status.SKIPPED),
    ):
        cloud = Cloud(group(2, *vms(A, B, protected=True)))
        assert an_actuator(cloud, **about).apply(intent, Observed(NOW), NOW, cloud.permit).status is status
