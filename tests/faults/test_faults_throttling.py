"""AWS throttles, a little or altogether: no intent is doubled, the agent calls no more often, no breaker opens."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent.autoscaling.state import FleetStore
from domain.decisions import Direction, Reason, Status
from domain.errors import FailureClass
from tests.faults.evidence import SET, TERMINATE, calls_per_minute, carried_out, intents, told
from tests.faults.world import SMALL, MakeWorld, Plan, World, final_reasons

ONE_GROUP: dict[str, Any] = {"groups": (SMALL,), "sizes": (1,)}


def test_a_throttled_change_is_one_intent_tried_once_a_minute_until_it_goes_through(
    make_world: MakeWorld,
) -> None:
    world = make_world(**ONE_GROUP)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=270.0)
    world.tick(4)
    assert len(world.ledger.open_intents()) == 1
    assert world.desired() == {"small": 1}
    assert {outcome.reason for outcome in world.outcomes} == {Reason.THROTTLED}
    world.tick(3)
    assert [(intent["before"], intent["target"]) for intent in intents(world)] == [(1, 4)]
    assert [call["DesiredCapacity"] for call in carried_out(world, SET)] == ["4"]
    assert world.count(SET) == 5
    assert final_reasons(world) == [Reason.DONE]


@pytest.mark.exhaustive
def test_changes_throttled_for_half_an_hour_open_no_breaker(make_world: MakeWorld) -> None:
    world = make_world(**ONE_GROUP)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=1810.0)
    for _ in range(30):
        world.tick()
        assert len(world.ledger.open_intents()) <= 1
    assert set(final_reasons(world)) == {Reason.OVERDUE}
    assert {o.failure for o in world.outcomes} == {FailureClass.THROTTLE}
    assert FleetStore(world.ledger).loop_state("web").breakers == ()
    assert world.count(SET) <= 30
    world.tick(2)
    assert world.desired() == {"small": 4}


def test_five_minutes_without_one_answer_change_nothing_and_end_by_themselves(make_world: MakeWorld) -> None:
    world = make_world(**ONE_GROUP)
    world.tick(2)
    world.fault("throttle", duration_s=301.0)
    world.submit(8)
    world.tick(5)
    assert world.last.reason is Reason.CLOUD_UNREADABLE
    assert "(throttle: " in world.last.sentence
    assert world.mutations == []
    world.tick(4)
    assert world.desired() == {"small": 4}
    assert [intent["target"] for intent in intents(world)] == [4]
    assert final_reasons(world) == [Reason.DONE]


@pytest.mark.exhaustive
@pytest.mark.parametrize("read_attempts", [1, 3])
def test_the_call_rate_falls_while_aws_throttles(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, read_attempts: int
) -> None:
    # Only the waiting between botocore's own attempts is left out, not the attempts.
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    world = make_world(read_attempts=read_attempts, sizes=(3, 1, 1))
    world.submit(30)
    world.tick(12)
    healthy = max(calls_per_minute(world)[1:])
    began = len(world.reports)
    world.fault("throttle", duration_s=301.0)
    world.submit(30)
    world.tick(5)
    throttled = calls_per_minute(world)[began:]
    # One family of calls each for reading groups and for notices, and no more than the attempts of one call in each.
    assert max(throttled) <= read_attempts + 1 < healthy + read_attempts
    assert sum(throttled) <= 5 * (read_attempts + 1)
    world.tick(3)
    assert world.last.reason in (Reason.QUEUE_COVERED, Reason.QUEUE_GREW)


def test_a_change_that_took_effect_before_the_silence_is_not_taken_for_somebody_elses(
    make_world: MakeWorld,
) -> None:
    world = make_world(**ONE_GROUP)
    world.submit(8)
    world.tick()
    world.fault("throttle", duration_s=350.0)
    world.tick(6)
    assert final_reasons(world) == [Reason.OVERDUE]
    world.tick(2)
    assert world.desired() == {"small": 4}
    assert told(world, Reason.DRIFT_ADOPTED) == []
    assert len(intents(world)) == 1
    assert FleetStore(world.ledger).loop_state("web").breakers == ()


def test_a_drain_goes_on_after_throttling(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(3,))
    world.tick()
    world.fault("throttle", duration_s=170.0)
    world.tick(8)
    assert world.desired() == {"small": 1}
    assert len(world.vms()) == 1
    assert Counter(call["InstanceId"] for call in carried_out(world, TERMINATE)).most_common(1)[0][1] == 1


class ThrottledLoop(RuleBasedStateMachine):
    """Work comes and goes, AWS throttles this and that at any rate, and the agent may be restarted in between."""

    @initialize(medium=st.integers(0, 2))
    def begin(self, medium: int) -> None:
        self._directory = tempfile.TemporaryDirectory()
        plan = Plan(sizes=(1, medium, 0), interruptions=False)
        self.world = World(Path(self._directory.name), plan)
        self.world.tick()

    @rule(jobs=st.integers(1, 12))
    def work_comes(self, jobs: int) -> None:
        self.world.submit(jobs)

    @rule()
    def work_is_done(self) -> None:
        self.world.waiting = 0

    @rule(
        rate=st.sampled_from([0.3, 0.3, 0.7, 1.0]),
        duration_s=st.integers(30, 300),
        operations=st.sampled_from(
            [[], [SET], [TERMINATE], ["DescribeScalingActivities"], ["CompleteLifecycleAction"]]
        ),
    )
    def aws_throttles(self, rate: float, duration_s: int, operations: list[str]) -> None:
        self.world.fault("throttle", rate=rate, duration_s=float(duration_s), operations=operations)

    @rule(minutes=st.integers(1, 3))
    def minutes_pass(self, minutes: int) -> None:
        self.world.tick(minutes)

    @precondition(lambda self: len(self.world.reports) > 2)
    @rule()
    def the_agent_is_restarted(self) -> None:
        self.world.restart()

    @invariant()
    def no_group_has_two_intents_under_way(self) -> None:
        if hasattr(self, "world"):
            groups = Counter(intent.group for intent in self.world.ledger.open_intents())
            assert not groups or max(groups.values()) == 1

    @invariant()
    def no_breaker_opens(self) -> None:
        if hasattr(self, "world"):
            assert FleetStore(self.world.ledger).loop_state("web").breakers == ()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._ends_well()
        finally:
            self.world.close()
            self._directory.cleanup()

    def _ends_well(self) -> None:
        world = self.world
        world.control.clear_faults()
        world.waiting = 0
        world.tick(9)
        assert world.desired() == {"small": 1, "medium": 0, "large": 0}
        assert len(world.vms()) == 1
        assert world.ledger.open_intents() == ()
        sizes = [(call["AutoScalingGroupName"], int(call["DesiredCapacity"])) for call in carried_out(world, SET)]
        asked = [(f"workers-{i['group'][0]}", i["target"]) for i in intents(world, Direction.OUT)]
        given_back = [o for o in world.outcomes if "lowered" in o.detail]
        assert len(sizes) <= len(asked) + len(given_back)
        gone = Counter(call["InstanceId"] for call in carried_out(world, TERMINATE))
        assert not gone or max(gone.values()) == 1
        assert max(calls_per_minute(world), default=0) <= 40
        assert {o.status for o in world.outcomes if o.reason is Reason.THROTTLED} <= {Status.IN_PROGRESS}
        assert told(world, Reason.DRIFT_ADOPTED) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_whatever_is_throttled_when_the_loop_stays_true(part: int) -> None:
    seeded = seed(part)(type("Seeded", (ThrottledLoop,), {}))
    run_state_machine_as_test(seeded, settings=settings(max_examples=9, stateful_step_count=10, deadline=None))
