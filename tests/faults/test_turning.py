"""The loop turns: it scales out when work waits, counts what boots once, and scales in when VMs idle."""

from __future__ import annotations

from domain.decisions import Direction, Mode, Reason, Status
from tests.faults.world import MakeWorld, World


def test_waiting_work_brings_vms_through_an_absolute_target(world: World) -> None:
    world.submit(20)
    world.tick()
    assert world.last.reason is Reason.QUEUE_GREW
    assert world.last.intents[0].direction is Direction.OUT
    assert sum(world.desired().values()) > 1
    assert {name for name, _ in world.mutations} == {"SetDesiredCapacity"}


def test_pending_capacity_counts_once(world: World) -> None:
    world.submit(20)
    world.tick()
    asked = world.desired()
    world.tick()
    assert world.snapshot.booting != (0, 0, 0)
    assert world.desired() == asked
    assert world.last.reason is Reason.QUEUE_COVERED


def test_an_intent_is_done_when_the_group_holds_its_target(world: World) -> None:
    world.submit(20)
    world.tick(3)
    assert [outcome.status for outcome in world.outcomes if outcome.status.final] == [Status.DONE] * len(
        {outcome.intent_id for outcome in world.outcomes}
    )
    assert world.ledger.open_intents() == ()


def test_idle_vms_are_drained_and_leave(world: World) -> None:
    world.submit(20)
    world.tick(3)
    assert len(world.vms()) > 1
    world.waiting = 0
    world.tick(8)
    assert world.desired() == {"small": 1, "medium": 0, "large": 0}
    assert len(world.vms()) == 1
    assert world.count("TerminateInstanceInAutoScalingGroup") > 0


def test_a_quiet_fleet_gets_no_call_that_changes_anything(world: World) -> None:
    world.tick(5)
    assert world.last.reason is Reason.QUEUE_COVERED
    assert world.mutations == []


def test_observe_mode_decides_and_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world(mode=Mode.OBSERVE)
    world.submit(50)
    world.tick(4)
    assert world.last.reason is Reason.OBSERVE_MODE
    assert sum(world.last.proposal.desired) > 1
    assert world.mutations == []
    assert world.desired() == {"small": 1, "medium": 0, "large": 0}
