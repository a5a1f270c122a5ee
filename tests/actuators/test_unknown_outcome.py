"""A call without a response: read back first, repeat only what had no effect."""

import pytest

from domain.decisions import Direction, Reason, Status
from tests.actuators.shift import Shift

TERMINATE = "TerminateInstanceInAutoScalingGroup"


def test_a_call_that_never_gets_through_is_tried_once_a_tick_and_given_up_at_the_deadline(shift: Shift) -> None:
    shift.control.add_fault("timeout_before", operations=["SetDesiredCapacity"])
    intent = shift.intent(Direction.OUT, target=4, deadline_s=180.0)
    outcome = shift.settle(intent, shift.apply(intent))
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.FAILED, Reason.OVERDUE, 0)
    assert shift.mutations == [("SetDesiredCapacity", "4")] * 3


@pytest.mark.parametrize("direction", [Direction.IN, Direction.REPLACE])
def test_a_termination_that_took_effect_is_not_repeated(shift: Shift, direction: Direction) -> None:
    first, second = shift.serving()
    shift.control.add_fault("timeout_after", operations=[TERMINATE], count=1)
    intent = shift.intent(direction, victims=[first])
    assert shift.apply(intent).status is Status.UNKNOWN
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.achieved) == (Status.DONE, 1)
    assert shift.mutations == [(TERMINATE, first)]
    assert second in shift.serving()
    assert shift.group().desired == (1 if direction is Direction.IN else 2)


@pytest.mark.parametrize("direction", [Direction.IN, Direction.REPLACE])
def test_only_the_vm_whose_termination_did_not_happen_is_asked_for_again(shift: Shift, direction: Direction) -> None:
    shift.world.desire(4, "web-s")
    shift.control.ready_now()
    victims = shift.serving()[:3]
    shift.control.add_fault("timeout_before", operations=[TERMINATE], instance_ids=[victims[1]], count=1)
    intent = shift.intent(direction, victims=victims)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.achieved) == (Status.UNKNOWN, 1)
    outcome = shift.settle(intent, shift.tick(intent))
    assert (outcome.status, outcome.achieved) == (Status.DONE, 3)
    assert [vm for _, vm in shift.mutations] == [victims[0], victims[1], victims[1], victims[2]]
    assert shift.group().desired == (1 if direction is Direction.IN else 4)
