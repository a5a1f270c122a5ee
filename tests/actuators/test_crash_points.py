"""Killed at any step and started again: the same fleet as without the crash, and never the other way round."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.decisions import Direction, Intent, Outcome, Reason, Status
from tests.actuators.shift import AGENT, Killed, Shift, running_shift
from tests.stages import exhaustive

SET, TERMINATE = "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"
MOMENTS = (pytest.param("before-call", marks=pytest.mark.exhaustive), "before-send", "after-call")
SCENES = ("out", "in", "replace", "shortage")
ENDS = {"out": (6, 6), "in": (2, 2), "replace": (4, 4), "shortage": (4, 4)}
TROUBLES = (None, "throttle", "timeout_before", "timeout_after", "internal_error", "before-send", "after-call")


def begin(shift: Shift, scene: str) -> Intent:
    """Return the intent of a scene; the loop has recorded it and not yet acted."""
    shift.world.desire(4, "web-s")
    shift.control.ready_now()
    if scene == "shortage":
        shift.control.add_fault("capacity", instance_type="m5a.large")
    if scene in ("out", "shortage"):
        return shift.intent(Direction.OUT, target=6)
    return shift.intent(Direction.IN if scene == "in" else Direction.REPLACE, victims=sorted(shift.serving())[:2])


def run(shift: Shift, intent: Intent) -> Outcome:
    """Apply and follow to the end, starting the agent over whenever it dies."""
    try:
        outcome = shift.apply(intent)
    except Killed:
        shift.start_agent()
        outcome = Outcome(intent.intent_id, Status.UNKNOWN, Reason.UNKNOWN_OUTCOME, 0, 0, shift.now)
    for _ in range(15):
        if outcome.status.final:
            break
        try:
            outcome = shift.tick(intent)
        except Killed:
            shift.start_agent()
    return outcome


def fleet(shift: Shift) -> tuple[int, int]:
    shift.control.advance(300.0)
    return shift.group().desired, len(shift.serving())


@pytest.mark.parametrize(
    ("scene", "nth"), [("out", 1), ("in", 2), ("replace", 2), ("shortage", 2), *exhaustive(("in", 1), ("shortage", 1))]
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_around_any_change_leaves_the_same_fleet(shift: Shift, scene: str, moment: str, nth: int) -> None:
    intent = begin(shift, scene)
    calls = iter(range(1, 100))
    operation = TERMINATE if intent.victims else SET

    def die_at_the_nth(**_: object) -> None:
        if next(calls) == nth:
            raise Killed

    events = shift.session.client("autoscaling").meta.events
    events.register(f"{moment}.auto-scaling.{operation}", die_at_the_nth)
    outcome = run(shift, intent)
    wanted = {
        "out": (Status.DONE, 2),
        "in": (Status.DONE, 2),
        "replace": (Status.DONE, 2),
        "shortage": (Status.FAILED, 0),
    }
    assert (outcome.status, outcome.achieved) == wanted[scene]
    assert fleet(shift) == ENDS[scene]
    without_crash = {"out": [(SET, "6")], "shortage": [(SET, "6"), (SET, "4")]}.get(
        scene, [(TERMINATE, vm) for vm in intent.victims]
    )
    assert Counter(shift.mutations) == Counter(without_crash)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_kill_around_any_reading_leaves_the_same_fleet(shift: Shift, scene: str, nth: int) -> None:
    intent = begin(shift, scene)
    calls = iter(range(1, 100))

    def die_at_the_nth(**_: object) -> None:
        if next(calls) == nth:
            raise Killed

    shift.session.client("autoscaling").meta.events.register("after-call", die_at_the_nth)
    run(shift, intent)
    assert fleet(shift) == ENDS[scene]


@pytest.mark.exhaustive
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(scene=st.sampled_from(SCENES), troubles=st.lists(st.sampled_from(TROUBLES), max_size=6))
def test_any_sequence_of_troubles_ends_in_the_same_fleet_and_never_turns_round(
    scene: str, troubles: list[str | None]
) -> None:
    with running_shift() as shift:
        intent = begin(shift, scene)
        operation = TERMINATE if intent.victims else SET
        outcome, pending, first = None, list(troubles), True
        for _ in range(30):
            trouble = pending.pop(0) if pending else None
            if trouble in ("before-send", "after-call"):
                shift.kill_at(trouble, operation)
            elif trouble is not None:
                shift.control.add_fault(trouble, operations=[operation], count=1)
            with contextlib.suppress(Killed):
                outcome = shift.apply(intent) if first else shift.tick(intent, 40.0)
            first = False
            if trouble in ("before-send", "after-call"):
                shift.start_agent()
            if outcome is not None and outcome.status.final:
                break
        assert fleet(shift) == ENDS[scene]
        changes = [
            int(call["params"]["DesiredCapacity"])
            for call in shift.control.mutations(access_key=AGENT, operation=SET)
            if call["fault"] in (None, "timeout_after")
        ]
        assert changes in ({"out": [[6]], "shortage": [[6, 4], [6]]}.get(scene, [[]]))
        gone = [
            call["params"]["InstanceId"]
            for call in shift.control.mutations(access_key=AGENT, operation=TERMINATE)
            if call["fault"] in (None, "timeout_after")
        ]
        assert sorted(gone) == sorted(intent.victims)
