"""One fleet's decision as a pure function: policy, shadows, rails and intents, from recorded inputs alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from agent.autoscaling.intents import plan_intents, state_after_intents
from agent.autoscaling.late_calls import corrected
from agent.autoscaling.policies.fallback import Proposer
from agent.rails.base import RailContext, RailLimits
from agent.rails.budget import account
from agent.rails.capacity_memory import shortage_until
from agent.rails.inputs import SCALE_IN_WAITS, snapshot_fits
from agent.rails.limits import bounds_of
from agent.rails.order import apply_rails, replaceable
from agent.rails.stability import next_in_streak, remaining_s
from agent.rails.state import LoopState, Memory
from domain.controls import Controls, Window
from domain.decisions import (
    Decision,
    Direction,
    Mode,
    Proposal,
    RailEffect,
    Reason,
    Verdict,
    refusals_text,
)
from domain.errors import FailureClass
from domain.fleet import Fleet
from domain.observed import ReadFailure
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything one decision depends on; stored with it, so that replaying gives the same decision byte for byte.

    `shadows` are policies beside the live one, none twice and none the live one. `interrupted` holds (group key, VM) of
    VMs in service with a spot notice. `cloud_failure` says why the fleet's
    groups could not be read this minute, or cannot be managed (then `snapshot` is None and nothing is decided).
    `windows` are those of its schedule that are open or come within a week; the pause of an open one is in `controls`,
    and its policy is `policy`. `tuned` is the origin of the queue rule's setting, "" where that is the settings' own.
    """

    decision_id: str
    now: float
    fleet: Fleet
    snapshot: Snapshot | None
    state: LoopState
    controls: Controls
    limits: RailLimits
    mode: Mode
    leader: bool
    epoch: int
    policy: str
    shadows: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()
    booting: tuple[str, ...] = ()
    interrupted: tuple[tuple[str, str], ...] = ()
    cloud_failure: ReadFailure | None = None
    windows: tuple[Window, ...] = ()
    tuned: str = ""

    def context(self, snapshot: Snapshot, state: LoopState) -> RailContext:
        """Return what the rails look at, with this snapshot and state."""
        return RailContext(
            self.now,
            self.fleet,
            snapshot,
            state,
            self.controls,
            self.limits,
            self.mode,
            self.leader,
            self.in_flight,
            self.booting,
            self.windows,
        )


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """A decision, and the loop state that follows from it."""

    decision: Decision
    state: LoopState


def decide(inputs: DecisionInputs, proposer: Proposer) -> DecisionResult:
    """Return the fleet's decision for this minute, with what its shadows propose, and the state that follows.

    Pure but for the proposer's deadlines.
    """
    return with_shadows(inputs, decide_alone(inputs, proposer), proposer)


def decide_alone(inputs: DecisionInputs, proposer: Proposer) -> DecisionResult:
    """Return the fleet's decision and the state that follows; its shadows are not asked.

    Order: tell what physics forbids, ask the policy, account for the money spent, count the scale-in streak, put right
    what a late call did, apply the rails, plan intents. A fleet whose groups could not be read is held as it is,
    whatever the policies might say.
    """
    snapshot = inputs.snapshot
    state = _begun(inputs)
    if snapshot is None:
        failure = inputs.cloud_failure
        if failure is not None and failure.failure is FailureClass.UNSUPPORTED:
            return DecisionResult(
                _held(inputs, Reason.GROUP_UNSUPPORTED, failure.detail), replace(state, unsupported=failure.detail)
            )
        detail = f"{failure.failure}: {failure.detail}" if failure else "no reading of the fleet's groups"
        return DecisionResult(
            _held(inputs, Reason.CLOUD_UNREADABLE, f"AWS could not be read ({detail})", detail), state
        )
    context = inputs.context(snapshot, state)
    proposed = proposer.propose(inputs.policy, inputs.fleet, with_bars(context), state.memory)
    state = replace(
        state,
        spend=account(state.spend, inputs.fleet, snapshot, inputs.now),
        in_streak=next_in_streak(state, proposed.proposal, snapshot),
        memory=proposed.memory,
    )
    proposal = corrected(proposed.proposal, state, inputs.fleet, snapshot)
    context = inputs.context(snapshot, state)
    final, effects = apply_rails(proposal, context)
    may_act = inputs.leader and inputs.mode is Mode.ACT
    interrupted, waiting = replaceable(inputs.interrupted if may_act else (), context)
    intents = plan_intents(
        inputs.decision_id,
        inputs.fleet,
        snapshot,
        final.desired,
        interrupted,
        inputs.state.interrupted,
        inputs.limits,
        inputs.in_flight,
        inputs.booting,
        inputs.epoch,
        inputs.now,
    )
    reason = _reason(proposal, final, effects, snapshot)
    decision = Decision(
        decision_id=inputs.decision_id,
        fleet=inputs.fleet.name,
        at=inputs.now,
        mode=inputs.mode,
        proposal=proposal,
        effects=effects,
        desired=final.desired,
        reason=reason,
        sentence=_sentence(inputs.fleet, snapshot, proposal, final, effects, reason, (*waiting, *_staying(snapshot))),
        intents=intents,
        policy_failures=proposed.failures,
    )
    return DecisionResult(decision, state_after_intents(state, intents, inputs.limits, inputs.now))


def with_shadows(inputs: DecisionInputs, decided: DecisionResult, proposer: Proposer) -> DecisionResult:
    """Return a decision of these inputs with what each shadow proposes, and each one's memory; nothing else changes.

    Every shadow sees what the live policy saw. Those of a fleet that could not be read are not asked.
    """
    if inputs.snapshot is None:
        return decided
    if not inputs.shadows:
        # Most fleets have none: then nothing of what they would see is put together.
        if decided.state.shadow_memories:
            return DecisionResult(decided.decision, replace(decided.state, shadow_memories={}))
        return decided
    seen = with_bars(inputs.context(inputs.snapshot, _begun(inputs)))
    proposals: list[Proposal] = []
    memories: dict[str, Memory] = {}
    kept = inputs.state.shadow_memories
    for name in inputs.shadows:
        proposed = proposer.propose_aside(name, inputs.fleet, seen, kept.get(name, {}))
        proposals.append(proposed.proposal)
        memories[name] = proposed.memory
    return DecisionResult(
        replace(decided.decision, shadows=tuple(proposals)), replace(decided.state, shadow_memories=memories)
    )


def _begun(inputs: DecisionInputs) -> LoopState:
    """Return the state as the minute begins to be decided."""
    unsupported = inputs.state.unsupported if inputs.snapshot is None else ""
    return replace(inputs.state, decisions=inputs.state.decisions + 1, policy=inputs.policy, unsupported=unsupported)


def _held(inputs: DecisionInputs, reason: Reason, why: str, detail: str = "") -> Decision:
    proposal = Proposal(inputs.fleet.name, inputs.policy, (), reason, detail or why)
    return Decision(
        inputs.decision_id, inputs.fleet.name, inputs.now, inputs.mode, proposal, (), (), reason, f"held: {why}"
    )


def _reason(proposal: Proposal, final: Proposal, effects: tuple[RailEffect, ...], snapshot: Snapshot) -> Reason:
    """The last rail that changed something speaks for a decision that differs from the proposal.

    Otherwise the policy does.
    """
    if final.desired == proposal.desired:
        return proposal.reason
    spoke = [e.reason for e in effects if e.verdict is not Verdict.PASSED and e.reason is not None]
    return spoke[-1] if spoke else proposal.reason


def _sentence(
    fleet: Fleet,
    snapshot: Snapshot,
    proposal: Proposal,
    final: Proposal,
    effects: tuple[RailEffect, ...],
    reason: Reason,
    waiting: tuple[str, ...],
) -> str:
    moved = [
        f"{group.key} {now} -> {then}"
        for group, now, then in zip(fleet.groups, snapshot.requested, final.desired, strict=True)
        if now != then
    ]
    rails = [
        e.detail
        for e in effects
        if e.verdict is not Verdict.PASSED and e.detail and e.reason is not Reason.NO_VM_REPORTS
    ]
    head = ", ".join(moved) if moved else "no change"
    return "; ".join([f"{head} ({reason}): {proposal.detail}", *rails, *waiting])


def _staying(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a sentence for each group with idle VMs that may not go, and for a fleet whose idle VMs are not known."""
    waits = (SCALE_IN_WAITS,) if snapshot.without_reports else ()
    refused = (f"{g.key}: not removed though idle: {refusals_text(g.refused)}" for g in snapshot.groups if g.refused)
    return (*waits, *refused)


UNDER_WAY = "an earlier change is in progress"


def with_bars(context: RailContext) -> Snapshot:
    """Return the snapshot with why each group can now get no VM, and why it can lose none."""
    snapshot = context.snapshot
    if not snapshot_fits(context):
        return snapshot
    bars = [(_cannot_add(context, index), _cannot_remove(context, index)) for index in range(len(snapshot.groups))]
    groups = tuple(
        replace(group, cannot_add=out, cannot_remove=back) if out or back else group
        for group, (out, back) in zip(snapshot.groups, bars, strict=True)
    )
    return replace(snapshot, groups=groups)


def _cannot_add(context: RailContext, index: int) -> str:
    group, (_, highest) = context.snapshot.groups[index], bounds_of(context, index)
    until = shortage_until(context, index)
    if context.in_progress(index, Direction.OUT):
        return UNDER_WAY
    if group.requested >= highest:
        return f"{group.requested} of at most {highest} are there"
    return _cooling(context, index, Direction.OUT) or (
        "" if until is None else f"AWS has none for another {until - context.now:.0f} s"
    )


def _cannot_remove(context: RailContext, index: int) -> str:
    group, (lowest, _) = context.snapshot.groups[index], bounds_of(context, index)
    if context.in_progress(index, Direction.IN):
        return UNDER_WAY
    if group.warm <= lowest:
        return f"{group.warm} ready of at least {lowest}"
    return _cooling(context, index, Direction.IN)


def _cooling(context: RailContext, index: int, direction: Direction) -> str:
    left_s = remaining_s(context, index, direction)
    return f"cooling down for another {math.ceil(left_s)} s" if left_s > 0.0 else ""
