"""Scale-in protection: on busy VMs, off idle ones, where it differs, and never off what another party protected."""

from __future__ import annotations

from domain.decisions import Direction, Status
from tests.actuators.shift import Shift

PROTECT = "SetInstanceProtection"


def protected(shift: Shift, key: str = "s") -> set[str]:
    return {instance.vm for instance in shift.group(key).instances if instance.protected}


def by_hand(shift: Shift, vm: str) -> None:
    shift.world.groups.set_instance_protection(
        AutoScalingGroupName="web-s", InstanceIds=[vm], ProtectedFromScaleIn=True
    )


def test_protection_follows_the_work_with_a_call_per_change_and_none_without(shift: Shift) -> None:
    first, second = shift.serving()
    assert shift.tend({first: 2.0, second: 0.0}) == [("protected", "web-s")]
    assert protected(shift) == {first}
    assert shift.tend({first: 1.0, second: 0.0}) == []
    (event,) = shift.tend_events({first: 0.0, second: None})
    assert first in event.detail
    assert protected(shift) == set()
    assert shift.mutations == [(PROTECT, first)] * 2


def test_protection_left_by_a_crash_is_swept_once_the_vm_is_idle(shift: Shift) -> None:
    first, second = shift.serving()
    shift.tend({first: 2.0, second: 2.0})
    shift.start_agent(owned_protection=[second])
    shift.tend({first: 2.0, second: 0.0})
    assert protected(shift) == {first}
    shift.tend({first: 0.0, second: 0.0})
    assert protected(shift) == set()


def test_a_victim_that_we_protected_ourselves_may_still_be_chosen(shift: Shift) -> None:
    first = shift.serving()[0]
    shift.tend({first: 2.0})
    assert shift.apply(shift.intent(Direction.IN, victims=[first])).status is Status.DONE


def test_protection_whose_answer_got_lost_is_still_ours_to_take_off(shift: Shift) -> None:
    first = shift.serving()[0]
    shift.control.add_fault("timeout_after", operations=[PROTECT], count=1)
    assert shift.tend({first: 2.0}) == []
    shift.tend({first: 0.0})
    assert protected(shift) == set()


def test_calls_are_bounded_and_the_rest_follows_at_the_next_tick(shift: Shift) -> None:
    shift.world.groups.update_auto_scaling_group(AutoScalingGroupName="web-s", MaxSize=120, DesiredCapacity=120)
    shift.control.ready_now()
    busy = dict.fromkeys(shift.serving(), 2.0)
    shift.tend(busy)
    assert len(protected(shift)) == 100
    shift.tend(busy)
    assert len(protected(shift)) == 120
    assert [operation for operation, _ in shift.mutations] == [PROTECT] * 3


def test_a_busy_vm_survives_a_size_lowered_by_hand(shift: Shift) -> None:
    first, second = shift.serving()
    shift.tend({first: 2.0, second: 0.0})
    shift.world.desire(1, "web-s")
    shift.control.advance(60.0)
    assert shift.serving() == [first]
