"""Groups whose VMs weigh several capacity units: Trimtab decides VMs, and AWS is asked for units.

Whatever weighs what and whenever that changes, only VMs end that were chosen. A group whose next VM may have several
weights is held.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent.alarms.book import AlarmBook
from agent.autoscaling.explain import explain
from agent.autoscaling.report import MinuteReport, with_fleets
from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import fleet_status, status_lines
from agent.kernel.turn import TurnReport
from agent.ledger.codec import decode, encode
from domain.decisions import Direction, Mode, Reason, Status
from domain.snapshot import Snapshot
from tests.faults.world import LARGE, MEDIUM, QUICK, SMALL, MakeWorld, World, final_reasons
from tests.golden import check_wording
from tests.stages import exhaustive

Make = MakeWorld


def weigh(world: World, *weights: int, **sizes: Any) -> None:
    """Let one VM of the group `small` count as the first of these weights, and one of each larger type as the next."""
    types = (SMALL.vm_type.name, MEDIUM.vm_type.name, LARGE.vm_type.name)
    world.owner.update_auto_scaling_group(
        AutoScalingGroupName=SMALL.name,
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": {"LaunchTemplateName": SMALL.name, "Version": "$Latest"},
                "Overrides": [
                    {"InstanceType": name, "WeightedCapacity": str(weight)}
                    for name, weight in zip(types, weights, strict=False)
                ],
            }
        },
        **sizes,
    )
    world.control.ready_now()


def weigh_after_reading(world: World, *weights: int, **sizes: Any) -> None:
    """Let the owner weigh the group once, between the next reading and what is done about it."""
    observe = world.loop.actuator.observe

    def weighed(*about: Any) -> Any:
        world.loop.actuator.observe = observe  # type: ignore[method-assign]
        observed = observe(*about)
        weigh(world, *weights, **sizes)
        return observed

    world.loop.actuator.observe = weighed  # type: ignore[method-assign]


def weigh_no_more(world: World) -> None:
    """Take the overrides away: the VMs that are there keep their weight, new ones count as 1."""
    template = {"LaunchTemplateName": SMALL.name, "Version": "$Latest"}
    world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, LaunchTemplate=template)


def weighted(make_world: Make, weight: int, vms: int, *, minimum: int = 0, maximum: int = 60, **plan: Any) -> World:
    """Return a world whose group `small` counts each VM as `weight`, with this many busy VMs; bounds are units."""
    plan.setdefault("groups", (replace(SMALL, minimum=0),))
    world = make_world(sizes=(0,) * len(plan["groups"]), **plan)
    sizes = {"MinSize": minimum, "MaxSize": maximum, "DesiredCapacity": vms * weight}
    weigh(world, weight, **sizes)
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.tick(2)
    assert len(world.in_service("small")) == vms
    return world


def asked_for(world: World) -> list[int]:
    """Return every desired capacity that the agent asked AWS for."""
    calls = world.control.mutations(access_key="agent")
    return [int(call["params"]["DesiredCapacity"]) for call in calls if call["operation"] == "SetDesiredCapacity"]


def ended_by_aws(world: World) -> list[str]:
    """Return why AWS ended VMs of the group `small` that nobody named."""
    activities = world.owner.describe_scaling_activities(AutoScalingGroupName=SMALL.name, MaxRecords=100)["Activities"]
    return [a["Cause"] for a in activities if "was selected for termination" in a["Cause"]]


@pytest.mark.parametrize("weight", [3, *exhaustive(2, 7)])
def test_a_weighted_group_grows_to_the_vms_that_were_decided(make_world: Make, weight: int) -> None:
    world = weighted(make_world, weight, 1)
    world.submit(5)
    world.tick()
    (intent,) = world.last.intents
    assert (intent.before, intent.target) == (1, world.last.desired[0])
    assert asked_for(world) == [intent.target * weight]
    world.tick(2)
    assert len(world.in_service("small")) == intent.target
    assert final_reasons(world) == [Reason.DONE]
    assert (world.snapshot.requested, world.snapshot.groups[0].requested_units) == (
        (intent.target,),
        intent.target * weight,
    )
    assert ended_by_aws(world) == []


def test_the_maximum_of_aws_holds_in_units_and_that_of_the_settings_in_vms(make_world: Make) -> None:
    world = weighted(make_world, 2, 1, maximum=9)
    world.submit(100)
    world.tick(3)
    assert asked_for(world) == [8]
    assert len(world.in_service("small")) == 4
    world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, MaxSize=100)
    world.tick(4)
    assert len(world.in_service("small")) == SMALL.maximum
    assert asked_for(world)[-1] == 2 * SMALL.maximum
    assert ended_by_aws(world) == []


def test_idle_vms_end_one_by_one_by_their_own_weight_and_the_minimum_of_aws_holds(make_world: Make) -> None:
    world = weighted(make_world, 3, 5, minimum=4)
    world.busy = {}
    world.tick(12)
    assert len(world.in_service("small")) == 2
    assert world.desired() == {"small": 6}
    assert asked_for(world) == []
    assert world.count("TerminateInstanceInAutoScalingGroup") == 3
    assert ended_by_aws(world) == []


def test_a_desired_capacity_between_two_vms_is_the_larger_number_and_stays_so(make_world: Make) -> None:
    world = weighted(make_world, 4, 2)
    world.owner.set_desired_capacity(AutoScalingGroupName=SMALL.name, DesiredCapacity=9)
    world.control.ready_now()
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.tick(3)
    assert world.snapshot.requested == (3,)
    assert len(world.in_service("small")) == 3
    world.busy = {}
    world.tick(20)
    # The last VM stays: AWS lowers a desired capacity of 1 by no 4 units.
    assert (len(world.in_service("small")), world.desired()) == (1, {"small": 1})
    assert ended_by_aws(world) == []
    assert world.count("TerminateInstanceInAutoScalingGroup") == 2


def test_cost_counts_vms(make_world: Make) -> None:
    world = weighted(make_world, 5, 2)
    status = fleet_status(FleetStore(world.ledger), "web", world.agent_clock.now())
    assert status.cost_per_hour == pytest.approx(2 * SMALL.vm_type.price_per_hour)


def test_budget_admits_vms_at_their_price_whatever_they_weigh(make_world: Make) -> None:
    hourly = 3 * SMALL.vm_type.price_per_hour + 0.01
    world = weighted(make_world, 5, 1, limits=replace(QUICK, budget_per_hour=hourly))
    world.submit(100)
    world.tick(3)
    assert len(world.in_service("small")) == 3
    assert asked_for(world) == [15]


def test_what_aws_cannot_launch_is_given_back_in_units_and_no_vm_ends(make_world: Make) -> None:
    world = weighted(make_world, 2, 2)
    world.fault("capacity", instance_type=SMALL.vm_type.name)
    world.submit(20)
    world.tick(3)
    assert asked_for(world)[0] > 4
    assert asked_for(world)[-1] == world.desired()["small"] == 4
    assert Reason.NO_CAPACITY in final_reasons(world)
    assert len(world.in_service("small")) == 2
    assert ended_by_aws(world) == []


def test_status_explanation_and_record_tell_vms_and_units(make_world: Make) -> None:
    world = weighted(make_world, 2, 3)
    now = world.agent_clock.now()
    status = fleet_status(FleetStore(world.ledger), "web", now)
    assert (status.groups[0].requested, status.groups[0].requested_units, status.groups[0].weight) == (3, 6, 2)
    assert any("3 VMs = 6 units" in line for line in status_lines(status, now))
    record = FleetStore(world.ledger).newest("web")
    assert record is not None
    assert any("3 VMs = 6 units" in line for line in explain(record).seen)


def test_weights_that_come_between_reading_and_call_are_those_of_the_call(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.tick(2)
    world.submit(8)
    weigh_after_reading(world, 2, MaxSize=20)
    world.tick()
    (intent,) = world.last.intents
    assert asked_for(world) == [2 * intent.target]
    world.tick(2)
    assert len(world.in_service("small")) == intent.target
    assert ended_by_aws(world) == []


def test_a_size_that_no_longer_fits_once_the_vms_weigh_more_is_not_asked_for(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.tick(2)
    world.submit(40)
    weigh_after_reading(world, 5)
    world.tick()
    assert world.last.intents
    assert world.mutations == []
    assert [outcome.reason for outcome in world.outcomes] == [Reason.ABOVE_MAXIMUM]


def test_a_group_that_becomes_weighted_while_it_grows_gets_the_vms_that_were_decided(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,))
    world.tick(2)
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    world.submit(10)
    world.tick()
    (intent,) = world.last.intents
    sent = asked_for(world)
    weigh(world, 2, MaxSize=40, DesiredCapacity=2 * intent.target)
    world.tick(4)
    assert len(world.in_service("small")) >= intent.target
    assert all(size >= 2 * intent.target for size in asked_for(world)[len(sent) :])
    assert ended_by_aws(world) == []


def test_vms_keep_the_weight_that_their_overrides_lost(make_world: Make) -> None:
    world = weighted(make_world, 4, 3)
    old = world.in_service("small")
    weigh_no_more(world)
    world.submit(20)
    world.tick(3)
    grown = world.in_service("small")
    new = [vm for vm in grown if vm not in old]
    assert set(old) <= set(grown)
    assert new
    assert asked_for(world)[-1] == 12 + len(new)
    world.waiting, world.busy = 0, {}
    world.tick(15)
    assert world.in_service("small") == []
    assert world.desired() == {"small": 0}
    assert ended_by_aws(world) == []


def test_a_restarted_agent_goes_on_with_the_same_change(make_world: Make) -> None:
    world = weighted(make_world, 3, 1)
    world.submit(8)
    world.tick()
    (intent,) = world.last.intents
    world.restart()
    world.tick(3)
    assert asked_for(world) == [3 * intent.target]
    assert len(world.in_service("small")) == intent.target
    assert not [event for event in world.events if event.reason is Reason.DRIFT_ADOPTED]


def test_a_size_that_another_party_sets_in_units_is_drift_in_vms(make_world: Make) -> None:
    world = weighted(make_world, 3, 1)
    world.owner.set_desired_capacity(AutoScalingGroupName=SMALL.name, DesiredCapacity=6)
    world.tick()
    (detail,) = [event.detail for event in world.events if event.reason is Reason.DRIFT_ADOPTED]
    assert "from 1 to 2" in detail


SEVERAL = (1, 2)
"""Weights of the types that the group may launch: what its next VM counts as depends on AWS's choice."""


def test_a_group_of_several_weights_is_held_with_the_reason_and_nothing_is_sent(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    weigh(world, *SEVERAL, DesiredCapacity=2)
    serving = world.in_service("small")
    assert len(serving) == 2
    world.tick(2)
    world.submit(40)
    world.tick(25)
    assert world.mutations == []
    assert world.in_service("small") == serving
    assert world.last.reason is Reason.GROUP_UNSUPPORTED
    check_wording("unsupported-group", {"several weights": world.last.sentence})


def test_a_group_that_gets_several_weights_ends_its_open_change_and_its_deadline_ends_no_vm(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,), limits=replace(QUICK, boot_deadline_s=300.0))
    world.tick(2)
    world.submit(20)
    world.tick()
    (intent,) = world.last.intents
    assert intent.direction is Direction.OUT
    sent = world.mutations
    weigh(world, *SEVERAL)
    serving = world.in_service("small")
    world.tick(10)
    assert world.mutations == sent
    assert world.in_service("small") == serving
    (ended,) = [outcome for outcome in world.outcomes if outcome.intent_id == intent.intent_id and outcome.status.final]
    assert (ended.status, ended.reason) == (Status.FAILED, Reason.GROUP_UNSUPPORTED)


def test_several_weights_that_come_within_a_turn_are_noticed_before_the_call(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    world.tick(2)
    world.submit(20)
    weigh_after_reading(world, *SEVERAL)
    world.tick()
    assert world.last.intents
    assert world.mutations == []
    assert [outcome.reason for outcome in world.outcomes] == [Reason.GROUP_UNSUPPORTED]


def turned(minute: MinuteReport) -> TurnReport:
    """The report of a turn with one minute of the fleets."""
    return with_fleets(TurnReport(minute.at), minute)


def test_the_event_and_the_alarm_come_once_and_end_when_the_weights_agree(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,))
    book = AlarmBook()
    weigh(world, *SEVERAL)
    raised = [alarm for _ in range(3) for alarm in book.turn(turned(world.tick()))]
    assert [(alarm.reason, alarm.resolved) for alarm in raised] == [(Reason.GROUP_UNSUPPORTED, False)]
    world.restart()
    world.tick(2)
    weigh(world, 1)
    over = book.turn(turned(world.tick()))
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
    weigh(world, *SEVERAL)
    world.batch_waiting = 20
    world.tick(3)
    assert {group for _, group in world.mutations} == {MEDIUM.name}


def test_observe_mode_proposes_no_size_in_the_wrong_unit(make_world: Make) -> None:
    world = make_world(groups=(SMALL, LARGE), sizes=(1, 0), mode=Mode.OBSERVE)
    weigh(world, *SEVERAL)
    world.submit(40)
    world.tick(3)
    assert (world.last.reason, world.last.desired) == (Reason.GROUP_UNSUPPORTED, ())


def test_records_from_before_there_were_units_read_as_one_unit_a_vm(make_world: Make) -> None:
    world = make_world(groups=(SMALL,), sizes=(2,))
    world.tick(2)
    text = encode(world.snapshot)
    assert text.count(b',"requested_units":null,"weight":1') == 1
    assert decode(Snapshot, text.replace(b',"requested_units":null,"weight":1', b"")) == world.snapshot


def an_hour_of_trouble(world: World, seed: int) -> Iterator[None]:
    """Let load, weights, bounds, capacity and the agent's process change at random; yield after each turn."""
    chance = random.Random(seed)
    lowest, highest = 0, 40
    for _ in range(40):
        held, vms = world.desired()["small"], len(world.vms("small"))
        world.busy = {vm: 2.0 for vm in world.in_service("small") if chance.random() < 0.5}
        match chance.randrange(12):
            case 0 | 1 | 2:
                world.submit(chance.randint(1, 40))
            case 3 | 4:
                world.waiting = 0
            case 5:
                world.fault("capacity", instance_type=SMALL.vm_type.name, duration_s=chance.choice([60.0, 200.0]))
            case 6:
                calls = chance.choice(["SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"])
                world.fault("throttle", operations=[calls], duration_s=130.0)
            case 7:
                world.restart()
            case 8:
                weight = chance.randint(1, 6)
                highest = max(highest, held, vms * weight)
                weigh(world, weight, MaxSize=highest, DesiredCapacity=max(held, vms * weight))
            case 9:
                weigh_no_more(world)
            case 10:
                highest = max(held, chance.randint(1, 60))
                world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, MaxSize=highest)
            case _:
                lowest = chance.randint(0, held)
                world.owner.update_auto_scaling_group(AutoScalingGroupName=SMALL.name, MinSize=lowest)
        world.tick()
        assert lowest <= world.desired()["small"] <= highest
        yield


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
def test_whatever_changes_only_chosen_vms_end(make_world: Make, seed: int) -> None:
    world = weighted(make_world, seed + 1, 2, maximum=40)
    chosen: set[str] = set()
    for _ in an_hour_of_trouble(world, seed):
        chosen |= {vm for intent in world.last.intents for vm in intent.victims}
        assert ended_by_aws(world) == []
    assert not set(final_reasons(world)) & {Reason.PERMANENT_FAILURE, Reason.INTERNAL_ERROR}
    calls = world.control.mutations(access_key="agent")
    assert {call["params"]["InstanceId"] for call in calls if call["operation"].startswith("Terminate")} <= chosen
