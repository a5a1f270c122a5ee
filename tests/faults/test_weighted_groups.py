"""A group whose sizes count weights and not VMs: its fleet is held, whoever asks and whenever it came to be so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agent.alarms.book import AlarmBook
from domain.decisions import Direction, Mode, Reason, Status
from tests.faults.world import LARGE, MEDIUM, QUICK, SMALL, World

Make = Callable[..., World]


def weigh(world: World, weight: int = 2, **sizes: Any) -> None:
    """Let one VM of the group `small` count as `weight`."""
    world.owner.update_auto_scaling_group(
        AutoScalingGroupName=SMALL.name,
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateName": SMALL.name, "Version": "$Latest"},
                "Overrides": [{"InstanceType": SMALL.vm_type.name, "WeightedCapacity": str(weight)}],
            }
        },
        **sizes,
    )
    world.control.ready_now()


def test_a_weighted_group_is_held_with_the_reason_and_nothing_is_sent(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    weigh(world, DesiredCapacity=4)
    serving = world.in_service("small")
    assert len(serving) == 2
    world.tick(2)
    world.submit(40)
    world.tick(25)
    assert world.mutations == []
    assert world.in_service("small") == serving
    assert world.last.reason is Reason.GROUP_UNSUPPORTED
    assert world.last.sentence == (
        "held: group small cannot be managed: the sizes of workers-s count weights and not VMs (one m5a.large counts "
        "as 2), and weights are not supported: set every WeightedCapacity of its overrides to 1 and replace the VMs "
        "that weigh more, or take it out of its fleet"
    )


def test_a_group_that_becomes_weighted_ends_its_open_change_and_its_deadline_ends_no_vm(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), limits=replace(QUICK, boot_deadline_s=300.0))
    world.tick(2)
    world.submit(20)
    world.tick()
    (intent,) = world.last.intents
    assert intent.direction is Direction.OUT
    sent = world.mutations
    weigh(world)
    serving = world.in_service("small")
    world.tick(10)
    assert world.mutations == sent
    assert world.in_service("small") == serving
    (ended,) = [outcome for outcome in world.outcomes if outcome.intent_id == intent.intent_id and outcome.status.final]
    assert (ended.status, ended.reason) == (Status.FAILED, Reason.GROUP_UNSUPPORTED)


def test_a_group_that_becomes_weighted_within_a_turn_is_noticed_before_the_call(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.tick(2)
    world.submit(20)
    observe = world.ports.actuator.observe

    def weighed_after_reading(*about: Any) -> Any:
        observed = observe(*about)
        weigh(world)
        return observed

    world.ports.actuator.observe = weighed_after_reading  # type: ignore[method-assign]
    world.tick()
    assert world.last.intents
    assert world.mutations == []
    assert [outcome.reason for outcome in world.outcomes] == [Reason.GROUP_UNSUPPORTED]


def test_the_event_and_the_alarm_come_once_and_end_when_the_weights_are_gone(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    book = AlarmBook()
    weigh(world)
    raised = [alarm for _ in range(3) for alarm in book.turn(world.tick())]
    assert [(alarm.reason, alarm.resolved) for alarm in raised] == [(Reason.GROUP_UNSUPPORTED, False)]
    world.restart()
    world.tick(2)
    weigh(world, 1)
    over = book.turn(world.tick())
    assert (Reason.GROUP_UNSUPPORTED, True) in [(alarm.reason, alarm.resolved) for alarm in over]
    assert [e.reason for e in world.events if "GROUP" in e.reason.name] == [
        Reason.GROUP_UNSUPPORTED,
        Reason.GROUP_SUPPORTED,
    ]
    world.submit(8)
    world.tick()
    assert world.last.intents


def test_other_fleets_go_on(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,), batch=(replace(MEDIUM, minimum=1),))
    weigh(world)
    world.batch_waiting = 20
    world.tick(3)
    assert {group for _, group in world.mutations} == {MEDIUM.name}


def test_observe_mode_proposes_no_size_in_the_wrong_unit(make_world: Make) -> None:
    world = make_world(groups=(SMALL, LARGE), sizes=(1, 0), mode=Mode.OBSERVE)
    weigh(world)
    world.submit(40)
    world.tick(3)
    assert (world.last.reason, world.last.desired) == (Reason.GROUP_UNSUPPORTED, ())
