"""A VM that may not go: the next one goes in its place in the same minute, and the refusal is remembered."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from agent.autoscaling.refusals import FIRST_S, LONGEST_S
from agent.autoscaling.state import FleetStore
from domain.controls import Pause, PauseScope
from domain.decisions import Direction, Reason, Status
from tests.faults.evidence import TERMINATE, carried_out, intents, told
from tests.faults.world import AGENT_KEY, MEDIUM, QUICK, SMALL, MakeWorld, World
from tests.stages import exhaustive

STEP_OF_TWO = replace(QUICK, max_step_in=2)


@pytest.fixture
def idle(make_world: MakeWorld) -> World:
    """Six VMs, idle for a minute less than it takes to be removed; at most two leave in a minute."""
    world = make_world(groups=(SMALL,), sizes=(6,), limits=STEP_OF_TWO)
    world.tick()
    assert intents(world) == []
    return world


def first_to_go(world: World, count: int) -> list[str]:
    return list(world.snapshot.groups[0].removable[:count])


def asked_for(world: World) -> Counter[str]:
    calls = world.control.mutations(access_key=AGENT_KEY, operation=TERMINATE)
    return Counter(str(call["params"]["InstanceId"]) for call in calls)


def protect(world: World, vms: list[str], protected: bool = True) -> None:
    world.owner.set_instance_protection(
        AutoScalingGroupName=SMALL.name, InstanceIds=vms, ProtectedFromScaleIn=protected
    )


@pytest.mark.parametrize("count", [2, *exhaustive(1, 4)])
def test_vms_that_another_party_protects_stay_and_all_others_go(idle: World, count: int) -> None:
    theirs = first_to_go(idle, count)
    protect(idle, theirs)
    idle.tick(5)
    assert len(idle.in_service("small")) == max(count, SMALL.minimum)
    assert set(theirs) <= set(idle.in_service("small"))
    assert not set(theirs) & set(asked_for(idle))
    assert all(len(one["victims"]) == 2 for one in intents(idle, Direction.IN)[: (6 - count) // 2])


def test_a_vm_that_another_party_protects_once_the_agent_gave_it_back_is_theirs_also_after_a_restart(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(SMALL,), sizes=(3,), limits=QUICK, protect_busy=True)
    vm, *others = world.in_service("small")
    for busy, minutes in ((2.0, 2), (0.0, 1)):
        world.busy = {vm: busy} | dict.fromkeys(others, 2.0)
        world.tick(minutes)
    protect(world, [vm])
    world.tick()
    world.restart()
    world.tick(8)
    assert vm in world.in_service("small")
    assert vm not in asked_for(world)
    assert vm not in FleetStore(world.ledger).loop_state("web").protected


def test_a_vm_that_aws_refuses_gives_its_place_to_the_next_in_the_same_minute(idle: World) -> None:
    (stubborn,) = first_to_go(idle, 1)
    idle.fault("fail_terminate", instance_ids=[stubborn])
    idle.tick()
    (outcome,) = [one for one in idle.reports[-1].outcomes if one.status.final]
    assert (outcome.status, outcome.achieved) == (Status.DONE, 2)
    assert [(one.vm, one.reason) for one in outcome.refusals] == [(stubborn, Reason.REMOVAL_REFUSED)]
    assert stubborn not in [call["InstanceId"] for call in carried_out(idle, TERMINATE)]
    idle.tick(5)
    assert idle.in_service("small") == [stubborn]


def test_a_refusal_is_remembered_for_longer_each_time_and_reported_from_the_third_on(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(replace(SMALL, minimum=0),), sizes=(3,), limits=replace(QUICK, max_step_in=1))
    world.tick()
    (stubborn,) = first_to_go(world, 1)
    world.fault("fail_terminate", instance_ids=[stubborn])
    world.tick(30)
    assert world.in_service("small") == [stubborn]
    assert 3 <= asked_for(world)[stubborn] <= 8, "thirty minutes of asking each minute before"
    assert {event.about for event in world.events if event.reason is Reason.REMOVAL_REFUSED} == {stubborn}
    (mark,) = FleetStore(world.ledger).loop_state("web").refusals
    assert (mark.vm, mark.length_s) == (stubborn, min(LONGEST_S, FIRST_S * 2 ** (mark.times - 1)))


@pytest.mark.parametrize("seed", [0, *exhaustive(1, 2)])
def test_with_any_set_of_vms_that_may_not_go_all_others_that_should_go_do(idle: World, seed: int) -> None:
    order = idle.in_service("small")
    draw = random.Random(seed)
    theirs, stubborn = draw.sample(order, 2), draw.sample(order, draw.randint(1, 3))
    protect(idle, theirs)
    idle.fault("fail_terminate", instance_ids=stubborn)
    idle.tick(8)
    assert set(idle.in_service("small")) == {*theirs, *stubborn}
    assert not set(theirs) & set(asked_for(idle))


def test_idle_vms_that_all_are_protected_are_named_in_the_decision_and_in_an_event(idle: World) -> None:
    theirs = idle.in_service("small")
    protect(idle, theirs)
    idle.tick(10)
    assert intents(idle, Direction.IN) == []
    assert {one.vm for one in idle.snapshot.groups[0].refused} == set(theirs)
    assert all(vm in idle.last.sentence for vm in theirs)
    assert {event.about for event in idle.events if event.reason is Reason.REMOVAL_REFUSED} == set(theirs)
    protect(idle, theirs[:2], protected=False)
    idle.tick(3)
    assert not set(theirs[:2]) & set(idle.in_service("small")), "protection is read anew, not remembered"


def test_no_busy_vm_begins_to_drain_because_an_idle_one_may_not_go(idle: World) -> None:
    order = first_to_go(idle, 6)
    for vm in order[1:]:
        idle.busy[vm] = 2.0
    idle.fault("fail_terminate", instance_ids=order[:1])
    idle.tick(20)
    assert set(asked_for(idle)) == {order[0]}
    assert len(idle.in_service("small")) == 6
    assert told(idle, Reason.DRAINING) == []


@pytest.mark.parametrize("unprotect_new", [False, True])
def test_vms_that_their_group_protects_at_the_launch_and_never_work_go_where_the_setting_lets_them(
    make_world: MakeWorld, unprotect_new: bool
) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), protect_busy=True, unprotect_new=unprotect_new)
    first = world.in_service("small")
    protect(world, first[:1])
    world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, NewInstancesProtectedFromScaleIn=True)
    world.submit(6)
    world.tick(3)
    launched = set(world.in_service("small")) - set(first)
    assert launched
    world.waiting = 0
    world.restart()
    world.tick(8)
    left = set(world.in_service("small"))
    assert left == {first[0]} | (set() if unprotect_new else launched)


def test_a_protected_vm_of_a_group_at_its_minimum_is_no_refusal(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.owner.set_instance_protection(
        AutoScalingGroupName=SMALL.name, InstanceIds=world.in_service("small"), ProtectedFromScaleIn=True
    )
    world.tick(20)
    assert told(world, Reason.REMOVAL_REFUSED) == []


def test_jobs_that_wait_for_a_paused_fleet_without_vms_are_no_input_that_repeats(
    make_world: MakeWorld,
) -> None:
    world = make_world(groups=(MEDIUM,), sizes=(0,))
    world.tick()
    pause = Pause(PauseScope.ALL, "me", "maintenance", world.agent_clock.now(), None)
    world.ledger.pause("autoscaling", "web", pause)
    world.submit(5)
    world.tick(18)
    assert told(world, Reason.INPUT_REPEATS) == []
