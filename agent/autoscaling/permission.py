"""May this changing call be made now? One answer for every call, asked right before its request is made.

A decision and its call may lie apart: AWS throttles, another agent takes over, a process is stopped and goes on minutes
later. So nothing is sent on what was true when it was decided. Each call reads the operators' controls afresh; a change
of size passes the rails for pause, pin, budget and circuit breaker once more; a VM is terminated only if it still does
not work. An intent that an earlier turn left unsent is decided again on this minute's measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from actuators.base import KEEPING, Act, ChangingCall, Refusal
from agent.autoscaling.decide import Decided, DecisionInputs, decide
from agent.autoscaling.intents import state_without, with_open_targets
from agent.autoscaling.ports import ManagedFleet, Ports
from agent.autoscaling.store import AUTOSCALING
from agent.kernel.guards import FRESH_S, late_refusal, refused_by_breaker, refused_by_pause
from agent.rails.base import RailContext, utc
from agent.rails.budget import budget
from agent.rails.circuit_breaker import circuit_breaker
from agent.rails.permissions import pause_and_pin
from agent.rails.schedule import with_pauses
from agent.rails.state import Ages, LoopState, late_s
from domain.clock import BothTimes
from domain.controls import Controls
from domain.decisions import Direction, Intent, Proposal, Reason, Verdict
from domain.observed import Observed

_LAST_RAILS: Final = (pause_and_pin, budget, circuit_breaker)
_UNMEASURED: Final = frozenset(
    (Reason.STALE_INPUT, Reason.LOW_COVERAGE, Reason.CLOUD_UNREADABLE, Reason.NOT_FINITE, Reason.SCHEMA_MISMATCH)
)
"""Reasons of a decision that knew too little to say whether an intent still holds."""
_NAMED: Final = frozenset((Reason.PAUSED, Reason.PINNED, Reason.OVER_BUDGET, Reason.CIRCUIT_OPEN))


@dataclass(frozen=True, slots=True)
class _Grounds:
    """What an intent rests on: the minute, the sizes decided in it, and how many cores each VM then had at work."""

    context: RailContext
    desired: tuple[int, ...]
    busy: Mapping[str, float | None]


class Permission:
    """The permit of one turn of the loop. began: when that was, on both clocks, before anything was read."""

    def __init__(self, now: float, ports: Ports, states: Mapping[str, LoopState], began: BothTimes) -> None:
        self._now, self._ports, self._states, self._began = now, ports, states, began
        self._managed = {managed.fleet.name: managed for managed in ports.fleets}
        self._observed = Observed(now)
        self._grounds: dict[str, _Grounds | Refusal] = {}
        self._recorded: set[str] = set()

    def read(self, observed: Observed) -> None:
        """Take what this turn has read, which late intents are decided on again."""
        self._observed = observed

    def decided(self, inputs: DecisionInputs, decided: Decided) -> None:
        """Take a decision of this turn, once it is recorded, as what its intents and the care for its VMs rest on."""
        self._recorded.add(inputs.fleet.name)
        grounds = self._grounds_of(inputs, decided)
        if grounds is not None:
            self._grounds.update({intent.intent_id: grounds for intent in decided.decision.intents})

    def __call__(self, call: ChangingCall) -> Refusal | None:
        """Return why the call may not be made now, None when it may. Raises LedgerUnavailable."""
        if call.act in KEEPING:
            return None
        wall, monotonic = self._ports.wall(), self._ports.monotonic()
        passed_s = late_s(self._began, wall, monotonic)
        if passed_s > FRESH_S:
            return late_refusal(passed_s)
        if call.act is Act.LET_GO:
            return None
        if call.act is Act.UNPROTECT and call.subject not in self._recorded:
            # Its decision records whose protection is taken off: after a restart it would pass for the agent's still.
            return Refusal(
                Reason.LEDGER_UNAVAILABLE, f"no decision of {call.subject} is recorded this turn", over=False
            )
        now = self._now + passed_s
        intent = call.intent
        if intent is not None and call.act is not Act.GIVE_BACK and _is_over(intent, self._ports.ages, now, monotonic):
            return Refusal(Reason.OVERDUE, f"{intent.intent_id} was not sent before its deadline")
        controls = self._controls(call.subject, now)
        refusal = refused_by_pause(call.act, controls, now)
        if refusal is not None or intent is None:
            return refusal
        if call.act is Act.GIVE_BACK:
            return self._works_early(call, now)
        if call.act is Act.REPLACE:
            return refused_by_breaker(call.group, self._states[call.subject].breakers, now)
        return self._resized(call, intent, controls, now)

    def _works_early(self, call: ChangingCall, now: float) -> Refusal | None:
        """Return the refusal of a VM that is not in service yet and works all the same."""
        managed = self._managed.get(call.subject)
        if not call.vm or managed is None:
            return None
        cores = self._ports.aggregator.busy_cores_of(managed.fleet, call.group, call.vm, now)
        return Refusal(Reason.BUSY, f"{call.vm} has {cores:g} busy cores now") if cores else None

    def _controls(self, subject: str, now: float) -> Controls:
        """Return the operators' controls as the ledger has them now, with the pause of an open window."""
        controls, managed = self._ports.ledger.controls(AUTOSCALING, subject), self._managed.get(subject)
        return controls if managed is None else with_pauses(controls, managed.in_minute(now)[1], now)

    def _resized(self, call: ChangingCall, intent: Intent, controls: Controls, now: float) -> Refusal | None:
        """Return why a group's size may not be changed now."""
        managed = self._managed[intent.fleet]
        grounds = self._grounds.get(intent.intent_id)
        if grounds is None:
            grounds = self._grounds[intent.intent_id] = self._decided_again(managed, intent, controls)
        if isinstance(grounds, Refusal):
            return grounds
        breakers = self._states[intent.fleet].breakers
        context = replace(
            grounds.context, now=now, controls=controls, state=replace(grounds.context.state, breakers=breakers)
        )
        index = managed.fleet.index(intent.group)
        proposal = Proposal(intent.fleet, "last check", grounds.desired, Reason.IN_FLIGHT)
        for rail in _LAST_RAILS:
            before = proposal.desired[index]
            proposal, effect = rail.apply(proposal, context)
            if proposal.desired[index] != before:
                return Refusal(effect.reason or Reason.SUPERSEDED, f"rail {rail.name}: {effect.detail}")
        return self._at_work(call, intent, managed, grounds, now) if call.vm else None

    def _at_work(
        self, call: ChangingCall, intent: Intent, managed: ManagedFleet, grounds: _Grounds, now: float
    ) -> Refusal | None:
        """Return the refusal of a VM that was idle when it was chosen and is not, or no longer says so.

        A spare that works goes only where a victim did: else its drain would begin because an idle VM may not go.
        """
        was = grounds.busy.get(call.vm)
        cores = self._ports.aggregator.busy_cores_of(managed.fleet, call.group, call.vm, now)
        if was and call.vm in intent.spares and not any(grounds.busy.get(vm) for vm in intent.victims):
            return Refusal(Reason.BUSY, f"{call.vm} works, and only idle VMs were to go")
        if was:
            return None  # chosen although it works: its drain lets it finish
        if cores:
            return Refusal(Reason.BUSY, f"{call.vm} has {cores:g} busy cores now")
        if cores is None and was is not None:
            return Refusal(Reason.BUSY, f"{call.vm} was idle and reports no more")
        return None

    def _decided_again(self, managed: ManagedFleet, intent: Intent, controls: Controls) -> _Grounds | Refusal:
        """Decide this minute as if the intent had never been made, and return the grounds if it would be made again."""
        fleet, ports, observed = managed.fleet, self._ports, self._observed
        managed, windows = managed.in_minute(self._now)
        if any(group.name not in observed.groups for group in fleet.groups):
            return Refusal(Reason.CLOUD_UNREADABLE, f"groups of {fleet.name} could not be read", over=False)
        others = {one.group: one for one in ports.ledger.open_intents(fleet.name) if one.group != intent.group}
        coming = with_open_targets(fleet, observed, others)
        state = state_without(self._states[fleet.name], intent)
        snapshot, state = ports.aggregator.snapshot(fleet, coming, state, managed.aggregation, self._now)
        inputs = DecisionInputs(
            decision_id=intent.decision_id,
            now=self._now,
            fleet=fleet,
            snapshot=snapshot,
            state=state,
            controls=controls,
            limits=managed.limits,
            mode=ports.mode,
            leader=True,
            epoch=ports.epoch,
            policy=ports.proposer.resolve(managed.policy, fleet),
            in_flight=tuple(others),
            windows=windows,
        )
        decided = decide(inputs, ports.proposer)
        again = next((one for one in decided.decision.intents if one.group == intent.group), None)
        serving = {instance.vm for instance in observed.groups[fleet.groups[fleet.index(intent.group)].name].serving}
        grounds = self._grounds_of(inputs, decided)
        if grounds is not None and again is not None and _covers(again, intent, serving):
            return grounds
        return _not_again(fleet.index(intent.group), intent, decided)

    def _grounds_of(self, inputs: DecisionInputs, decided: Decided) -> _Grounds | None:
        if inputs.snapshot is None:
            return None
        busy = self._ports.aggregator.busy_cores(inputs.fleet, self._now)
        return _Grounds(inputs.context(inputs.snapshot, decided.state), decided.decision.desired, busy)


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


def _not_again(index: int, intent: Intent, decided: Decided) -> Refusal:
    """Return why the intent would not be made again: what holds it by name, or that something else is wanted now."""
    decision = decided.decision
    spoke = [e for e in decision.effects if e.verdict is not Verdict.PASSED and e.before[index] != e.after[index]]
    reason = spoke[-1].reason if spoke else decision.proposal.reason
    detail = f"decided at {utc(intent.created_at)}, not sent since, and not decided again now: {decision.sentence}"
    if reason in _UNMEASURED:
        return Refusal(reason or Reason.STALE_INPUT, f"waits: {decision.sentence}", over=False)
    return Refusal(reason if reason in _NAMED else Reason.SUPERSEDED, detail)
