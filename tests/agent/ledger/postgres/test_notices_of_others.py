"""A spot notice that the queue gave to an agent without the VM's fleet reaches the agent that leads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.autoscaling.state import NOTICE_KEPT_S, FleetStore
from agent.kernel.leads import Leads
from collectors.interruptions import Interruption, InterruptionKind
from domain.decisions import Direction
from domain.subject import fleet_subject
from tests.faults.evidence import intents
from tests.faults.test_faults_spot import give_notice, messages_left, pass_busy
from tests.faults.world import Plan, World

pytestmark = pytest.mark.needs_postgresql


@pytest.fixture
def world(url: str, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Plan(sizes=(3, 0, 0), ledger_url=url, interruptions=True))
    yield made
    made.close()


def test_a_notice_of_a_fleet_that_another_agent_leads_is_acted_on_by_that_one(world: World) -> None:
    pass_busy(world)
    (vm,) = give_notice(world, world.in_service("small")[:1])
    # This process leads another fleet: here nothing of `web` is read.
    world.loop.leads = Leads({fleet_subject("other"): world.epoch})
    assert world.loop.turn(world.agent_clock.now()).failure is None
    assert messages_left(world) == 0
    (handed,) = FleetStore(world.ledger).handed_over()
    assert (handed.vm, handed.kind, handed.receipt) == (vm, InterruptionKind.SPOT, "")
    # Now it leads `web`, as the other agent does.
    world.loop.leads = Leads(every=world.epoch)
    pass_busy(world)
    (intent,) = world.last.intents
    assert (intent.direction, intent.victims) == (Direction.REPLACE, (vm,))
    pass_busy(world, 3)
    assert len(intents(world, Direction.REPLACE)) == 1


def test_notices_of_long_ago_are_removed_with_the_next_one(world: World) -> None:
    store = FleetStore(world.ledger)
    first, second, hint = (
        Interruption(f"i-{n:08x}", kind, 1000.0 + n, "", "receipt")
        for n, kind in enumerate((InterruptionKind.SPOT, InterruptionKind.SPOT, InterruptionKind.REBALANCE))
    )
    store.hand_over([first, hint], 1000.0)
    assert [one.vm for one in store.handed_over()] == [first.vm]
    store.hand_over([second], first.at + NOTICE_KEPT_S)
    assert [one.vm for one in store.handed_over()] == [second.vm]
