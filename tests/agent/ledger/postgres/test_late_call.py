"""A call of a former leader that arrives late: known as what it is, and put right; what people set is still theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.autoscaling.state import FleetStore
from domain.decisions import Direction, Reason, Status
from tests.faults.evidence import SET, TERMINATE, intents, told
from tests.faults.hands import set_by_hand
from tests.faults.world import QUICK, SMALL, MakeWorld, Plan, RailLimits, World

pytestmark = pytest.mark.needs_postgresql

SLOW = RailLimits(max_step_out=10, max_step_in=10, min_lifetime_s=0.0)
"""Cool-downs and streaks as they come, which would keep a scale-in for minutes."""


@pytest.fixture
def make_world(url: str, tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(**plan: Any) -> World:
        made.append(World(tmp_path, Plan(groups=(SMALL,), ledger_url=url, **plan)))
        return made[-1]

    yield make
    for world in made:
        world.close()


def stopped_in_a_scale_out(world: World) -> None:
    """The leader decided on 4 VMs and was stopped over its call; the load has gone when another leads."""
    world.submit(8)
    world.fault("timeout_before", operations=[SET], count=1)
    world.tick()
    assert world.desired() == {"small": 1}
    world.waiting = 0
    world.restart()
    world.fault("throttle", operations=[SET], duration_s=400.0)
    # Whatever becomes of the intent under the new leader, its change is not there.
    world.tick(6)
    assert world.ledger.open_intents() == ()
    assert world.desired() == {"small": 1}


@pytest.mark.exhaustive
def test_a_late_scale_out_is_put_back_at_once_and_reported_as_what_it_is(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1,), limits=SLOW)
    stopped_in_a_scale_out(world)
    set_by_hand(world, "small", 4)  # what AWS shows when the old leader's bytes arrive
    world.tick()
    assert world.reports[-1].events[-1].reason is Reason.LATE_CALL
    (said,) = told(world, Reason.LATE_CALL)
    assert said.startswith("small (workers-s) went from 1 to 4 ")
    assert "epoch 1 made for web-1.small" in said
    assert said.endswith(" put back to 1")
    world.tick(5)
    assert world.desired() == {"small": 1}
    assert told(world, Reason.DRIFT_ADOPTED) == []
    assert len(told(world, Reason.LATE_CALL)) == 1
    assert FleetStore(world.ledger).loop_state("web").put_back == {}
    decision = next(d for report in world.reports for d in report.decisions if d.reason is Reason.LATE_CALL)
    assert "a former leader's late call is put right" in decision.sentence


def test_what_a_late_scale_out_brought_stays_while_the_load_wants_it(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1,), limits=SLOW)
    stopped_in_a_scale_out(world)
    set_by_hand(world, "small", 4)
    world.submit(30)
    world.tick(4)
    assert len(told(world, Reason.LATE_CALL)) == 1
    assert world.desired()["small"] > 4
    assert intents(world, Direction.IN) == []


def test_a_late_termination_is_replaced_at_once(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3,), limits=QUICK, idle_s=60.0)
    world.fault("timeout_before", operations=[TERMINATE], count=1)
    while not intents(world, Direction.IN):
        world.tick()
    (intent,) = world.ledger.open_intents()
    world.submit(6)
    world.restart()
    world.fault("throttle", operations=[TERMINATE], duration_s=400.0)
    world.tick(6)
    assert world.ledger.open_intents() == ()
    assert world.desired() == {"small": 3}
    victim = next(vm for vm in intent.victims if vm in world.in_service("small"))
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=victim, ShouldDecrementDesiredCapacity=True)
    world.tick()
    (said,) = told(world, Reason.LATE_CALL)
    assert said.startswith("small (workers-s) went from 3 to 2 ")
    world.tick(2)
    assert world.desired() == {"small": 3}
    assert told(world, Reason.DRIFT_ADOPTED) == []


@pytest.mark.exhaustive
def test_another_size_than_the_call_would_set_is_somebody_s_and_is_adopted(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1,), limits=SLOW)
    stopped_in_a_scale_out(world)
    set_by_hand(world, "small", 3)
    world.tick()
    assert told(world, Reason.LATE_CALL) == []
    assert len(told(world, Reason.DRIFT_ADOPTED)) == 1


@pytest.mark.exhaustive
def test_after_an_hour_the_size_is_somebody_s(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1,), limits=SLOW)
    stopped_in_a_scale_out(world)
    world.tick(60)
    set_by_hand(world, "small", 4)
    world.tick()
    assert told(world, Reason.LATE_CALL) == []
    assert len(told(world, Reason.DRIFT_ADOPTED)) == 1


def test_a_call_that_arrived_before_the_lead_changed_is_not_late(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1,), limits=SLOW)
    world.submit(8)
    world.fault("timeout_after", operations=[SET], count=1)
    world.tick()
    assert world.desired() == {"small": 4}
    world.restart()
    world.tick(3)
    assert world.outcomes[-1].status is Status.DONE
    assert FleetStore(world.ledger).loop_state("web").former_calls == ()
    set_by_hand(world, "small", 3)
    set_by_hand(world, "small", 4)
    world.tick()
    assert told(world, Reason.LATE_CALL) == []
