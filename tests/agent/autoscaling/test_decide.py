"""Deciding is a pure function: the same inputs give the same bytes, and intents never say more than the decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.decide import DecisionInputs, DecisionResult, decide
from agent.autoscaling.explain import _seen
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.view import _minute
from agent.ledger import codec
from agent.rails.base import RailContext
from agent.rails.state import Memory
from domain.controls import PauseScope
from domain.decisions import Direction, Mode, Proposal, Reason
from domain.errors import FailureClass
from domain.fleet import Fleet
from domain.observed import ReadFailure
from domain.snapshot import Signal, SignalSnapshot, Snapshot
from tests.agent.rails.scenes import NOON, paused, scene
from tests.agent.rails.worlds import worlds

STUB = "stub"
SHADOWS = ((), ("hold",), ("hold", "threshold:low=0.5", "queue-rule"))


class Stub:
    """Proposes what it is told to, and counts the minutes in its memory."""

    name = STUB

    def __init__(self, desired: tuple[int, ...], **more: Any) -> None:
        self._desired, self._more = desired, more

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        minutes = memory.get("minutes", (0.0,))[0] + 1.0
        return Proposal(fleet.name, STUB, self._desired, Reason.LOAD_HIGH, "so", **self._more), {"minutes": (minutes,)}


def inputs_of(context: RailContext, **more: Any) -> DecisionInputs:
    about: dict[str, Any] = {
        "decision_id": "web-1",
        "now": context.now,
        "fleet": context.fleet,
        "snapshot": context.snapshot,
        "state": context.state,
        "controls": context.controls,
        "limits": context.limits,
        "mode": context.mode,
        "leader": context.leader,
        "epoch": 7,
        "policy": STUB,
        "in_flight": context.in_flight,
    }
    return DecisionInputs(**(about | more))


def decided(context: RailContext, *desired: int, **more: Any) -> DecisionResult:
    """Decide on a calm scene with a policy that wants these sizes."""
    return decide(inputs_of(context, **more), Proposer(evaluate_directly, {STUB: Stub(desired)}))


@st.composite
def minutes(draw: st.DrawFn) -> tuple[DecisionInputs, Stub]:
    """Any minute that the rails know, and what the policy wants in it."""
    context, wanted = draw(worlds())
    vms = [(group.key, vm) for group in context.snapshot.groups for vm in (*group.removable, f"{group.key}-spot")]
    interrupted = tuple(draw(st.lists(st.sampled_from(vms), unique=True, max_size=5)))
    inputs = inputs_of(context, interrupted=interrupted, shadows=draw(st.sampled_from(SHADOWS)))
    return inputs, Stub(wanted.desired, counts_pending=wanted.counts_pending)


@given(minutes())
def test_the_same_inputs_give_the_same_bytes_also_after_a_trip_through_the_ledger(
    minute: tuple[DecisionInputs, Stub],
) -> None:
    inputs, stub = minute
    proposer = Proposer(evaluate_directly, {STUB: stub})
    first = decide(inputs, proposer)
    stored = codec.decode(DecisionInputs, codec.encode(inputs))
    again = decide(stored, Proposer(evaluate_directly, {STUB: stub}))
    assert codec.encode(first.decision) == codec.encode(again.decision)
    assert codec.encode(first.state) == codec.encode(again.state)


@given(minutes())
def test_intents_come_from_the_leader_in_act_mode_one_per_group_and_say_what_was_decided(
    minute: tuple[DecisionInputs, Stub],
) -> None:
    inputs, stub = minute
    decision = decide(inputs, Proposer(evaluate_directly, {STUB: stub})).decision
    snapshot = inputs.snapshot
    assert snapshot is not None
    keys = [intent.group for intent in decision.intents]
    assert len(keys) == len(set(keys))
    assert not set(keys) & set(inputs.in_flight)
    if not (inputs.leader and inputs.mode is Mode.ACT):
        assert keys == []
        assert decision.desired == snapshot.requested
    for intent in decision.intents:
        index = inputs.fleet.index(intent.group)
        seen = snapshot.groups[index]
        assert (intent.before, intent.epoch, intent.created_at) == (seen.requested, 7, inputs.now)
        assert intent.deadline_at > intent.created_at
        assert len(set(intent.victims)) == len(intent.victims)
        if intent.direction is Direction.OUT:
            assert intent.victims == ()
            assert intent.target == decision.desired[index] > intent.before
        elif intent.direction is Direction.IN:
            assert set(intent.victims) <= set(seen.removable)
            assert intent.target == decision.desired[index] == intent.before - len(intent.victims)
        else:
            assert {(intent.group, vm) for vm in intent.victims} <= set(inputs.interrupted)
            assert 0 < len(intent.victims) <= inputs.limits.max_replacements
            assert inputs.limits.max_replacements_percent == 0.0
            assert intent.target == intent.before


@given(minutes())
def test_every_change_that_was_decided_has_its_intent_or_yields_to_a_replacement(
    minute: tuple[DecisionInputs, Stub],
) -> None:
    inputs, stub = minute
    decision = decide(inputs, Proposer(evaluate_directly, {STUB: stub})).decision
    assert inputs.snapshot is not None
    acted = {intent.group for intent in decision.intents}
    for group, before, after in zip(inputs.fleet.groups, inputs.snapshot.requested, decision.desired, strict=True):
        assert before == after or group.key in acted


@given(minutes())
def test_the_state_goes_on_by_one_minute(minute: tuple[DecisionInputs, Stub]) -> None:
    inputs, stub = minute
    result = decide(inputs, Proposer(evaluate_directly, {STUB: stub}))
    assert result.state.decisions == inputs.state.decisions + 1
    assert result.state.policy == STUB
    assert result.state.memory == {"minutes": (1.0,)}
    assert result.state.spend.at == inputs.now
    for intent in result.decision.intents:
        assert result.state.known_desired[intent.group] == intent.target


def test_a_fleet_that_could_not_be_read_is_held_and_no_policy_is_asked() -> None:
    context = scene()
    failure = ReadFailure(FailureClass.THROTTLE, "Rate exceeded")
    memory = {"minutes": (4.0,)}
    state = replace(context.state, memory=memory)
    result = decided(context, 9, 9, 9, snapshot=None, cloud_failure=failure, state=state)
    assert result.decision.reason is Reason.CLOUD_UNREADABLE
    assert "Rate exceeded" in result.decision.sentence
    assert (result.decision.desired, result.decision.intents) == ((), ())
    assert result.state == replace(state, decisions=1, policy=STUB)


def test_the_policy_speaks_when_nothing_was_held_and_the_last_rail_when_something_was() -> None:
    free = decided(scene(), 6, 4, 4).decision
    assert (free.reason, free.desired) == (Reason.LOAD_HIGH, (6, 4, 4))
    assert free.sentence.endswith("(load_high): so")
    held = decided(scene(controls=paused(PauseScope.OUT)), 6, 4, 4).decision
    assert (held.reason, held.desired, held.intents) == (Reason.PAUSED, (4, 4, 4), ())
    assert held.sentence.startswith("no change (paused): so; ")


def test_shadows_are_recorded_each_with_its_own_memory_and_change_nothing() -> None:
    alone = decided(scene(), 6, 4, 4)
    policies = {STUB: Stub((6, 4, 4)), "other": Stub((0, 0, 0)), "third": Stub((9, 9, 9))}
    inputs = inputs_of(scene(), shadows=("other", "third"))
    beside = decide(inputs, Proposer(evaluate_directly, policies))
    assert [shadow.desired for shadow in beside.decision.shadows] == [(0, 0, 0), (9, 9, 9)]
    assert replace(beside.decision, shadows=()) == alone.decision
    assert replace(beside.state, shadow_memories={}) == alone.state
    assert beside.state.shadow_memories == {"other": {"minutes": (1.0,)}, "third": {"minutes": (1.0,)}}
    state = replace(scene().state, shadow_memories={"third": {"minutes": (7.0,)}, "gone": {"minutes": (5.0,)}})
    later = decide(replace(inputs, state=state), Proposer(evaluate_directly, policies))
    assert later.state.shadow_memories == {"other": {"minutes": (1.0,)}, "third": {"minutes": (8.0,)}}


def test_the_live_policy_is_asked_before_the_shadows_and_sees_what_they_see() -> None:
    asked: list[tuple[str, Snapshot]] = []

    class Noted(Stub):
        def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
            asked.append((self._more["detail_of"], snapshot))
            return Proposal(fleet.name, STUB, self._desired, Reason.LOAD_HIGH), {}

    policies = {name: Noted((4, 4, 4), detail_of=name) for name in ("first", STUB, "last")}
    decide(inputs_of(scene(), shadows=("first", "last")), Proposer(evaluate_directly, policies))
    assert [name for name, _ in asked] == [STUB, "first", "last"]
    assert all(seen == asked[0][1] for _, seen in asked)


def test_shadows_of_a_fleet_that_could_not_be_read_are_not_asked_and_keep_their_memory() -> None:
    state = replace(scene().state, shadow_memories={"other": {"minutes": (3.0,)}})
    result = decided(scene(), 9, 9, 9, snapshot=None, shadows=("other",), state=state)
    assert result.decision.shadows == ()
    assert result.state.shadow_memories == state.shadow_memories


def test_a_notice_outranks_a_change_of_size_of_its_group() -> None:
    spot = (("workers_m", "workers_m-0"),)
    out = decided(scene(), 6, 6, 4, interrupted=spot).decision
    assert [(intent.group, intent.direction) for intent in out.intents] == [
        ("workers_m", Direction.REPLACE),
        ("workers_l", Direction.OUT),
    ]


@pytest.mark.parametrize("about", [{"mode": Mode.OBSERVE}, {"leader": False}])
def test_a_notice_is_acted_on_by_the_leader_in_act_mode_alone(about: dict[str, Any]) -> None:
    result = decided(scene(**about), 6, 4, 4, interrupted=(("workers_m", "workers_m-0"),))
    assert result.decision.intents == ()
    assert result.decision.proposal.desired == (6, 4, 4)
    assert result.decision.at == NOON


@pytest.mark.parametrize(("rps", "sizes", "reason"), [(3100.0, "workers_m", "load_high"), (None, "", "stale_input")])
def test_the_sentence_names_the_signal_that_decided_or_is_absent(rps: float | None, sizes: str, reason: str) -> None:
    here = scene((4, 4, 4), snapshot={"signals": (SignalSnapshot(Signal("rps", 50.0), rps),)})
    inputs = inputs_of(here, policy="signal-tracking:out_periods=1")
    assert inputs.snapshot is not None
    decision = decide(inputs, Proposer(evaluate_directly)).decision
    assert decision.sentence.startswith(sizes)
    assert f"({reason}): " in decision.sentence
    assert "rps" in decision.sentence
    seen = "\n".join(_seen(inputs))
    assert ("signal rps 3100" in seen) is (rps is not None)
    readings = {name: value for name, labels, value in _minute(here.fleet, inputs.snapshot) if "rps" in labels}
    assert readings == {"signal_target": 50.0} | ({} if rps is None else {"signal_value": rps})
