"""Launches take time: Pending first, in service after the launch delay, and the diary tells it."""

from __future__ import annotations

import datetime

from tests.simulator.aws.world import START, World


def test_new_instances_are_pending_until_their_launch_delay_has_passed(world: World) -> None:
    world.group(size=(0, 3, 10))
    world.control.advance(44.9)
    assert world.states() == ["Pending", "Pending", "Pending"]
    assert {world.machine_state(one) for one in world.ids()} == {"pending"}
    world.control.advance(97.0 - 44.9)
    assert world.states() == ["InService", "InService", "InService"]
    assert {world.machine_state(one) for one in world.ids()} == {"running"}


def test_a_launch_is_an_activity_that_ends_when_the_instance_serves(world: World) -> None:
    world.ready_group(size=(0, 0, 10))
    world.desire(1)
    (running,) = world.activities()
    (instance_id,) = world.ids()
    assert running["StatusCode"] == "InProgress"
    assert running["Progress"] == 30
    assert running["Description"] == f"Launching a new EC2 instance: {instance_id}"
    assert running["StartTime"].timestamp() == START
    assert "changing the desired capacity from 0 to 1" in running["Cause"]
    assert "increasing the capacity from 0 to 1" in running["Cause"]
    assert "EndTime" not in running
    world.control.advance(97.0)
    (done,) = world.activities()
    assert done["StatusCode"] == "Successful"
    assert done["Progress"] == 100
    assert datetime.timedelta(seconds=45) <= done["EndTime"] - done["StartTime"] <= datetime.timedelta(seconds=97)
