"""Scaling in: by VM id, only what is still in service, and never below the requested size."""

from domain.decisions import Direction, Reason, Status
from tests.actuators.shift import Shift

TERMINATE = "TerminateInstanceInAutoScalingGroup"


def test_the_named_vms_leave_and_the_size_falls_with_them(shift: Shift) -> None:
    first, second = shift.serving()
    intent = shift.intent(Direction.IN, victims=[second])
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.asked, outcome.achieved) == (Status.DONE, Reason.DONE, 1, 1)
    assert shift.mutations == [(TERMINATE, second)]
    shift.control.advance(60.0)
    assert shift.serving() == [first]
    assert shift.group().desired == 1


def test_a_victim_that_is_gone_already_is_not_asked_for(shift: Shift) -> None:
    first, second = shift.serving()
    intent = shift.intent(Direction.IN, victims=[first, second])
    shift.world.client("ec2").terminate_instances(InstanceIds=[first])
    shift.world.groups.suspend_processes(AutoScalingGroupName="web-s", ScalingProcesses=["Launch"])
    shift.control.advance(120.0)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.achieved) == (Status.DONE, 2)
    assert shift.mutations == [(TERMINATE, second)]


def test_a_vm_protected_by_another_party_stays(shift: Shift) -> None:
    first, second = shift.serving()
    shift.world.groups.set_instance_protection(
        AutoScalingGroupName="web-s", InstanceIds=[first], ProtectedFromScaleIn=True
    )
    intent = shift.intent(Direction.IN, victims=[first, second])
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.PARTIAL, Reason.PROTECTED, 1)
    assert first in outcome.detail
    assert shift.mutations == [(TERMINATE, second)]


def test_three_of_five_leave_and_only_the_other_two_are_tried_again(shift: Shift) -> None:
    shift.world.desire(6, "web-s")
    shift.control.ready_now()
    victims = shift.serving()[:5]
    stubborn = victims[1:3]
    shift.control.add_fault("fail_terminate", instance_ids=stubborn, count=2)
    intent = shift.intent(Direction.IN, victims=victims)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.asked, outcome.achieved) == (Status.IN_PROGRESS, 5, 3)
    assert outcome.detail.startswith("3 of 5 terminated; ")
    assert all(vm in outcome.detail for vm in stubborn)
    outcome = shift.tick(intent)
    assert (outcome.status, outcome.achieved) == (Status.DONE, 5)
    assert [about for _, about in shift.mutations] == [*victims, *stubborn]
    assert shift.group().desired == 1


def test_a_vm_that_aws_refuses_for_good_is_named_and_the_others_leave(shift: Shift) -> None:
    victims = shift.serving()

    def detach_the_first() -> None:
        if shift.mutations == []:
            shift.world.groups.detach_instances(
                AutoScalingGroupName="web-s", InstanceIds=victims[:1], ShouldDecrementDesiredCapacity=False
            )

    shift.start_agent(fence=detach_the_first)
    outcome = shift.apply(shift.intent(Direction.IN, victims=victims))
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.PARTIAL, Reason.PERMANENT_FAILURE, 1)
    assert victims[0] in outcome.detail


def test_two_that_never_leave_make_it_partial_at_the_deadline(shift: Shift) -> None:
    shift.world.desire(6, "web-s")
    shift.control.ready_now()
    victims = shift.serving()[:5]
    shift.control.add_fault("fail_terminate", instance_ids=victims[3:])
    intent = shift.intent(Direction.IN, victims=victims, deadline_s=180.0)
    outcome = shift.settle(intent, shift.apply(intent))
    assert (outcome.status, outcome.reason, outcome.asked, outcome.achieved) == (
        Status.PARTIAL,
        Reason.OVERDUE,
        5,
        3,
    )
    assert [vm for vm in victims if vm in outcome.detail] == victims[3:]
    assert shift.group().desired == 3
    assert sorted(shift.serving()) == sorted([*victims[3:], *set(shift.serving()) - set(victims)])


def test_a_replacement_keeps_the_size_and_brings_another_vm(shift: Shift) -> None:
    first, second = shift.serving()
    intent = shift.intent(Direction.REPLACE, victims=[first])
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.asked, outcome.achieved) == (Status.DONE, 1, 1)
    shift.control.advance(180.0)
    assert shift.group().desired == 2
    assert len(shift.serving()) == 2
    assert second in shift.serving()
    assert first not in shift.serving()
    assert shift.mutations == [(TERMINATE, first)]
