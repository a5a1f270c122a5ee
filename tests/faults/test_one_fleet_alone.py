"""One fleet's trouble is that fleet's: whatever goes wrong for it, the others are measured, decided and acted on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import agent.autoscaling.loop
from agent.ledger.journal import Kind
from domain.decisions import Reason
from domain.fleet import Group
from tests.faults.evidence import SET, told
from tests.faults.world import SMALL, M, MakeWorld, World
from tests.stages import exhaustive

BATCH = Group("medium", "batch-m", M, 1, 10)


@pytest.fixture
def two(make_world: MakeWorld) -> World:
    """The fleets `web` and `batch`, both with work that waits from the next turn on."""
    world = make_world(groups=(SMALL,), sizes=(1,), batch=(BATCH,), protect_busy=True)
    world.tick(2)
    world.submit(8)
    world.batch_waiting = 8
    return world


class Failing:
    """An object of which one method raises for one fleet, by an error that nobody foresaw."""

    def __init__(self, real: Any, method: str, fleet: str = "web") -> None:
        self._real, self._method, self._fleet = real, method, fleet

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name != self._method:
            return found

        def call(about: Any, *rest: Any) -> Any:
            if self._fleet in (getattr(about, "fleet", None), getattr(about, "name", None)):
                raise RuntimeError("the moon is full")
            return found(about, *rest)

        return call


def sizes_asked(world: World, group: str) -> list[str]:
    calls = world.control.mutations(operation=SET)
    return [c["params"]["DesiredCapacity"] for c in calls if c["params"]["AutoScalingGroupName"] == group]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("", "drift"),
        ("aggregator", "_inputs"),
        ("aggregator", "_folded"),
        ("actuator", "apply"),
        ("actuator", "follow"),
        ("actuator", "tend"),
    ],
)
def test_an_error_nobody_foresaw_is_reported_for_its_fleet_and_the_other_goes_on(
    two: World, part: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = two
    if method == "follow":
        world.tick()
        world.batch_waiting = 16
    real = getattr(world.loop, part) if part else agent.autoscaling.loop
    monkeypatch.setattr(real, method, getattr(Failing(real, method), method))
    report = world.tick()
    assert report.failure is None
    assert [event.reason for event in report.events if event.subject.name == "web"] == [Reason.INTERNAL_ERROR]
    (sentence,) = told(world, Reason.INTERNAL_ERROR)
    assert "the moon is full" in sentence
    assert "batch" in {decision.fleet for decision in report.decisions}
    assert sizes_asked(world, "batch-m") != []
    monkeypatch.undo()
    world.tick(3)
    assert world.desired()["small"] == 4
    assert world.ledger.open_intents() == ()


def test_an_intent_that_cannot_be_followed_stays_open_and_its_fleet_is_still_decided(two: World) -> None:
    world = two
    world.tick()
    before = world.ledger.open_intents("web")
    world.loop.actuator = Failing(world.loop.actuator, "follow")  # type: ignore[assignment]
    report = world.tick()
    assert world.ledger.open_intents("web") == before
    assert {decision.fleet for decision in report.decisions} == {"web", "batch"}


def altered(world: World, service: str, operation: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what AWS answers to an operation of the agent."""
    client = world.session.client(service, world.plan.read_attempts)
    name = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"after-call.{name}.{operation}", lambda parsed, **_: change(parsed))


def without(field: str, *, of_instance: bool) -> Callable[[dict[str, Any]], None]:
    """Take a field of workers-s, or of its VMs, out of an answer."""

    def change(answer: dict[str, Any]) -> None:
        for group in answer["AutoScalingGroups"]:
            if group["AutoScalingGroupName"] == "workers-s":
                for place in group["Instances"] if of_instance else [group]:
                    place.pop(field)

    return change


@pytest.mark.parametrize(
    ("field", "of_instance"),
    [
        ("DesiredCapacity", False),
        ("InstanceId", True),
        *exhaustive(*((name, False) for name in ("MinSize", "MaxSize", "Instances", "AutoScalingGroupName"))),
        *exhaustive(("LifecycleState", True), ("AvailabilityZone", True)),
    ],
)
def test_a_group_described_without_a_field_holds_its_fleet_alone(two: World, field: str, *, of_instance: bool) -> None:
    world = two
    altered(world, "autoscaling", "DescribeAutoScalingGroups", without(field, of_instance=of_instance))
    report = world.tick()
    assert report.failure is None
    assert world.decision("web").reason is Reason.CLOUD_UNREADABLE
    assert field in world.decision("web").sentence
    assert sizes_asked(world, "workers-s") == []
    assert sizes_asked(world, "batch-m") != []


def test_an_open_intent_outlives_a_group_described_without_a_field(two: World) -> None:
    world = two
    world.tick()
    before = world.ledger.open_intents("web")
    altered(world, "autoscaling", "DescribeAutoScalingGroups", without("DesiredCapacity", of_instance=False))
    world.tick()
    assert world.ledger.open_intents("web") == before


def test_a_vm_described_without_its_launch_time_is_a_vm_all_the_same(two: World) -> None:
    world = two

    def forget(answer: dict[str, Any]) -> None:
        for reservation in answer["Reservations"]:
            for instance in reservation["Instances"]:
                instance.pop("LaunchTime", None)

    world.restart()
    altered(world, "ec2", "DescribeInstances", forget)
    report = world.tick()
    assert [event.reason for event in report.events] == []
    assert sizes_asked(world, "workers-s") == ["4"]
    seen = world.loop.actuator.observe(world.fleets, world.clock.now()).groups["workers-s"]
    assert {vm.launched_at for vm in seen.instances} == {None}


def test_an_answer_without_the_list_of_groups_is_one_that_did_not_come(two: World) -> None:
    world = two
    altered(world, "autoscaling", "DescribeAutoScalingGroups", lambda answer: answer.pop("AutoScalingGroups"))
    report = world.tick()
    assert report.failure is None
    assert {decision.reason for decision in report.decisions} == {Reason.CLOUD_UNREADABLE}


def test_an_activity_without_a_field_leaves_its_intent_open(two: World) -> None:
    world = two
    world.fault("capacity", instance_type="m5a.large")
    world.tick()

    def forget(answer: dict[str, Any]) -> None:
        for activity in answer["Activities"]:
            if activity["AutoScalingGroupName"] == "workers-s":
                activity.pop("StartTime")

    altered(world, "autoscaling", "DescribeScalingActivities", forget)
    report = world.tick()
    assert report.failure is None
    assert {decision.fleet for decision in report.decisions} == {"web", "batch"}
    assert len(world.ledger.open_intents("web")) == 1


def test_notices_that_cannot_be_understood_cost_no_fleet_its_minute(two: World) -> None:
    world = two
    world.sqs.send_message(QueueUrl=world.notices, MessageBody="[]")
    altered(world, "sqs", "ReceiveMessage", lambda answer: answer.update(Messages=[{}]))
    report = world.tick()
    assert {decision.fleet for decision in report.decisions} == {"web", "batch"}
    assert "spot notices" in told(world, Reason.INTERNAL_ERROR)[0]
    assert {entry.subject.name for entry in world.journal if entry.kind is Kind.INTENT} == {"web", "batch"}


def test_an_outcome_that_cannot_be_recorded_stays_open_and_the_other_fleet_is_decided(two: World) -> None:
    two.tick()
    follow = two.loop.actuator.follow

    def odd(intent: Any, *about: Any) -> Any:
        found = follow(intent, *about)
        return replace(found, achieved=math.nan) if intent.fleet == "web" else found

    two.loop.actuator.follow = odd  # type: ignore[method-assign]
    two.batch_waiting = 40
    report = two.tick()
    assert {decision.fleet for decision in report.decisions} == {"web", "batch"}
    assert [(event.subject.name, event.reason) for event in report.events] == [("web", Reason.INTERNAL_ERROR)]
    two.loop.actuator.follow = follow  # type: ignore[method-assign]
    two.tick(3)
    assert [intent for intent in two.ledger.open_intents() if intent.fleet == "web"] == []
