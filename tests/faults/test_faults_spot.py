"""Spot notices, one or a storm: each VM is drained once, in time, within the cap; no notice is lost or done twice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from agent.autoscaling.minutes import read_minutes
from agent.autoscaling.state import FleetStore
from domain.decisions import Direction, Reason, Status
from domain.fleet import Group
from tests.faults.world import AGENT_KEY, LARGE, MEDIUM, QUICK, SMALL, MakeWorld, S, World

TERMINATE = "TerminateInstanceInAutoScalingGroup"
STORM = 9


def everyone_busy(world: World) -> None:
    """Every VM works with all its cores, so that there is nothing to scale in."""
    cores = {group.key: group.vm_type.cores for fleet in world.fleets for group in fleet.groups}
    world.busy = {vm: float(cores[key]) for key, vm, _ in world.vms()}


def pass_busy(world: World, minutes: int = 1) -> None:
    for _ in range(minutes):
        everyone_busy(world)
        world.tick()


def give_notice(world: World, vms: list[str] | None = None, **about: object) -> list[str]:
    told = world.control.spot_notice(vms, queue=world.notices, **about)
    return list(told["instance_ids"])


def messages_left(world: World) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = world.sqs.get_queue_attributes(QueueUrl=world.notices, AttributeNames=names)["Attributes"]
    return sum(int(counts[name]) for name in names)


def terminated(world: World) -> Counter[str]:
    """How often AWS was asked to terminate each VM, refused calls not counted."""
    calls = world.control.mutations(access_key=AGENT_KEY, operation=TERMINATE)
    return Counter(str(call["params"]["InstanceId"]) for call in calls if call["status"] == 200)


def told_of(world: World, reason: Reason) -> Counter[str]:
    return Counter(event.about for event in world.events if event.reason is reason)


@pytest.fixture
def fleet_of_thirty(make_world: MakeWorld) -> World:
    world = make_world(sizes=(10, 10, 10), policy="hold")
    pass_busy(world)
    return world


def test_one_notice_drains_its_vm_and_asks_for_another_at_the_next_turn_without_a_cool_down(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    pass_busy(world)
    (intent,) = world.last.intents
    assert (intent.direction, intent.victims, intent.target) == (Direction.REPLACE, (vm,), 3)
    assert ("small", vm, "Terminating:Wait") in world.vms()
    assert world.control.imds(vm, "autoscaling/target-lifecycle-state") == "Terminated"
    assert len(world.in_service("small")) == 2
    assert world.desired()["small"] == 3
    state = FleetStore(world.ledger).loop_state("web")
    assert (state.cooldowns, state.changes) == ((), ())
    pass_busy(world, 2)
    assert len(world.in_service("small")) == 3
    assert vm not in world.in_service("small")


def test_a_vm_that_drains_is_taken_two_minutes_after_its_notice_whatever_it_still_does(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    pass_busy(world)
    assert world.control.imds(vm, "instance-id") == vm
    pass_busy(world)
    assert world.control.imds(vm, "instance-id") is None
    pass_busy(world, 5)
    assert vm not in {one for _, one, _ in world.vms()}
    heartbeats = [
        call
        for call in world.control.mutations(access_key=AGENT_KEY, operation="RecordLifecycleActionHeartbeat")
        if call["params"]["InstanceId"] == vm
    ]
    assert len(heartbeats) <= 2, "a VM that is gone reports nothing, and its hook is not kept alive"
    assert terminated(world) == {vm: 1}


def test_a_storm_over_a_third_of_the_fleet_replaces_each_vm_once_within_the_cap(fleet_of_thirty: World) -> None:
    world = fleet_of_thirty
    struck = set(give_notice(world, count=STORM, duplicates=2, shuffled=True))
    assert len(struck) == STORM
    for _ in range(7):
        pass_busy(world)
        replaced = [i for i in world.last.intents if i.direction is Direction.REPLACE]
        assert all(len(intent.victims) <= STORM for intent in replaced)
    assert messages_left(world) == 0
    assert set(terminated(world)) <= struck
    assert set(terminated(world).values()) == {1}
    assert told_of(world, Reason.SPOT_INTERRUPTION) == dict.fromkeys(struck, 1)
    assert world.desired() == {"small": 10, "medium": 10, "large": 10}
    assert Counter(key for key, _, state in world.vms() if state == "InService") == {
        "small": 10,
        "medium": 10,
        "large": 10,
    }
    assert not struck & {vm for _, vm, state in world.vms() if state == "InService"}
    assert world.ledger.open_intents() == ()
    assert world.count("SetDesiredCapacity") == 0


def test_a_storm_in_one_group_is_worked_off_group_cap_by_group_cap(make_world: MakeWorld) -> None:
    world = make_world(sizes=(10, 0, 0), policy="hold", limits=replace(QUICK, max_replacements_percent=0.0))
    pass_busy(world)
    struck = give_notice(world, world.in_service("small")[:8], shuffled=True)
    pass_busy(world)
    assert sum(terminated(world).values()) == QUICK.max_replacements
    pass_busy(world)
    assert sum(terminated(world).values()) <= len(struck)
    pass_busy(world, 4)
    assert set(terminated(world)) <= set(struck)
    assert len(world.in_service("small")) == 10
    assert told_of(world, Reason.NOT_DRAINED) == {"small": 1}, "what the cap left to AWS is told of"


@pytest.mark.parametrize("seconds_before_the_turn", [pytest.param(5, marks=pytest.mark.exhaustive), 55])
def test_eighty_notices_for_a_hundred_vms_are_all_drained_while_they_last(
    make_world: MakeWorld, seconds_before_the_turn: int
) -> None:
    group = replace(SMALL, maximum=100)
    world = make_world(groups=(group,), sizes=(100,), policy="hold")
    everyone_busy(world)
    world.pass_minute()
    world.clock.advance(60.0 - seconds_before_the_turn)
    struck = give_notice(world, world.in_service("small")[:80], shuffled=True)
    given = world.clock.now()
    world.tick()
    pass_busy(world, 2)
    calls = world.control.mutations(access_key=AGENT_KEY, operation=TERMINATE)
    assert {call["params"]["InstanceId"] for call in calls if call["at"] <= given + 120.0} == set(struck)
    assert told_of(world, Reason.NOT_DRAINED) == {}
    assert world.desired() == {"small": 100}


def test_a_notice_repeated_for_minutes_is_acted_on_once(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    for _ in range(2):
        pass_busy(world)
        if world.control.imds(vm, "instance-id"):
            give_notice(world, [vm], duplicates=1)
    pass_busy(world, 3)
    assert terminated(world) == {vm: 1}
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}
    assert messages_left(world) == 0


def test_a_storm_while_aws_throttles_every_termination_is_worked_off_when_it_stops(fleet_of_thirty: World) -> None:
    world = fleet_of_thirty
    world.fault("throttle", operations=[TERMINATE], duration_s=90.0)
    struck = set(give_notice(world, count=STORM, duplicates=1, shuffled=True))
    pass_busy(world)
    assert terminated(world) == {}
    asked = world.count(TERMINATE)
    assert asked <= 3, "one refused call per group says enough"
    pass_busy(world, 7)
    assert messages_left(world) == 0
    assert set(terminated(world)) <= struck
    assert terminated(world) != {}
    assert max(terminated(world).values()) == 1
    assert world.desired() == {"small": 10, "medium": 10, "large": 10}
    assert sum(state == "InService" for _, _, state in world.vms()) == 30
    assert world.ledger.open_intents() == ()


def test_notices_that_cannot_be_received_are_received_later(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    world.fault("throttle", services=["sqs"], duration_s=70.0)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    pass_busy(world)
    assert terminated(world) == {}
    assert messages_left(world) == 1
    pass_busy(world, 5)
    assert messages_left(world) == 0
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}
    assert len(world.in_service("small")) == 3


def test_a_notice_that_cannot_be_deleted_comes_again_and_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    world.fault("throttle", operations=["DeleteMessageBatch"], duration_s=200.0)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    pass_busy(world, 3)
    assert messages_left(world) == 1
    pass_busy(world, 3)
    assert messages_left(world) == 0
    assert terminated(world) == {vm: 1}
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}


def test_a_notice_that_comes_while_the_groups_cannot_be_read_is_kept_for_the_next_turn(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    world.fault("throttle", operations=["DescribeAutoScalingGroups"], duration_s=70.0)
    pass_busy(world)
    assert world.last.reason is Reason.CLOUD_UNREADABLE
    assert messages_left(world) == 1
    pass_busy(world)
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}
    assert messages_left(world) == 0


def test_a_notice_for_somebody_elses_vm_is_forgotten_without_a_word(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 0, 0))
    machines = world._client("ec2")
    (stranger,) = machines.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"]
    machines.close()
    pass_busy(world)
    give_notice(world, [stranger["InstanceId"]], duplicates=1)
    pass_busy(world)
    assert messages_left(world) == 0
    assert world.mutations == []
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {}


def test_a_notice_of_another_fleet_is_that_fleets_to_act_on(make_world: MakeWorld) -> None:
    other = Group("crunch", "workers-crunch", S, 2, 5)
    world = make_world(groups=(MEDIUM, LARGE), sizes=(2, 0), batch=(other,))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("crunch")[:1])
    pass_busy(world)
    assert world.last.intents == ()
    assert [i.victims for i in world.decision("batch").intents] == [(vm,)]
    assert terminated(world) == {vm: 1}
    assert messages_left(world) == 0


def test_a_rebalance_hint_is_reported_and_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1], kind="rebalance", duplicates=1)
    pass_busy(world, 2)
    assert set(told_of(world, Reason.REBALANCE_HINT)) == {vm}
    assert world.mutations == []
    assert messages_left(world) == 0


def test_a_notice_is_not_acted_on_again_by_a_restarted_agent(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    pass_busy(world)
    world.restart()
    give_notice(world, [vm])
    pass_busy(world, 4)
    assert terminated(world) == {vm: 1}
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}
    outcomes = [outcome.status for outcome in world.outcomes if outcome.status.final]
    assert outcomes == [Status.DONE]


@pytest.mark.exhaustive
def test_a_notice_outlives_a_decision_that_cannot_be_stored(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    with closing(sqlite3.connect(world.directory / "ledger.db")) as database:
        database.execute("CREATE TRIGGER broken BEFORE INSERT ON decisions BEGIN SELECT RAISE(ABORT, 'damaged'); END")
        pass_busy(world)
        assert (messages_left(world), terminated(world)[vm]) == (0, 0)
        database.execute("DROP TRIGGER broken")
    pass_busy(world, 2)
    assert terminated(world)[vm] == 1


def test_notices_are_recorded_by_group_in_the_minute_that_read_them(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 1, 0), policy="hold")
    pass_busy(world)
    before = len(list(read_minutes(world.ledger.database, world.fleet.name)))
    struck = [world.in_service("small")[0], world.in_service("medium")[0]]
    give_notice(world, struck)
    pass_busy(world, 2)
    recorded = list(read_minutes(world.ledger.database, world.fleet.name))[before:]
    assert [dict(minute.interrupted) for minute in recorded] == [{0: 1, 1: 1}, {}]


def test_a_notice_of_a_vm_that_leaves_already_is_no_drain_that_came_too_late(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    pass_busy(world)
    vm = world.in_service("small")[0]
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)
    pass_busy(world)
    give_notice(world, [vm])
    pass_busy(world, 4)
    assert told_of(world, Reason.SPOT_INTERRUPTION) == {vm: 1}
    assert told_of(world, Reason.NOT_DRAINED) == {}


def test_without_replacements_none_is_drained_whatever_the_share(make_world: MakeWorld) -> None:
    world = make_world(sizes=(6, 0, 0), policy="hold", limits=replace(QUICK, max_replacements=0))
    pass_busy(world)
    give_notice(world, world.in_service("small")[:3])
    pass_busy(world, 3)
    assert terminated(world) == {}
