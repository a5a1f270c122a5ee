"""The last check before a VM is terminated: a pool may have needed it since it was chosen."""

from __future__ import annotations

import pytest

from actuators.base import Act, ChangingCall
from agent.autoscaling.permit import FleetPermit, Grounds
from agent.rails.state import Ages
from domain.clock import BothTimes, VirtualClock
from domain.controls import Controls
from domain.decisions import Direction, Reason
from tests.agent.autoscaling.test_decide import decided
from tests.agent.rails.scenes import NOON, scene


@pytest.mark.parametrize("busy", [None, 0.0, 2.0])
@pytest.mark.parametrize("needed", [False, True])
def test_a_vm_that_a_pool_needs_by_now_is_not_terminated(needed: bool, busy: float | None) -> None:
    context, clock = scene(), VirtualClock(NOON)
    decision = decided(context, 4, 3, 4).decision
    (intent,) = decision.intents
    assert intent.direction is Direction.IN
    (victim,) = intent.victims
    permit = FleetPermit(
        now=NOON,
        began=BothTimes(NOON, clock.monotonic()),
        clock=clock,
        controls=lambda now: Controls(),
        busy_cores=lambda group, vm, now: busy,
        retained=lambda vm: needed and vm == victim,
        ages=Ages(),
        grounds=Grounds(context, decision.desired, {victim: busy}),
    )
    refusal = permit(ChangingCall(Act.REMOVE, intent.fleet, intent.group, intent, victim))
    assert (None if refusal is None else refusal.reason) is (Reason.BUSY if needed else None)
