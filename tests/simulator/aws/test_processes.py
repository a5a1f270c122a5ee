"""Suspended processes hold, health checks replace late, refreshes show that they run, zones even out on request."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


def suspend(world: World, *processes: str) -> None:
    world.groups.suspend_processes(AutoScalingGroupName="web", ScalingProcesses=list(processes))


def resume(world: World) -> None:
    world.groups.resume_processes(AutoScalingGroupName="web")


def test_a_suspended_launch_waits_for_its_resumption(world: World) -> None:
    world.ready_group(size=(0, 1, 5))
    suspend(world, "Launch")
    assert [one["ProcessName"] for one in world.show()["SuspendedProcesses"]] == ["Launch"]
    world.desire(3)
    world.control.advance(300.0)
    assert world.states() == ["InService"]
    resume(world)
    assert world.show()["SuspendedProcesses"] == []
    assert world.states() == ["InService", "Pending", "Pending"]


def test_a_suspended_termination_keeps_the_machines(world: World) -> None:
    first, second, _ = world.ready_group(size=(0, 3, 5))
    suspend(world, "Terminate")
    world.desire(2)
    world.groups.terminate_instance_in_auto_scaling_group(InstanceId=second, ShouldDecrementDesiredCapacity=True)
    world.control.advance(300.0)
    assert world.states() == ["InService"] * 3
    resume(world)
    world.control.advance(15.0)
    assert world.show()["DesiredCapacity"] == 1
    assert len(world.ids()) == 1
    assert second not in world.ids()
    assert world.machine_state(first) in ("running", "terminated")


def test_a_machine_terminated_outside_is_replaced_after_the_health_check_only(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5))
    world.client("ec2").terminate_instances(InstanceIds=[first])
    world.control.advance(59.9)
    assert world.states() == ["InService", "InService"]
    world.control.advance(0.1)
    assert world.states() == ["InService", "Pending", "Terminating"]
    causes = [one["Cause"] for one in world.activities()]
    assert "an instance was launched in response to an unhealthy instance needing to be replaced" in causes[0]
    assert "EC2 health check indicating it has been terminated or stopped" in causes[1]
    world.control.advance(15.0)
    assert first not in world.ids()


def test_an_unhealthy_machine_stays_while_replacing_is_suspended(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5))
    suspend(world, "ReplaceUnhealthy")
    world.client("ec2").terminate_instances(InstanceIds=[first])
    world.control.advance(600.0)
    assert {one["InstanceId"]: one["HealthStatus"] for one in world.show()["Instances"]}[first] == "Unhealthy"
    resume(world)
    assert world.states() == ["InService", "Pending", "Terminating"]


def test_a_machine_reported_sick_is_replaced_after_its_grace_period(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5), HealthCheckGracePeriod=120)
    world.groups.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    assert world.states() == ["InService", "InService"]
    world.control.advance(120.0)
    world.groups.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    assert world.states() == ["InService", "Pending", "Terminating"]


def test_a_refresh_runs_can_be_cancelled_and_ends(world: World) -> None:
    world.ready_group(size=(0, 2, 5))
    refresh = world.groups.start_instance_refresh(AutoScalingGroupName="web")["InstanceRefreshId"]
    with pytest.raises(ClientError, match="InstanceRefreshInProgress"):
        world.groups.start_instance_refresh(AutoScalingGroupName="web")
    world.control.advance(150.0)
    (running,) = world.groups.describe_instance_refreshes(AutoScalingGroupName="web")["InstanceRefreshes"]
    assert (running["InstanceRefreshId"], running["Status"], running["PercentageComplete"]) == (
        refresh,
        "InProgress",
        50,
    )
    world.groups.cancel_instance_refresh(AutoScalingGroupName="web")
    with pytest.raises(ClientError, match="ActiveInstanceRefreshNotFound"):
        world.groups.cancel_instance_refresh(AutoScalingGroupName="web")
    world.groups.start_instance_refresh(AutoScalingGroupName="web")
    world.control.advance(300.0)
    shown = world.groups.describe_instance_refreshes(AutoScalingGroupName="web")["InstanceRefreshes"]
    assert [one["Status"] for one in shown] == ["Successful", "Cancelled"]


@pytest.mark.parametrize(
    ("asked", "suspended", "zones"),
    [
        (True, False, ["us-east-1a", "us-east-1b"]),
        (True, True, ["us-east-1a", "us-east-1a"]),
        (False, False, ["us-east-1a", "us-east-1a"]),
    ],
)
def test_a_lopsided_group_evens_out_its_zones_only_where_asked(asked: bool, suspended: bool, zones: list[str]) -> None:
    running = start_in_thread(VirtualClock(START), seed=3, zone_rebalance=asked)
    world = World(running, CloudControl(running.endpoint))
    try:
        world.ready_group(size=(0, 4, 5), AvailabilityZones=["us-east-1a", "us-east-1b"])
        if suspended:
            suspend(world, "AZRebalance")
        for instance in world.show()["Instances"]:
            if instance["AvailabilityZone"] == "us-east-1b":
                world.groups.terminate_instance_in_auto_scaling_group(
                    InstanceId=instance["InstanceId"], ShouldDecrementDesiredCapacity=True
                )
        world.control.advance(30.0)
        assert {one["AvailabilityZone"] for one in world.show()["Instances"]} == {"us-east-1a"}
        world.control.advance(600.0)
        assert sorted(one["AvailabilityZone"] for one in world.show()["Instances"]) == zones
    finally:
        world.close()
