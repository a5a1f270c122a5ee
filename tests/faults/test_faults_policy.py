"""A policy hangs, raises or returns nonsense: the baseline decides in its place, it is reported, and the rails hold."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from agent.autoscaling.policies.fallback import STANDING_IN, Proposer, ShadowTime, evaluate_within
from agent.autoscaling.policies.rules import QueueRulePolicy
from agent.autoscaling.replay import replay
from agent.autoscaling.state import FleetStore
from agent.rails.state import Memory
from domain.decisions import Decision, Proposal, Reason
from domain.fleet import Fleet
from domain.snapshot import Snapshot
from tests.agent.autoscaling.policies.misbehaving import NONSENSE, Misbehaving, in_turn, proposing, quitting, raising
from tests.faults.evidence import carried_out, told
from tests.faults.world import QUICK, SMALL, MakeWorld

BASELINE = "queue-rule"


def test_whatever_a_policy_answers_the_baseline_stands_in_and_it_is_reported(make_world: MakeWorld) -> None:
    policy = Misbehaving(raising)
    world = make_world(policy="bad", known={"bad": policy}, interruptions=False)
    twin_desired = []
    for answer, memory, complaint in NONSENSE.values():
        policy.answer, policy.memory = answer, memory
        world.waiting = len(world.reports) // 4 * 5
        world.tick()
        decision = world.last
        assert decision.proposal.policy == QueueRulePolicy().name
        assert f"standing in: {complaint}" in decision.proposal.detail
        assert [failure[: len(complaint)] for failure in decision.policy_failures] == [complaint]
        twin_desired.append(decision.desired)
    complaints = [complaint for _, _, complaint in NONSENSE.values()]
    failed = zip(told(world, Reason.POLICY_FAILED), complaints, strict=True)
    assert [detail[: len(complaint)] for detail, complaint in failed] == complaints
    assert told(world, Reason.INTERNAL_ERROR) == []
    world.close()
    baseline = make_world(policy=BASELINE, interruptions=False)
    for minute, desired in enumerate(twin_desired):
        baseline.waiting = minute // 4 * 5
        baseline.tick()
        assert baseline.last.desired == desired
    assert max(map(sum, twin_desired)) > 1


def test_a_policy_that_hangs_is_left_behind_at_its_deadline_and_not_started_again(
    make_world: MakeWorld,
) -> None:
    let_go = threading.Event()

    def hangs(fleet: Fleet, snapshot: Snapshot) -> Any:
        let_go.wait(60.0)

    policy = Misbehaving(hangs)
    world = make_world(policy="bad", known={"bad": policy}, deadline_s=0.1, interruptions=False)
    try:
        world.submit(20)
        world.tick(2)
        assert world.last.proposal.policy == QueueRulePolicy().name
        assert sum(world.desired().values()) > 1
        world.tick(3)
        assert len(policy.seen) == 1
        assert sum(thread.name == "policy learned" for thread in threading.enumerate()) == 1
        first, *later = told(world, Reason.POLICY_FAILED)
        assert "within 0.1 s" in first
        assert [text.endswith("on an earlier minute") for text in later] == [True] * 4
    finally:
        let_go.set()


def test_a_policy_that_comes_to_itself_decides_again(make_world: MakeWorld) -> None:
    policy = Misbehaving(in_turn(raising, quitting, proposing((2, 0, 0)), proposing((3, 0, 0))))
    world = make_world(policy="bad", known={"bad": policy}, deadline_s=0.3, interruptions=False)
    world.tick(4)
    assert [report.decisions[0].proposal.policy for report in world.reports][2:] == ["learned", "learned"]
    assert len(told(world, Reason.POLICY_FAILED)) == 2
    assert world.last.reason is Reason.LEARNED


@pytest.mark.exhaustive
def test_rails_bound_what_can_be_read(make_world: MakeWorld) -> None:
    world = make_world(policy="bad", known={"bad": Misbehaving(proposing((500, 7, 0)))}, interruptions=False)
    world.tick(3)
    assert world.desired() == {"small": 10, "medium": 7, "large": 0}
    assert told(world, Reason.POLICY_FAILED) == []
    assert any(effect.reason is Reason.ABOVE_MAXIMUM for effect in world.reports[0].decisions[0].effects)


def test_rails_slow_down_a_policy_that_swings(make_world: MakeWorld) -> None:
    policy = Misbehaving(in_turn(*[proposing((10, 0, 0)), proposing((1, 0, 0))] * 10))
    limits = replace(
        QUICK, max_step_out=2, max_step_in=1, cooldown_out_s=300.0, cooldown_in_s=300.0, in_periods=3, max_reversals=2
    )
    world = make_world(policy="bad", known={"bad": policy}, limits=limits, interruptions=False)
    world.tick(20)
    sizes = [int(call["DesiredCapacity"]) for call in carried_out(world, "SetDesiredCapacity")]
    assert sizes == [3, 5, 7, 9]
    assert world.count("TerminateInstanceInAutoScalingGroup") == 0


def test_a_shadow_that_misbehaves_harms_nothing_but_itself(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,), interruptions=False)
    managed = world.loop.fleets[0]
    bad = Misbehaving(proposing((float("nan"),)), {"h": (float("inf"),)})
    world.loop.fleets = (replace(managed, shadows=("bad",)),)
    world.loop.proposer = type(world.loop.proposer)(world.loop.proposer._evaluate, {"bad": bad})
    world.submit(8)
    world.tick(2)
    assert world.desired() == {"small": 4}
    assert world.reports[0].decisions[0].policy_failures == ()
    assert told(world, Reason.POLICY_FAILED) == []


def test_a_policy_cannot_change_the_memory_it_was_given_in_place(make_world: MakeWorld) -> None:
    class Scribbler(Misbehaving):
        def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
            self.seen.append(dict(memory))
            cast("dict[str, tuple[float, ...]]", memory)["scribble"] = (float("nan"),)
            raise KeyError("mid-way")

    policy = Scribbler(raising)
    world = make_world(policy="bad", known={"bad": policy}, interruptions=False)
    world.tick(3)
    assert policy.seen == [{}, {}, {}]
    assert [report.decisions[0].decision_id for report in world.reports] == ["web-1", "web-2", "web-3"]


class Named(Misbehaving):
    """Notes in `asked` which fleet asked which policy."""

    asked: ClassVar[list[str]] = []

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        self.asked.append(f"{fleet.name} {self.name}")
        return super().decide(fleet, snapshot, memory)


def failures(decision: Decision) -> list[str]:
    """Why each shadow did not answer, "" for one that did."""
    return [shadow.detail.partition(STANDING_IN)[2] for shadow in decision.shadows]


def test_shadows_that_hang_take_their_share_of_a_turn_and_no_more(make_world: MakeWorld) -> None:
    let_go = threading.Event()

    def hangs(fleet: Fleet, snapshot: Snapshot) -> Any:
        let_go.wait(60.0)

    names = [f"hangs-{number}" for number in range(6)]
    known = {name: Misbehaving(hangs, name=name) for name in names}
    known |= {"live": Misbehaving(proposing((2,)), name="live"), "sound": Misbehaving(proposing((5,)), name="sound")}
    world = make_world(groups=(SMALL,), sizes=(1,), policy="live", interruptions=False)
    world.loop.proposer = Proposer(evaluate_within(5.0), known, shadows=ShadowTime(each_s=0.5, all_s=1.5))
    world.loop.fleets = tuple(replace(one, shadows=(*names, "sound")) for one in world.loop.fleets)
    try:
        world.tick()
        assert "within 0.5 s" in failures(world.last)[0]
        late = [text.split()[0] for text in failures(world.last) if "within 0 s" in text]
        assert late == [*names[3:], "sound"]
        world.tick(2)
        late = [text.split()[0] for text in failures(world.last) if "on an earlier minute" in text]
        assert (late, failures(world.last)[-1]) == (names, "")
        assert world.last.shadows[-1].desired == (5,)
        assert [len(policy.seen) for policy in known.values()] == [1] * 6 + [3, 1]
        decisions = [report.decisions[0] for report in world.reports]
        assert [(made.desired, made.policy_failures) for made in decisions] == [((2,), ())] * 3
        assert told(world, Reason.POLICY_FAILED) == []
    finally:
        let_go.set()


def test_the_policy_of_every_fleet_answers_before_any_shadow_is_asked(make_world: MakeWorld) -> None:
    known = {name: Named(proposing((1,)), name=name) for name in ("live", "aside")}
    world = make_world(
        groups=(SMALL,), sizes=(1,), batch=(replace(SMALL, key="b", name="batch-b"),), policy="live", known=known
    )
    world.loop.fleets = tuple(replace(one, shadows=("aside",)) for one in world.loop.fleets)
    Named.asked.clear()
    world.tick()
    assert Named.asked == ["web live", "batch live", "web aside", "batch aside"]


def test_a_fleet_whose_shadows_cannot_be_asked_is_decided_without_them(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,), interruptions=False)
    world.loop.fleets = tuple(replace(one, shadows=("hold",)) for one in world.loop.fleets)

    def broken(fleet: str) -> str | None:
        raise RuntimeError("the moon is full")

    world.loop.probationer = broken
    world.submit(8)
    world.tick()
    assert world.desired() == {"small": 4}
    assert world.last.shadows == ()
    (text,) = told(world, Reason.INTERNAL_ERROR)
    assert "the moon is full" in text
    ((inputs, decision),) = FleetStore(world.ledger).inputs("web")
    assert (inputs.shadows, [item.same for item in replay([(inputs, decision)])]) == ((), [True])


def test_a_shadow_that_is_the_policy_or_is_named_twice_is_asked_once(make_world: MakeWorld) -> None:
    world = make_world(groups=(SMALL,), sizes=(1,), interruptions=False)
    live = world.loop.fleets[0].policy
    world.loop.fleets = tuple(replace(one, shadows=("hold", live, "hold")) for one in world.loop.fleets)
    world.loop.probationer = lambda fleet: "hold"
    world.tick()
    assert [shadow.policy for shadow in world.last.shadows] == ["hold"]
