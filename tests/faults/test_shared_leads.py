"""A loop that leads some of its fleets: the others are measured alone, and nothing of theirs is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actuators.autoscaling_group import AutoScalingActuator
from agent.autoscaling.minutes import read_minutes
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from domain.decisions import Reason
from domain.errors import Fenced
from domain.fleet import Group
from domain.subject import Subject, fleet_subject
from tests.faults.evidence import SET, told
from tests.faults.world import GRACE_S, QUICK, SMALL, M, MakeWorld, World

BATCH = Group("medium", "batch-m", M, 1, 10)
WEB, OTHER = fleet_subject("web"), fleet_subject("batch")


@pytest.fixture
def two(make_world: MakeWorld) -> World:
    """The fleets `web` and `batch`, both with work that waits from the next turn on."""
    rests = replace(QUICK, cooldown_out_s=3000.0, cooldown_in_s=3000.0)
    world = make_world(groups=(SMALL,), sizes=(1,), batch=(BATCH,), limits=rests)
    world.tick(2)
    world.submit(8)
    world.batch_waiting = 8
    return world


def numbers(world: World) -> dict[str, int]:
    states = FleetStore(world.ledger).loop_states(["web", "batch"])
    return {name: state.decisions for name, state in states.items()}


def test_a_fleet_without_a_leader_is_measured_and_nothing_else(two: World) -> None:
    before = numbers(two)
    two.loop.follow(Leads({WEB: two.epoch}))
    two.tick()
    assert numbers(two) == {"web": before["web"] + 1, "batch": before["batch"]}
    sized = {call["params"]["AutoScalingGroupName"] for call in two.control.mutations(operation=SET)}
    assert sized == {SMALL.name}
    (seen,) = two.loop.measure(two.agent_clock.now()).snapshots
    assert seen.fleet == "batch"


def test_no_group_of_a_fleet_that_another_agent_leads_is_read(two: World) -> None:
    before = len(two.calls)
    two.loop.follow(Leads({WEB: two.epoch}, others={OTHER}))
    two.tick()
    assert two.loop.measure(two.agent_clock.now()).snapshots == ()
    # Also when the ledger is away, and this agent leads nothing.
    two.loop.follow(Leads(others={OTHER}))
    two.pass_minute()
    assert [one.fleet for one in two.loop.measure(two.agent_clock.now()).snapshots] == ["web"]
    seen = [str(call["params"]) for call in two.calls[before:]]
    assert any(SMALL.name in one for one in seen)
    assert not any(BATCH.name in one for one in seen)


def test_the_lead_of_a_pool_with_the_name_of_a_fleet_is_no_lead_of_the_fleet(two: World) -> None:
    two.loop.follow(Leads({WEB: two.epoch}, others={Subject("placement", "batch")}))
    two.tick()
    assert [one.fleet for one in two.loop.measure(two.agent_clock.now()).snapshots] == ["batch"]


def test_what_is_known_of_groups_is_not_read_again_each_turn_where_a_fleet_has_no_leader(two: World) -> None:
    two.loop.follow(Leads({WEB: two.epoch}))
    before = len(two.calls)
    for _ in range(3):
        two.tick()
        assert [one.fleet for one in two.loop.measure(two.agent_clock.now()).snapshots] == ["batch"]
    assert not [call for call in two.calls[before:] if call["operation"] == "DescribeLifecycleHooks"]


def taken_again(make_world: MakeWorld, *, restarted: bool) -> list[object]:
    """The fleet `web` in the two minutes after another agent led it for an hour: its decisions and measurements."""
    world = make_world(groups=(SMALL,), sizes=(3,), batch=(BATCH,), limits=QUICK, policy="hold")
    first = world.in_service("small")[0]
    world.busy[first] = 2.0
    world.submit(3)
    world.tick(3)
    world.loop.follow(Leads({OTHER: world.epoch}, others={WEB}))
    # Its lines go to the other agent. Two VMs are replaced, and a thousand jobs come.
    world.queue_reports = False
    world.silent |= {vm for _, vm, _ in world.vms("small")}
    for vm in world.in_service("small")[:2]:
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=False)
    world.tick(30)
    world.silent |= {vm for _, vm, _ in world.vms("small")}
    world.submit(1000)
    world.tick(30)
    store = FleetStore(world.ledger)
    state = store.loop_state("web")
    end = (world.agent_clock.now() - GRACE_S) // 60.0 * 60.0
    # The other agent has decided until now, and has counted the jobs.
    state = replace(state, last_bin_end=end, submitted_seen=float(world.submitted), submitted_in_episode=1003.0)
    store.record((), states={"web": state}, epochs=[world.epoch])
    if restarted:
        world.restart()
    else:
        before = world.loop.actuator
        assert isinstance(before, AutoScalingActuator)
        before.inventory.forget([SMALL.name])
        actuator = AutoScalingActuator(
            world.session,
            before.inventory,
            world.fleets,
            owned_protection=state.protected,
            known_busy=state.busy,
        )
        both = Leads({WEB: world.epoch, OTHER: world.epoch})
        world.loop.take_over(both, actuator, None)
        world.loop.follow(both)
    world.queue_reports = True
    world.silent.clear()
    world.waiting = 2
    for _ in range(2):
        world.tick()
    decided = list(FleetStore(world.ledger).inputs("web"))[-2:]
    assert decided[0][0].snapshot is not None
    minutes = [replace(one, epoch=0) for one in read_minutes(world.ledger.database, "web")][-2:]
    world.running.stop()
    return [*((replace(inputs, epoch=0), made) for inputs, made in decided), *minutes]


def test_a_fleet_that_was_led_before_is_taken_as_after_a_restart(make_world: MakeWorld) -> None:
    again, anew = (taken_again(make_world, restarted=restarted) for restarted in (False, True))
    assert again == anew


def test_the_open_intents_of_another_agents_fleet_stay_as_they_are(two: World) -> None:
    two.fault("timeout_before", operations=[SET], count=4)
    two.tick()
    theirs = [one.intent_id for one in two.ledger.open_intents("batch")]
    assert theirs
    two.loop.leads = Leads({WEB: two.epoch})
    two.tick()
    assert [one.intent_id for one in two.ledger.open_intents("batch")] == theirs


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_open_intents_of_a_fleet_without_settings_end_where_no_other_agent_has_it(
    two: World, is_elsewhere: bool
) -> None:
    two.fault("timeout_before", operations=[SET], count=4)
    two.tick()
    assert two.ledger.open_intents("batch")
    two.loop.fleets = tuple(one for one in two.loop.fleets if one.fleet.name == "web")
    asked: list[Subject] = []

    def elsewhere(subject: Subject) -> bool:
        asked.append(subject)
        return is_elsewhere

    two.loop.is_elsewhere = elsewhere
    two.loop.leads = Leads({WEB: two.epoch})
    two.tick()
    assert bool(two.ledger.open_intents("batch")) is is_elsewhere
    assert {*asked} == {OTHER}


def test_a_clock_step_moves_the_times_of_fleets_that_were_led_before_it_alone(two: World) -> None:
    two.loop.leads = Leads({WEB: two.epoch})
    two.tick()
    two.loop.leads = Leads(every=two.epoch)
    two.tick()
    two.loop.leads = Leads({WEB: two.epoch})
    two.tick()
    rests = {name: one.cooldowns for name, one in FleetStore(two.ledger).loop_states(["web", "batch"]).items()}
    assert all(rests.values())
    two.agent_clock.step(600.0)
    both = Leads({WEB: two.epoch, OTHER: two.epoch})
    two.loop.take_over(both, two.loop.actuator, None)
    two.tick()
    after = {name: one.cooldowns for name, one in FleetStore(two.ledger).loop_states(["web", "batch"]).items()}
    assert [b.until - a.until for a, b in zip(rests["web"], after["web"], strict=True)] == [600.0]
    assert after["batch"] == rests["batch"]
    assert len(told(two, Reason.CLOCK_JUMP)) == 1


def test_a_minute_that_another_agent_has_decided_is_not_decided_again(two: World) -> None:
    two.tick()
    before = numbers(two)
    at = two.agent_clock.now()
    two.loop.leads = Leads({WEB: two.epoch})
    # The agent before had decided this minute, and for the other case its clock was far ahead.
    for ahead_s, decided in ((0.0, 0), (60.0, 0), (3600.0, 1)):
        two.loop.leads = Leads({WEB: two.epoch})
        two.loop.take_over(Leads(every=two.epoch), two.loop.actuator, None, {"batch": at + ahead_s})
        two.loop.turn(two.agent_clock.now())
        assert numbers(two)["batch"] - before["batch"] == decided
    two.tick()
    assert numbers(two)["batch"] - before["batch"] == 2


def test_a_deposed_fleet_is_not_written_although_others_are_led(two: World) -> None:
    store = FleetStore(two.ledger)
    two.ledger.take_epoch("another", two.agent_clock.now())
    with pytest.raises(Fenced):
        store.record((), states={}, epochs=[two.epoch, two.epoch + 1])
