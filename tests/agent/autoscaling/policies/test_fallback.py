"""The fallback order: a policy that fails in any way is replaced by the next, within its deadline, and it is told."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.policies.base import hold
from agent.autoscaling.policies.fallback import FALLBACKS, Proposer, evaluate_directly, evaluate_within
from agent.autoscaling.policies.rules import HoldPolicy, QueueRulePolicy, ThresholdPolicy
from agent.rails.state import Memory
from domain.decisions import Proposal, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import QueueSnapshot, Snapshot, Terms
from tests.agent.autoscaling.policies.misbehaving import NONSENSE, Answer, Misbehaving, proposing, raising
from tests.agent.rails.scenes import scene

CALM = scene(requested=(4, 4, 4))
FLEET = CALM.fleet
QUEUE = QueueSnapshot(waiting=0, running=0, submitted=0, submitted_recent=0)
SNAPSHOT = replace(CALM.snapshot, queue=QUEUE)
WITHOUT_QUEUE = CALM.snapshot


def propose(policy: Any, snapshot: Snapshot = SNAPSHOT, memory: Memory | None = None, deadline_s: float = 5.0) -> Any:
    return Proposer(evaluate_within(deadline_s), {"live": policy}).propose("live", FLEET, snapshot, memory or {})


@pytest.mark.parametrize("evaluate", [evaluate_directly, evaluate_within(5.0)])
@pytest.mark.parametrize("nonsense", [name for name in NONSENSE if name != "ends its thread"])
def test_nonsense_is_a_failure_with_a_sentence(evaluate: Any, nonsense: str) -> None:
    answer, memory, complaint = NONSENSE[nonsense]
    with pytest.raises(PolicyFailure) as failed:
        evaluate(Misbehaving(answer, memory), FLEET, SNAPSHOT, {})
    assert str(failed.value).startswith(complaint)
    assert len(str(failed.value)) < 200


def test_the_live_policy_answers_while_it_can() -> None:
    proposed = propose(Misbehaving(proposing((5, 4, 4)), {"h": (0.5,)}))
    assert (proposed.proposal.desired, proposed.memory, proposed.failures) == ((5, 4, 4), {"h": (0.5,)}, ())


def test_the_queue_rule_stands_in_and_the_live_policys_memory_is_kept() -> None:
    proposed = propose(Misbehaving(raising, {"h": (9.0,)}), memory={"h": (0.5,)})
    assert proposed.proposal.policy == QueueRulePolicy().name
    assert "standing in: learned" in proposed.proposal.detail
    assert proposed.memory == {"h": (0.5,)}
    (failure,) = proposed.failures
    assert "ZeroDivisionError" in failure


def test_the_queue_rule_that_stands_in_has_the_settings_of_the_fleet() -> None:
    tuned = replace(SNAPSHOT, terms=Terms(0.036, 480.0, 30.0, 300.0, (45.0,) * 3, (97.0,) * 3))
    assert propose(Misbehaving(raising), tuned).proposal.policy == QueueRulePolicy(480.0, 30.0).name


def test_absent_input_is_no_failure_the_fleet_is_held_and_nobody_else_is_asked() -> None:
    proposed = Proposer(evaluate_directly).propose("queue-rule", FLEET, WITHOUT_QUEUE, {"h": (1.0,)})
    assert (proposed.proposal.desired, proposed.proposal.reason) == ((4, 4, 4), Reason.STALE_INPUT)
    assert (proposed.memory, proposed.failures) == ({"h": (1.0,)}, ())


def test_a_stand_in_without_its_input_holds_too() -> None:
    proposed = propose(Misbehaving(raising), WITHOUT_QUEUE)
    assert (proposed.proposal.desired, proposed.proposal.reason) == ((4, 4, 4), Reason.STALE_INPUT)
    assert len(proposed.failures) == 1


def test_a_name_that_means_nothing_falls_back_and_names_what_there_is() -> None:
    proposed = Proposer(evaluate_directly).propose("clairvoyance", FLEET, SNAPSHOT, {})
    assert proposed.proposal.policy == QueueRulePolicy().name
    (failure,) = proposed.failures
    assert [name for name in ("'clairvoyance'", "hold", "queue-rule", "target-tracking") if name not in failure] == []


def test_the_order_ends_with_the_policy_that_cannot_fail() -> None:
    def broken(policy: Any, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        if isinstance(policy, HoldPolicy):
            return evaluate_directly(policy, fleet, snapshot, memory)
        raise PolicyFailure(f"{policy.name} is broken")

    proposed = Proposer(broken).propose("target-tracking", FLEET, SNAPSHOT, {})
    assert [type(policy) for policy in FALLBACKS] == [QueueRulePolicy, ThresholdPolicy, HoldPolicy]
    assert (proposed.proposal.policy, proposed.proposal.desired) == ("hold", (4, 4, 4))
    assert [failure.split(":")[0] for failure in proposed.failures] == ["target-tracking", "queue-rule", "threshold"]


def test_a_policy_is_not_its_own_stand_in() -> None:
    asked: list[str] = []

    def broken(policy: Any, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        asked.append(policy.name.split(":")[0])
        raise PolicyFailure("broken")

    with pytest.raises(AssertionError, match="hold policy"):
        Proposer(broken).propose("queue-rule:horizon_s=60", FLEET, SNAPSHOT, {})
    assert asked == ["queue-rule", "threshold", "hold"]


def test_a_policy_that_hangs_costs_its_deadline_once_and_one_thread() -> None:
    let_go = threading.Event()
    answer: Answer = lambda fleet, snapshot: let_go.wait(30.0)  # noqa: E731
    policy = Misbehaving(answer)
    evaluate = evaluate_within(0.5)
    began = time.monotonic()
    try:
        complaints = []
        for _ in range(50):
            with pytest.raises(PolicyFailure) as failed:
                evaluate(policy, FLEET, SNAPSHOT, {})
            complaints.append(str(failed.value))
        assert "within 0.5 s" in complaints[0]
        assert {text.endswith("on an earlier minute") for text in complaints[1:]} == {True}
        assert time.monotonic() - began < 15.0, "each of the fifty waited its half second"
        # Another fleet's minute is another thread's: one fleet's hanging holds nobody else up.
        with pytest.raises(PolicyFailure, match="did not answer"):
            evaluate(policy, replace(FLEET, name="batch"), SNAPSHOT, {})
        assert len(policy.seen) == 2
    finally:
        let_go.set()


def test_a_late_answer_is_not_taken_for_the_next_minutes() -> None:
    let_go = threading.Event()

    def late(fleet: Fleet, snapshot: Snapshot) -> Any:
        let_go.wait(30.0)
        return hold(fleet, snapshot, "learned", Reason.LEARNED, "of an earlier minute")

    policy = Misbehaving(late)
    evaluate = evaluate_within(2.0)
    with pytest.raises(PolicyFailure):
        evaluate(policy, FLEET, SNAPSHOT, {})
    let_go.set()
    for thread in threading.enumerate():
        if thread.name == "policy learned":
            thread.join(60.0)
    policy.answer = proposing((5, 5, 5))
    assert evaluate_within(5.0)(policy, FLEET, SNAPSHOT, {})[0].desired == (5, 5, 5)
    policy.name = "learned"
    assert evaluate(policy, FLEET, SNAPSHOT, {})[0].desired == (5, 5, 5)


def test_the_memory_given_is_a_copy() -> None:
    memory = {"h": (1.0,)}

    class Scribbler(Misbehaving):
        def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
            memory["h"] = (2.0,)  # type: ignore[index]
            raise KeyError("h")

    with pytest.raises(PolicyFailure):
        evaluate_directly(Scribbler(raising), FLEET, SNAPSHOT, memory)
    assert memory == {"h": (1.0,)}
