"""The agent's clock is set while groups come in: none becomes overdue by it, and no shortage is forgotten."""

from __future__ import annotations

import pytest

from agent.admission.gate.records import group_records
from tests.agent.admission.gate.yard import Yard

HOUR_S = 3600.0


@pytest.mark.parametrize("step_s", [2 * HOUR_S, -2 * HOUR_S])
def test_a_group_under_way_is_not_overdue_because_the_clock_was_set(yard: Yard, step_s: float) -> None:
    yard.world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    yard.ask("batch-a", 3)
    yard.turn()
    yard.clock.step(step_s)
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), yard.cores("batch-a")) == (3, "admitted", 12)
    assert yard.reasons("batch-a").count("overdue") == 0


def test_a_group_whose_time_has_passed_is_overdue_although_the_clock_was_set_back(yard: Yard) -> None:
    yard.world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], rate=1.0)
    yard.ask("batch-a", 3)
    yard.turn()
    yard.clock.step(-2 * HOUR_S)
    yard.turn(11)
    assert (yard.answer("batch-a"), yard.total) == ("refused:overdue", 0)


def test_a_shortage_is_remembered_for_its_time_although_the_clock_was_set_forward(yard: Yard) -> None:
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.ask("batch-a", 3)
    yard.turn(4)
    assert yard.answer("batch-a") == "refused:no_capacity"
    yard.clock.step(2 * HOUR_S)
    yard.ask("batch-b", 1)
    yard.turn()
    assert (yard.desired("batch-b"), yard.answer("batch-b")) == (0, "pending")
    assert yard.reasons("gpu") == ["clock_jump"]


def test_a_clock_set_back_before_a_restart_does_not_keep_a_group_out_for_longer(yard: Yard) -> None:
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.ask("batch-a", 3)
    yard.turn(4)
    yard.restart()
    yard.clock.step(-24 * HOUR_S)
    yard.ask("batch-b", 1)
    yard.turn()
    assert yard.answer("batch-b") == "pending"
    memory = group_records(yard.ledger).memory("gpu")
    assert all(one.until <= yard.clock.now() + one.length_s for one in memory.capacity)
    assert memory.capacity
