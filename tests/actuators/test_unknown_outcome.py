"""A call without a response: read back first, repeat only what had no effect."""

import pytest

from domain.decisions import Direction, Reason, Status
from domain.errors import FailureClass
from tests.actuators.shift import Shift

TERMINATE = "TerminateInstanceInAutoScalingGroup"


def test_a_lost_answer_to_a_size_that_was_set_costs_no_second_call(shift: Shift) -> None:
    shift.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], count=1)
    intent = shift.intent(Direction.OUT, target=4)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.failure) == (
        Status.UNKNOWN,
        Reason.UNKNOWN_OUTCOME,
        FailureClass.UNKNOWN_OUTCOME,
    )
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.achieved) == (Status.DONE, 2)
    assert shift.mutations == [("SetDesiredCapacity", "4")]
    assert len(shift.serving()) == 4


def test_a_size_that_was_never_set_is_asked_for_once_more(shift: Shift) -> None:
    shift.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    intent = shift.intent(Direction.OUT, target=4)
    assert shift.apply(intent).status is Status.UNKNOWN
    outcome = shift.tick(intent, 5.0)
    assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.ACCEPTED)
    assert shift.settle(intent, outcome).status is Status.DONE
    assert shift.mutations == [("SetDesiredCapacity", "4")] * 2
    assert len(shift.serving()) == 4


def test_a_call_that_never_gets_through_is_tried_once_a_tick_and_given_up_at_the_deadline(shift: Shift) -> None:
    shift.control.add_fault("timeout_before", operations=["SetDesiredCapacity"])
    intent = shift.intent(Direction.OUT, target=4, deadline_s=180.0)
    outcome = shift.settle(intent, shift.apply(intent))
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.FAILED, Reason.OVERDUE, 0)
    assert shift.mutations == [("SetDesiredCapacity", "4")] * 3


def test_an_answer_that_is_cut_off_by_the_clock_is_unknown_too(shift: Shift) -> None:
    shift.start_agent(read_timeout_s=1.0)
    shift.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], count=1, hold_s=1.5)
    intent = shift.intent(Direction.OUT, target=3)
    assert shift.apply(intent).status is Status.UNKNOWN
    assert shift.settle(intent, shift.tick(intent)).status is Status.DONE
    assert shift.mutations_soon(1) == [("SetDesiredCapacity", "3")]


def test_a_server_error_to_a_change_is_unknown_and_read_back(shift: Shift) -> None:
    shift.control.add_fault("internal_error", operations=["SetDesiredCapacity"], count=1)
    intent = shift.intent(Direction.OUT, target=3)
    assert shift.apply(intent).status is Status.UNKNOWN
    assert shift.settle(intent, shift.tick(intent)).status is Status.DONE
    assert shift.group().desired == 3


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


def test_a_termination_that_shows_in_the_size_but_not_yet_in_the_vms_is_waited_for(shift: Shift) -> None:
    victims = shift.serving()
    intent = shift.intent(Direction.IN, victims=victims[:1])
    observed = shift.observe()
    shift.apply(intent)
    stale = observed.groups["web-s"]
    lagging = type(stale)(stale.name, 1, 0, 10, stale.instances, stale.zones)
    outcome = shift.actuator.follow(intent, type(observed)(shift.now, {"web-s": lagging}), shift.now, shift.permit)
    assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.ACCEPTED)
    assert len(shift.mutations) == 1
