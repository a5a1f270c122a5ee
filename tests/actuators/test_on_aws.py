"""What only a cloud can show of the actuator beside killed agents; the loop on a cloud is in tests/faults."""

from __future__ import annotations

import pytest

from agent.autoscaling.decision import drain_settings
from agent.settings import Settings
from domain.decisions import Direction, Reason, Status
from domain.errors import CloudError
from tests.actuators.shift import Shift


def test_in_observe_mode_no_change_leaves_the_process(shift: Shift) -> None:
    shift.start_agent(read_only=True)
    first = shift.serving()[0]
    for intent in (
        shift.intent(Direction.OUT, target=4),
        shift.intent(Direction.IN, victims=[first]),
        shift.intent(Direction.REPLACE, victims=[first]),
    ):
        for outcome in (shift.apply(intent), shift.tick(intent)):
            assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.OBSERVE_MODE)
    assert shift.tend({first: 2.0}) == []
    with pytest.raises(CloudError, match="observe mode"):
        shift.session.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web-s", DesiredCapacity=9)
    assert shift.mutations == []


def test_a_busy_vm_survives_a_size_lowered_by_hand(shift: Shift) -> None:
    first, second = shift.serving()
    assert shift.tend({first: 2.0, second: 0.0}) == [("protected", "web-s")]
    shift.world.desire(1, "web-s")
    shift.control.advance(60.0)
    assert shift.serving() == [first]


def test_what_did_come_of_a_scale_out_is_kept_while_aws_has_no_more(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=6)
    shift.apply(intent)
    vms = set(shift.serving())
    shift.control.add_fault("capacity", instance_type="m5a.large")
    lost = sorted(vms)[:2]
    shift.world.client("ec2").terminate_instances(InstanceIds=lost)
    shift.control.advance(120.0)
    outcome = shift.settle(intent, shift.follow(intent))
    assert (outcome.status, outcome.reason, outcome.asked, outcome.achieved) == (
        *(Status.PARTIAL, Reason.NO_CAPACITY, 4, 2),
    )
    assert set(shift.serving()) == vms - set(lost)


def test_the_deadline_of_a_drain_is_the_fleets_own() -> None:
    groups = {"s": {"vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}}
    settings = Settings(fleets={"web": {"groups": groups, "drain_deadline_s": 7200.0}, "other": {"groups": groups}})
    deadlines = [drain_settings(settings, name).deadline_s for name in ("web", "other", "found by its tags")]
    assert deadlines == [7200.0, 3600.0, 3600.0]
