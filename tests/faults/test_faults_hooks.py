"""Draining through a lifecycle hook: no VM is stuck beyond its deadline, and no job is killed before its grace."""

from __future__ import annotations

import pytest

from domain.decisions import Mode, Reason
from tests.faults.world import AGENT_KEY, MakeWorld, World

HEARTBEAT_S = 180.0
"""The heartbeat timeout of the world's hooks."""


def calls_for(world: World, operation: str, vm: str) -> list[float]:
    """When AWS was asked this for the VM, in seconds of the world's clock."""
    calls = world.control.mutations(access_key=AGENT_KEY, operation=operation)
    return [float(call["at"]) for call in calls if call["params"].get("InstanceId") == vm]


def heartbeats(world: World, vm: str) -> list[float]:
    return calls_for(world, "RecordLifecycleActionHeartbeat", vm)


def completions(world: World, vm: str) -> list[float]:
    return calls_for(world, "CompleteLifecycleAction", vm)


def state_of(world: World, vm: str) -> str | None:
    return next((state for _, one, state in world.vms() if one == vm), None)


def told(world: World, vm: str) -> list[Reason]:
    return [event.reason for event in world.events if event.about == vm]


def begin_drain(world: World) -> str:
    """Turn until one of the idle VMs drains; return its id."""
    for _ in range(5):
        world.tick()
        held = [vm for _, vm, state in world.vms() if state == "Terminating:Wait"]
        if held:
            return held[0]
    raise AssertionError("nothing was scaled in")


@pytest.fixture
def drained(make_world: MakeWorld) -> tuple[World, str]:
    """A world in which one of two idle VMs has just begun to drain, and that VM's id."""
    world = make_world(sizes=(2, 0, 0))
    return world, begin_drain(world)


def test_the_worker_is_told_to_stop_pulling_by_its_own_metadata(drained: tuple[World, str]) -> None:
    world, vm = drained
    (other,) = world.in_service("small")
    assert world.control.imds(vm, "autoscaling/target-lifecycle-state") == "Terminated"
    assert world.control.imds(other, "autoscaling/target-lifecycle-state") == "InService"


def test_an_idle_vm_is_let_go_as_soon_as_it_had_time_to_see_that_it_drains(drained: tuple[World, str]) -> None:
    world, vm = drained
    began = world.clock.now()
    world.tick()
    assert completions(world, vm) == [began + 60.0]
    world.tick()
    assert state_of(world, vm) is None
    assert heartbeats(world, vm) == []
    assert told(world, vm) == [Reason.DRAINING, Reason.DRAINED]


def test_a_busy_vm_is_kept_until_its_job_is_done(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.tick(12)
    assert state_of(world, vm) == "Terminating:Wait"
    assert completions(world, vm) == []
    world.busy[vm] = 0.0
    world.tick(2)
    assert state_of(world, vm) is None
    assert len(completions(world, vm)) == 1
    assert told(world, vm) == [Reason.DRAINING, Reason.DRAINED]


def test_a_draining_vm_is_no_capacity_and_is_not_drained_again(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.tick(3)
    small = world.snapshot.groups[0]
    assert (small.in_service, small.draining, small.requested) == (1, 1, 1)
    assert vm not in small.removable
    assert calls_for(world, "TerminateInstanceInAutoScalingGroup", vm) == [calls_at(world)]


def calls_at(world: World) -> float:
    (call,) = world.control.mutations(access_key=AGENT_KEY, operation="TerminateInstanceInAutoScalingGroup")
    return float(call["at"])


def test_a_completion_that_got_lost_is_sent_again(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 0, 0))
    world.owner.put_lifecycle_hook(AutoScalingGroupName="workers-s", LifecycleHookName="drain", HeartbeatTimeout=7200)
    vm = begin_drain(world)
    world.fault("lost_completion", count=1)
    world.tick()
    assert state_of(world, vm) == "Terminating:Wait"
    world.tick(3)
    assert state_of(world, vm) is None
    assert len(completions(world, vm)) == 2


def test_a_vm_whose_completions_all_get_lost_goes_when_its_hook_runs_out(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.fault("lost_completion")
    began = world.clock.now()
    while state_of(world, vm) is not None and world.clock.now() < began + 3600.0:
        world.tick()
    assert world.clock.now() - began <= HEARTBEAT_S + 60.0
    assert heartbeats(world, vm) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("delay_s", [50.0, 100.0])
def test_a_heartbeat_that_takes_effect_late_costs_no_job(drained: tuple[World, str], delay_s: float) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.fault("late_heartbeat", delay_s=delay_s)
    world.tick(10)
    assert state_of(world, vm) == "Terminating:Wait"
    world.busy[vm] = 0.0
    world.tick(2)
    assert state_of(world, vm) is None


def test_one_heartbeat_that_fails_costs_no_job(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.tick(2)
    world.fault("throttle", operations=["RecordLifecycleActionHeartbeat"], count=1)
    world.tick(6)
    assert state_of(world, vm) == "Terminating:Wait"


def test_a_busy_vm_survives_a_restart_of_the_agent(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.tick(2)
    world.restart()
    world.tick(6)
    assert state_of(world, vm) == "Terminating:Wait"
    world.busy[vm] = 0.0
    world.tick(3)
    assert state_of(world, vm) is None


@pytest.mark.parametrize("restart", [False, True])
def test_a_busy_drain_is_kept_that_begins_or_is_found_while_no_vm_reports(make_world: MakeWorld, restart: bool) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    world.tick()
    vm, idle, _ = world.in_service("small")
    world.busy[vm] = 2.0
    world.tick(2)
    if not restart:
        world.cpu = None
        world.tick()
    for leaving in (vm, idle):
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=False)
    if restart:
        world.cpu = None
        world.tick(2)
        world.restart()
    world.tick(5)
    assert (state_of(world, vm), state_of(world, idle)) == ("Terminating:Wait", None)


@pytest.mark.parametrize("protect", [False, True])
def test_a_drain_that_took_a_job_is_kept_by_an_agent_that_starts_while_no_vm_reports(
    make_world: MakeWorld, protect: bool
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=protect)
    world.tick()
    vm, idle, _ = world.in_service("small")
    for leaving in (vm, idle):
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=False)
    world.busy[vm] = 2.0
    world.tick()
    world.cpu = None
    world.restart()
    world.tick()
    world.restart()
    world.tick(6)
    assert (state_of(world, vm), state_of(world, idle)) == ("Terminating:Wait", None)


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("then", ["unread", "observed", "begun in the silence"])
def test_a_busy_drain_outlasts_an_unread_or_observed_minute_and_a_restart(
    make_world: MakeWorld, then: str, protect: bool
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=protect)
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.tick(2)
    vm = world.in_service("small")[0]
    if then == "begun in the silence":
        world.cpu = None
        world.tick(2)
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)
    world.tick(2)
    world.cpu = None
    world.tick()
    if then == "unread":
        world.fault("throttle", operations=["DescribeAutoScalingGroups"], count=1)
        world.tick()
    elif then == "observed":
        world.restart(Mode.OBSERVE)
        world.tick()
    world.restart(Mode.ACT)
    world.tick(8)
    assert state_of(world, vm) == "Terminating:Wait"


def test_a_vm_without_an_agent_has_at_least_its_heartbeat_as_grace_and_then_goes(drained: tuple[World, str]) -> None:
    world, vm = drained
    world.busy[vm] = 1.0
    world.tick()
    (last,) = heartbeats(world, vm)
    for _ in range(5):
        gone_at = world.clock.now()
        if state_of(world, vm) != "Terminating:Wait":
            break
        world.pass_minute()
    assert last + HEARTBEAT_S <= gone_at <= last + HEARTBEAT_S + 60.0


def test_a_vm_that_stops_reporting_is_neither_kept_nor_let_go_before_its_hook_runs_out(
    drained: tuple[World, str],
) -> None:
    world, vm = drained
    began = world.clock.now()
    world.silent.add(vm)
    world.tick()
    assert told(world, vm) == [Reason.DRAINING]
    while state_of(world, vm) is not None and world.clock.now() < began + 3600.0:
        world.tick()
    assert HEARTBEAT_S <= world.clock.now() - began <= HEARTBEAT_S + 120.0
    assert heartbeats(world, vm) == completions(world, vm) == []


@pytest.mark.exhaustive
def test_a_job_that_never_ends_is_cut_at_the_drain_deadline_and_reported(drained: tuple[World, str]) -> None:
    world, vm = drained
    began = world.clock.now()
    world.busy[vm] = 1.0
    world.tick(58)
    assert state_of(world, vm) == "Terminating:Wait"
    world.tick(4)
    assert state_of(world, vm) is None
    (let_go,) = completions(world, vm)
    assert 3600.0 <= let_go - began <= 3660.0
    assert told(world, vm) == [Reason.DRAINING, Reason.DRAIN_TIMED_OUT]


def test_without_a_hook_a_busy_vm_is_never_chosen(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), hook=False)
    first, second, third = world.in_service("small")
    world.busy = {first: 1.0, second: 1.0}
    world.tick(8)
    assert sorted(world.in_service("small")) == sorted([first, second])
    assert calls_for(world, "TerminateInstanceInAutoScalingGroup", third) == [calls_at(world)]
