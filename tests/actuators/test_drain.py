"""Drains: kept while work runs, let go when idle, never stuck past the deadline."""

from __future__ import annotations

from typing import Any

from actuators.drain import DrainSettings
from agent.autoscaling.part import drain_settings
from agent.settings import Settings
from domain.decisions import Direction
from tests.actuators.shift import FLEET, Shift

HEARTBEAT, COMPLETE = "RecordLifecycleActionHeartbeat", "CompleteLifecycleAction"
TERMINATE = "TerminateInstanceInAutoScalingGroup"


def begin_drain(shift: Shift, *, heartbeat_s: int = 300, hook: str = "drain", **about: Any) -> str:
    """Put a drain hook on the group, terminate a VM by the actuator, and return its id."""
    shift.world.groups.put_lifecycle_hook(
        AutoScalingGroupName="web-s",
        LifecycleHookName=hook,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=heartbeat_s,
    )
    shift.start_agent(**about)
    victim = shift.serving()[0]
    shift.apply(shift.intent(Direction.IN, victims=[victim]))
    return victim


def state(shift: Shift, vm: str) -> str:
    return next(
        (one["LifecycleState"] for one in shift.world.show("web-s")["Instances"] if one["InstanceId"] == vm), "gone"
    )


def after_termination(shift: Shift) -> list[tuple[str, str]]:
    return [one for one in shift.mutations if one[0] not in (TERMINATE, "SetInstanceProtection")]


def test_a_busy_vm_is_kept_by_heartbeats_and_let_go_when_it_is_idle(shift: Shift) -> None:
    vm = begin_drain(shift)
    assert shift.tend({vm: 2.0}) == [("draining", vm)]
    for _ in range(11):
        assert shift.tend({vm: 2.0}) == []
    assert state(shift, vm) == "Terminating:Wait"  # 12 minutes with a hook of 5
    assert after_termination(shift) == [(HEARTBEAT, vm)] * 6  # once per quarter of the period, not per tick
    assert shift.tend({vm: 0.0}) == [("drained", vm)]
    assert after_termination(shift)[-1] == (COMPLETE, vm)
    shift.control.advance(60.0)
    assert state(shift, vm) == "gone"


def test_a_drain_past_its_deadline_is_ended_and_reported(shift: Shift) -> None:
    vm = begin_drain(shift)
    happened = [event for _ in range(15) for event in shift.tend({vm: 2.0})]
    assert happened == [("draining", vm), ("drain_timed_out", vm)]
    assert shift.now - shift.world.activities("web-s")[0]["StartTime"].timestamp() == 900.0
    assert after_termination(shift)[-1] == (COMPLETE, vm)
    assert COMPLETE not in [operation for operation, _ in after_termination(shift)[:-1]]


def test_each_fleet_has_its_own_deadline(shift: Shift) -> None:
    vm = begin_drain(shift, drain=lambda fleet: DrainSettings({FLEET.name: 180.0}[fleet]))
    happened = [event for _ in range(3) for event in shift.tend({vm: 2.0})]
    assert happened == [("draining", vm), ("drain_timed_out", vm)]
    assert shift.now - shift.world.activities("web-s")[0]["StartTime"].timestamp() == 180.0


def test_a_late_heartbeat_does_not_cost_the_job(shift: Shift) -> None:
    vm = begin_drain(shift)
    shift.control.add_fault("late_heartbeat", delay_s=60.0)
    for _ in range(10):
        shift.tend({vm: 2.0})
    assert state(shift, vm) == "Terminating:Wait"


def test_a_restart_gives_a_drain_no_new_time(shift: Shift) -> None:
    vm = begin_drain(shift)
    for _ in range(8):
        shift.tend({vm: 2.0})
    shift.start_agent()
    happened = [event for _ in range(7) for event in shift.tend({vm: 2.0})]
    assert happened == [("draining", vm), ("drain_timed_out", vm)]
    assert shift.now - shift.world.activities("web-s")[0]["StartTime"].timestamp() == 900.0


def test_a_denied_heartbeat_is_reported_and_the_rest_of_the_fleet_goes_on(shift: Shift) -> None:
    vm, other = begin_drain(shift), shift.serving("m")[0]
    shift.control.add_fault("access_denied", operations=[HEARTBEAT])
    assert shift.tend({vm: 2.0, other: 3.0}) == [("draining", vm), ("credentials", vm), ("protected", "web-m")]


def test_a_busy_vm_that_only_a_hook_of_another_name_holds_is_told_of_once(shift: Shift) -> None:
    vm = begin_drain(shift, hook="finish-jobs")
    happened = [shift.tend({vm: 2.0}) for _ in range(4)]
    assert happened == [[], [("not_drained", vm)], [], []]
    assert after_termination(shift) == []


def test_an_idle_vm_that_only_a_hook_of_another_name_holds_is_not_told_of(shift: Shift) -> None:
    vm = begin_drain(shift, hook="a-upload-logs")
    assert [shift.tend({vm: busy}) for busy in (0.0, 0.0, 0.0)] == [[], [], []]
    assert after_termination(shift) == []


def test_the_deadline_of_a_drain_is_the_fleets_own() -> None:
    groups = {"s": {"vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}}
    settings = Settings(fleets={"web": {"groups": groups, "drain_deadline_s": 7200.0}, "other": {"groups": groups}})
    assert [drain_settings(settings, name).deadline_s for name in ("web", "other", "found by its tags")] == [
        *(7200.0, 3600.0, 3600.0),
    ]
