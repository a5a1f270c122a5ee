"""May this changing call be made now? One answer for every call, asked right before its request is made.

A decision and its call may lie apart: AWS throttles, another agent takes over, a process is stopped and resumes minutes
later. So nothing is sent on the readings of its decision. Each call reads the operators' controls afresh; a change
of size passes the rails for pause, pin, budget and circuit breaker once more; a VM is terminated only if it still does
not work. An intent that an earlier turn left unsent rests on this minute's measurements: the loop decides the minute
again, as if the intent had never been made, before the intent is followed (`late_grounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from actuators.base import KEEPING, Act, ChangingCall, Refusal
from actuators.outcomes import achieved, asked
from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.kernel.guards import FRESH_S, late_refusal, refused_by_breaker, refused_by_pause
from agent.rails.base import RailContext, utc
from agent.rails.budget import budget
from agent.rails.circuit_breaker import circuit_breaker
from agent.rails.permissions import pause_and_pin
from agent.rails.state import Ages, Breaker, late_s
from domain.clock import BothTimes, Clock
from domain.controls import Controls
from domain.decisions import Direction, Intent, Proposal, Reason, Verdict
from domain.observed import GroupObserved

_LAST_RAILS: Final = (pause_and_pin, budget, circuit_breaker)
_UNMEASURED: Final = frozenset(
    (Reason.STALE_INPUT, Reason.LOW_COVERAGE, Reason.CLOUD_UNREADABLE, Reason.NOT_FINITE, Reason.SCHEMA_MISMATCH)
)
"""Reasons of a decision that knew too little to say whether an intent still holds."""
_NAMED: Final = frozenset((Reason.PAUSED, Reason.PINNED, Reason.OVER_BUDGET, Reason.CIRCUIT_OPEN))


@dataclass(frozen=True, slots=True)
class Grounds:
    """The grounds of an intent: the minute, the sizes decided in it, and how many cores each VM then had at work."""

    context: RailContext
    desired: tuple[int, ...]
    busy: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class FleetPermit:
    """The permit for calls on one fleet: the decision of its turn, and the sources that a call reads again.

    now, began: of the turn, before anything was read. grounds: of the intent that is carried out or followed. recorded:
    whether the ledger has this turn's decision of the fleet. controls: of the operators and of open windows, at a time;
    LedgerUnavailable. busy_cores: of a VM, by the key of its group, at a time. retained: whether another decision needs
    a VM where it is.
    """

    now: float
    began: BothTimes
    clock: Clock
    controls: Callable[[float], Controls]
    busy_cores: Callable[[str, str, float], float | None]
    retained: Callable[[str], bool]
    ages: Ages
    breakers: tuple[Breaker, ...] = ()
    recorded: bool = False
    grounds: Grounds | Refusal | None = None

    def __call__(self, call: ChangingCall) -> Refusal | None:
        """Return why the call may not be made now, None when it may. Raises LedgerUnavailable."""
        if call.act in KEEPING:
            return None
        wall, monotonic = self.clock.now(), self.clock.monotonic()
        passed_s = late_s(self.began, wall, monotonic)
        if passed_s > FRESH_S:
            return late_refusal(passed_s)
        if call.act is Act.COMPLETE_HOOK:
            return None
        if call.act is Act.UNPROTECT and not self.recorded:
            # Its decision records whose protection is taken off: after a restart it would pass for the agent's still.
            return Refusal(
                Reason.LEDGER_UNAVAILABLE, f"no decision of {call.subject} is recorded this turn", over=False
            )
        now = self.now + passed_s
        intent = call.intent
        if intent is not None and call.act is not Act.LOWER_DESIRED and _is_over(intent, self.ages, now, monotonic):
            return Refusal(Reason.OVERDUE, f"{intent.intent_id} was not sent before its deadline")
        controls = self.controls(now)
        refusal = refused_by_pause(call.act, controls, now)
        if refusal is not None or intent is None:
            return refusal
        if call.act is Act.LOWER_DESIRED:
            cores = self.busy_cores(call.group, call.vm, now) if call.vm else None
            return _busy(call.vm, cores) if cores else None
        if call.act is Act.REPLACE:
            return refused_by_breaker(call.group, self.breakers, now)
        return self._resized(call, intent, controls, now)

    def _resized(self, call: ChangingCall, intent: Intent, controls: Controls, now: float) -> Refusal | None:
        """Return why a group's size may not be changed now."""
        grounds = self.grounds
        if grounds is None:
            detail = f"{intent.intent_id} rests on no decision of this turn"
            return Refusal(Reason.STALE_INPUT, detail, over=False)
        if isinstance(grounds, Refusal):
            return grounds
        context = replace(
            grounds.context, now=now, controls=controls, state=replace(grounds.context.state, breakers=self.breakers)
        )
        index = context.fleet.index(intent.group)
        proposal = Proposal(intent.fleet, "last check", grounds.desired, Reason.IN_FLIGHT)
        for rail in _LAST_RAILS:
            before = proposal.desired[index]
            proposal, effect = rail.apply(proposal, context)
            if proposal.desired[index] != before:
                return Refusal(effect.reason or Reason.SUPERSEDED, f"rail {rail.name}: {effect.detail}")
        return self._at_work(call, intent, grounds, now) if call.vm else None

    def _at_work(self, call: ChangingCall, intent: Intent, grounds: Grounds, now: float) -> Refusal | None:
        """Return the refusal of a VM that another decision needs by now, or that was idle when chosen and may be not.

        A spare that works goes only where a victim did: else its drain would begin because an idle VM may not go.
        """
        if self.retained(call.vm):
            return Refusal(Reason.BUSY, f"another decision needs {call.vm} by now")
        was, cores = grounds.busy.get(call.vm), self.busy_cores(call.group, call.vm, now)
        if was and call.vm in intent.spares and not any(grounds.busy.get(vm) for vm in intent.victims):
            return Refusal(Reason.BUSY, f"{call.vm} works, and only idle VMs were to go")
        if was:
            return None  # chosen although it works: its drain lets it finish
        if cores:
            return _busy(call.vm, cores)
        if cores is None and was is not None:
            return Refusal(Reason.BUSY, f"{call.vm} was idle and reports no more")
        return None


def _busy(vm: str, cores: float) -> Refusal:
    return Refusal(Reason.BUSY, f"{vm} has {cores:g} busy cores now")


def grounds_of(inputs: DecisionInputs, decided: DecisionResult, busy: Mapping[str, float | None]) -> Grounds | None:
    """Return the grounds of a decision, None where its fleet was not read; busy: cores of each VM."""
    if inputs.snapshot is None:
        return None
    return Grounds(inputs.context(inputs.snapshot, decided.state), decided.decision.desired, busy)


def is_unsent(intent: Intent, seen: GroupObserved | None) -> bool:
    """Return whether a change of size is still due, wholly or in part, by the group as AWS shows it."""
    if seen is None or intent.direction is Direction.REPLACE:
        return False
    if intent.direction is Direction.OUT:
        return seen.desired < intent.target
    return achieved(intent, seen) < asked(intent)


def late_grounds(
    intent: Intent, seen: GroupObserved, inputs: DecisionInputs, decided: DecisionResult, grounds: Grounds | None
) -> Grounds | Refusal:
    """Return the grounds of a decision without an open intent if that would make the intent again, else why not.

    seen: the intent's group.
    """
    again = next((one for one in decided.decision.intents if one.group == intent.group), None)
    serving = {instance.vm for instance in seen.serving}
    if grounds is not None and again is not None and _covers(again, intent, serving):
        return grounds
    return _not_again(inputs.fleet.index(intent.group), intent, decided)


def _is_over(intent: Intent, ages: Ages, now: float, monotonic: float) -> bool:
    length_s = intent.deadline_at - intent.created_at
    return now >= intent.deadline_at or ages.age_s(intent, now, monotonic) >= length_s


def _covers(again: Intent, intent: Intent, serving: set[str]) -> bool:
    """Return whether a new decision goes at least as far as the intent, by the same VMs as far as they still serve."""
    if again.direction is not intent.direction:
        return False
    if intent.direction is Direction.OUT:
        return again.target >= intent.target
    return again.target <= intent.target and {vm for vm in intent.victims if vm in serving} <= set(again.victims)


def _not_again(index: int, intent: Intent, decided: DecisionResult) -> Refusal:
    """Return why the intent would not be made again: a hold, by its name, or another wish of this minute."""
    decision = decided.decision
    spoke = [e for e in decision.effects if e.verdict is not Verdict.PASSED and e.before[index] != e.after[index]]
    reason = spoke[-1].reason if spoke else decision.proposal.reason
    detail = f"decided at {utc(intent.created_at)}, not sent since, and not decided again now: {decision.sentence}"
    if reason in _UNMEASURED:
        return Refusal(reason or Reason.STALE_INPUT, f"waits: {decision.sentence}", over=False)
    return Refusal(reason if reason in _NAMED else Reason.SUPERSEDED, detail)
