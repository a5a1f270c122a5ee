"""A loop that leads some of its fleets: the others are measured alone, and nothing of theirs is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from domain.decisions import Reason
from domain.errors import Fenced
from domain.fleet import Group
from domain.subject import Subject, fleet_subject
from tests.faults.evidence import SET, told
from tests.faults.world import QUICK, SMALL, M, MakeWorld, World

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


def test_a_fleet_of_another_agent_is_measured_and_nothing_else(two: World) -> None:
    before = numbers(two)
    two.loop.leads = Leads({WEB: two.epoch})
    two.tick()
    assert numbers(two) == {"web": before["web"] + 1, "batch": before["batch"]}
    sized = {call["params"]["AutoScalingGroupName"] for call in two.control.mutations(operation=SET)}
    assert sized == {SMALL.name}
    (seen,) = two.loop.measure(two.agent_clock.now()).snapshots
    assert seen.fleet == "batch"


def test_hooks_of_groups_are_not_read_again_each_turn_where_another_agent_leads_some(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = two.session.read

    def counted(service: str, operation: str, /, **parameters: object) -> dict[str, Any]:
        reads.append(operation)
        return read(service, operation, **parameters)

    monkeypatch.setattr(two.session, "read", counted)
    two.loop.leads = Leads({WEB: two.epoch})
    counts = []
    for _ in range(3):
        two.tick()
        two.loop.measure(two.agent_clock.now())
        counts.append(reads.count("DescribeLifecycleHooks"))
    # The group of the other agent's fleet is read for the first time.
    assert counts == [1] * 3


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
