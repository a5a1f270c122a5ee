"""AWS has no machines of a type: another type within a tick, the shortage remembered for a while and then forgotten."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from agent.autoscaling.minutes import read_minutes
from agent.autoscaling.state import FleetStore
from domain.decisions import CapacityShortage, Direction, Reason, Status
from tests.faults.evidence import SET, carried_out, intents, told
from tests.faults.world import LARGE, MEDIUM, QUICK, SMALL, L, M, MakeWorld, World, final_reasons

FORGETFUL = replace(QUICK, capacity_memory_s=300.0)
TWO_TYPES: dict[str, Any] = {"groups": (SMALL, MEDIUM), "sizes": (1, 0)}


def asked(world: World, name: str) -> list[tuple[float, int]]:
    """When, in minutes since the world began, the agent set a group's size, and to what."""
    began = world.reports[0].at - 65.0
    calls = world.control.mutations(access_key="agent", operation=SET)
    return [
        (round((call["at"] - began) / 60.0), int(call["params"]["DesiredCapacity"]))
        for call in calls
        if call["params"]["AutoScalingGroupName"] == name
    ]


def test_another_type_is_asked_in_the_tick_that_sees_the_failed_activity(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name)
    world.submit(6)
    world.tick()
    assert asked(world, "workers-m") == [(1, 1)]
    world.tick()
    assert world.last.reason is Reason.CAPACITY_FALLBACK
    assert world.desired() == {"small": 3, "medium": 0}
    ended = next(outcome for outcome in world.outcomes if outcome.status.final)
    assert (ended.status, ended.reason, ended.achieved) == (Status.FAILED, Reason.NO_CAPACITY, 0)
    assert set(ended.shortages) == {
        CapacityShortage(M.name, "us-east-1a"),
        CapacityShortage(M.name, "us-east-1b"),
    }
    assert len(told(world, Reason.CAPACITY_LOST)) == 2
    world.tick(2)
    assert len(world.in_service("small")) == 3
    assert final_reasons(world) == [Reason.NO_CAPACITY, Reason.DONE]
    recorded = read_minutes(world.ledger.database, world.fleet.name)
    assert [dict(minute.refused) for minute in recorded] == [{}, {1: 1}, {}, {}]


def test_what_aws_cannot_launch_is_given_back_so_that_it_stops_trying(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name)
    world.submit(6)
    world.tick(2)
    assert asked(world, "workers-m") == [(1, 1), (2, 0)]
    tries = len(world.owner.describe_scaling_activities(AutoScalingGroupName="workers-m")["Activities"])
    world.tick(4)
    after = len(world.owner.describe_scaling_activities(AutoScalingGroupName="workers-m")["Activities"])
    assert after == tries
    assert told(world, Reason.DRIFT_ADOPTED) == []


def test_the_shortage_is_forgotten_after_its_time_and_the_type_asked_again(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name, duration_s=240.0)
    world.submit(6)
    world.tick(6)
    assert world.desired()["medium"] == 0
    assert told(world, Reason.CAPACITY_RETURNED) == []
    world.submit(20)
    world.tick(3)
    assert len(told(world, Reason.CAPACITY_RETURNED)) == 2
    assert world.desired()["medium"] >= 1
    first, again = asked(world, "workers-m")[0], asked(world, "workers-m")[2]
    assert again[0] - first[0] >= 5.0


@pytest.mark.exhaustive
def test_no_type_is_asked_for_hours_on_end(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL, MEDIUM, LARGE), sizes=(10, 0, 0), limits=replace(QUICK, capacity_memory_s=600.0))
    world.fault("capacity", instance_type=M.name)
    world.fault("capacity", instance_type=L.name)
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.submit(60)
    world.tick(62)
    for name in ("workers-m", "workers-l"):
        rises = [minute for minute, size in asked(world, name) if size > 0]
        assert 3 <= len(rises) <= 7
        assert all(later - sooner >= 10 for sooner, later in pairwise(rises))
    assert world.desired() == {"small": 10, "medium": 0, "large": 0}
    assert FleetStore(world.ledger).loop_state("web").breakers == ()
    assert world.last.reason is Reason.NO_CAPACITY


def test_a_shortage_in_one_zone_is_left_to_awss_other_zone(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name, zone="us-east-1a")
    world.submit(10)
    world.tick(4)
    zones = {
        one["AvailabilityZone"]
        for group in world.owner.describe_auto_scaling_groups(AutoScalingGroupNames=["workers-m"])["AutoScalingGroups"]
        for one in group["Instances"]
    }
    assert zones == {"us-east-1b"}
    assert world.desired() == {"small": 1, "medium": 2}
    assert set(final_reasons(world)) == {Reason.DONE}
    assert Reason.CAPACITY_FALLBACK not in {report.decisions[0].reason for report in world.reports}


def test_giving_back_takes_none_of_the_vms_that_are_there(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.submit(10)
    world.tick(3)
    assert world.desired() == {"small": 1, "medium": 2}
    world.fault("capacity", instance_type=M.name)
    world.busy = dict.fromkeys(world.in_service("medium"), 4.0) | dict.fromkeys(world.in_service("small"), 2.0)
    world.waiting = 18
    world.tick(4)
    assert world.desired()["medium"] == 2
    assert len(world.in_service("medium")) == 2
    assert world.desired()["small"] == 5
    assert [i["group"] for i in intents(world, Direction.OUT)][-1] == "small"


def test_the_shortage_is_remembered_over_a_restart(make_world: MakeWorld) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name)
    world.submit(6)
    world.tick(2)
    world.restart()
    world.submit(8)
    world.tick(3)
    assert [size for _, size in asked(world, "workers-m")] == [1, 0]


@pytest.mark.parametrize("moment", ["before the reading back", "while giving back"])
def test_throttling_in_the_midst_of_a_shortage_delays_the_fallback_and_loses_nothing(
    make_world: MakeWorld, moment: str
) -> None:
    world = make_world(**TWO_TYPES, limits=FORGETFUL)
    world.fault("capacity", instance_type=M.name)
    world.submit(6)
    world.tick()
    blocked = "DescribeScalingActivities" if moment == "before the reading back" else SET
    world.fault("throttle", operations=[blocked], duration_s=100.0)
    world.tick()
    assert world.desired()["medium"] == 1
    world.tick(3)
    assert world.desired() == {"small": 3, "medium": 0}
    sizes = [(c["AutoScalingGroupName"], c["DesiredCapacity"]) for c in carried_out(world, SET)]
    assert sizes == [("workers-m", "1"), ("workers-m", "0"), ("workers-s", "3")]
