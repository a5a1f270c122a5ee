"""An agent whose ledger's disk is full or fails: nothing is executed that cannot be recorded, and it recovers."""

from __future__ import annotations

import pytest

from agent.alarms.book import alarms
from agent.autoscaling.report import with_fleets
from agent.autoscaling.state import FleetStore
from agent.kernel.turn import TurnReport
from domain.decisions import Decision, Reason, Status
from tests.faults.hands import before_call
from tests.faults.world import MakeWorld, World
from tests.real.filesystem.conftest import EXT4
from tests.real.filesystem.disks import Disk

LITTLE = 8 * 1024
"""Room for a part of the log's pages when it is folded into the file, not for all."""
only_ext4 = pytest.mark.parametrize("disk", [EXT4], indirect=True)


def fail_to_decide(world: World, disk: Disk, leave: int) -> Decision:
    """Fill the disk, let minutes pass until no decision can be recorded, and return the last one that was."""
    disk.fill(leave)
    for _ in range(60):
        recorded = world.last
        if world.tick().failure is not None:
            return recorded
    raise AssertionError("the ledger still takes decisions")


def assert_no_target_is_set_twice(world: World) -> None:
    targets = [
        (call["params"]["AutoScalingGroupName"], call["params"]["DesiredCapacity"])
        for call in world.control.mutations(access_key="agent", operation="SetDesiredCapacity")
    ]
    assert len(targets) == len(set(targets))


def numbers(world: World) -> list[int]:
    rows = FleetStore(world.ledger).decisions("web", newest_first=False, limit=1000)
    return [int(row.decision.decision_id.removeprefix("web-")) for row in rows]


def test_nothing_is_executed_while_the_disk_is_full_and_measuring_goes_on(world: World, disk: Disk) -> None:
    world.tick()
    fail_to_decide(world, disk, leave=0)
    world.submit(20)
    heard = world.intake.accepted
    for _ in range(3):
        report = world.tick()
        assert report.failure is not None
        assert report.decisions == report.outcomes == ()
        (alarm,) = alarms(with_fleets(TurnReport(report.at), report), lasting=True).values()
    assert alarm.reason is Reason.LEDGER_UNAVAILABLE
    assert world.mutations == []
    assert world.intake.accepted - heard == 3 * 6 * (4 + 3)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("leave", [0, LITTLE])
def test_the_fleet_is_scaled_by_itself_once_there_is_room_again(
    world: World, disk: Disk, leave: int, restarted: bool
) -> None:
    world.tick()
    if restarted:
        # A clean stop folds the log whole, so that the next fold has little to add to the file.
        world.restart()
        world.tick()
    recorded = fail_to_decide(world, disk, leave)
    world.submit(20)
    for _ in range(3):
        (alarm,) = alarms(with_fleets(TurnReport(0.0), world.tick()), lasting=True).values()
        assert alarm.reason is Reason.LEDGER_UNAVAILABLE
    disk.free()
    assert world.tick().failure is None
    world.tick(2)
    assert sum(world.desired().values()) > 1
    assert_no_target_is_set_twice(world)
    assert numbers(world) == [*range(1, len(numbers(world)) + 1)]
    assert world.ledger.damage() == ""
    assert FleetStore(world.ledger).decision(recorded.decision_id).decision == recorded


@only_ext4
def test_a_disk_that_fails_between_decision_and_outcome_costs_no_second_change(world: World, disk: Disk) -> None:
    world.tick()
    before_call(world, "SetDesiredCapacity", disk.fail)
    world.submit(20)
    assert world.tick().failure is not None
    assert world.count("SetDesiredCapacity") == 1, "the call that was on its way; the next is not made"
    for _ in range(2):
        assert world.tick().failure is not None
    assert world.count("SetDesiredCapacity") == 1
    disk.mend()
    world.tick(3)
    assert world.ledger.open_intents() == ()
    assert_no_target_is_set_twice(world)
    assert {outcome.status for outcome in world.outcomes if outcome.status.final} == {Status.DONE}
    assert numbers(world) == [*range(1, len(numbers(world)) + 1)]


@only_ext4
def test_a_drain_is_not_begun_while_the_disk_has_failed(make_world: MakeWorld, disk: Disk) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick()
    disk.fail()
    for _ in range(4):
        assert world.tick().failure is not None
    assert world.mutations == []
    disk.mend()
    world.tick(2)
    assert world.desired()["small"] == 1


@only_ext4
def test_a_spot_notice_that_cannot_be_recorded_comes_again(make_world: MakeWorld, disk: Disk) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    world.tick()
    disk.fail()
    (vm,) = world.in_service("small")[:1]
    world.control.spot_notice([vm], queue=world.notices)
    assert world.tick().failure is not None
    assert world.mutations == []
    disk.mend()
    world.tick()
    assert [intent.victims for intent in world.last.intents] == [(vm,)]
    assert [event.about for event in world.events if event.reason is Reason.SPOT_INTERRUPTION] == [vm]
