"""A pause of the cluster is read right before each call of the gate, also of what was decided before the pause."""

from __future__ import annotations

import pytest

from domain.controls import Pause, PauseScope
from tests.agent.admission.gate.yard import CLUSTER, Yard

SET, TAG = "SetDesiredCapacity", "CreateOrUpdateTags"


def pause(yard: Yard) -> None:
    yard.ledger.pause("admission", CLUSTER, Pause(PauseScope.ALL, "ada", "moving house", yard.clock.now(), None))


def resume(yard: Yard) -> None:
    yard.ledger.resume("admission", CLUSTER, PauseScope.ALL, at=yard.clock.now(), owner="ada")


@pytest.mark.parametrize(("operation", "minutes"), [(SET, 1), (TAG, 2)])
def test_what_aws_throttled_before_a_pause_is_done_after_it(yard: Yard, operation: str, minutes: int) -> None:
    yard.ask("a", 2)
    yard.world.control.add_fault("throttle", operations=[operation], duration_s=60.0 * minutes + 30.0)
    yard.turn(minutes)
    tried = yard.mutations
    assert tried[-1] == (operation, "a")
    pause(yard)
    told = yard.turn(2)
    assert "paused" in [event.reason.value for event in told if event.about == "a"]
    assert yard.mutations == tried
    resume(yard)
    yard.turn(3)
    assert (yard.desired("a"), yard.answer("a")) == (2, "admitted")
    assert yard.cores("a") == 8


def test_a_pause_made_after_the_decision_stops_the_call(yard: Yard) -> None:
    yard.ask("a", 2)
    looks: list[int] = []

    def strike(**_: object) -> None:
        looks.append(1)
        if len(looks) == 2:
            pause(yard)

    yard.session.client("autoscaling").meta.events.register(
        "before-send.auto-scaling.DescribeAutoScalingGroups", strike
    )
    yard.turn()
    assert yard.mutations == []
    resume(yard)
    yard.turn(3)
    assert (yard.desired("a"), yard.answer("a")) == (2, "admitted")


def test_a_process_stopped_between_decision_and_call_does_not_make_the_call(yard: Yard) -> None:
    yard.ask("a", 2)
    looks: list[int] = []

    def stop(**_: object) -> None:
        looks.append(1)
        if len(looks) == 2:
            yard.clock.advance(183.0)

    yard.session.client("autoscaling").meta.events.register("before-send.auto-scaling.DescribeAutoScalingGroups", stop)
    yard.turn()
    assert yard.mutations == []
