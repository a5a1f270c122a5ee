"""Late calls: what a former leader asked of a group arrives when another leads; recognised, and put right.

A leader that is stopped between its last check and the network's write can still send one call, and a proxy may hold
one. So the new leader remembers every open intent of an older epoch whose change AWS does not show yet. When the size
that such a call would set appears later, it is not drift. It is put back to the size that this leader
asked for, without waiting for cool-downs, unless the policy wants it by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.rails.state import FormerCall, LoopState
from domain.decisions import Direction, Event, Intent, Proposal, Reason
from domain.fleet import Fleet, Group
from domain.observed import GroupObserved, Observed
from domain.snapshot import Snapshot
from domain.subject import fleet_subject
from domain.units import HOUR_S


def with_former_call(
    state: LoopState, intent: Intent, fleet: Fleet, observed: Observed, epoch: int, now: float
) -> LoopState:
    """Return the state with an older epoch's open intent remembered as long as AWS does not show its change."""
    group = next((group for group in fleet.groups if group.key == intent.group), None)
    seen = observed.groups.get(group.name) if group is not None else None
    if intent.epoch >= epoch or seen is None:
        return state
    others = tuple(call for call in state.former_calls if call.intent_id != intent.intent_id)
    waiting = _not_shown(intent, seen)
    if waiting is not None:
        known = next((call for call in state.former_calls if call.intent_id == intent.intent_id), None)
        others = (*others, replace(waiting, at=now if known is None else known.at))
    return state if others == state.former_calls else replace(state, former_calls=others)


def _not_shown(intent: Intent, seen: GroupObserved) -> FormerCall | None:
    serving = {instance.vm for instance in seen.serving}
    victims = tuple(vm for vm in intent.candidates if vm in serving)
    if intent.direction is Direction.OUT and seen.desired >= intent.target:
        return None
    if intent.direction is not Direction.OUT and not victims:
        return None
    return FormerCall(intent.group, intent.intent_id, intent.epoch, intent.target, victims, 0.0)


def recognise(
    fleet: Fleet, state: LoopState, observed: Observed, in_flight: Sequence[str], epoch: int, now: float
) -> tuple[LoopState, tuple[Event, ...]]:
    """Return the state with sizes that late calls have set marked to be put back, and an event for each.

    A marked size counts as known, so that it is not taken for drift as well. What became of earlier marks is forgotten
    once the size is back, or another was set from outside. A group with an open intent, or not read, stays as it was.
    """
    calls = [call for call in state.former_calls if now - call.at < HOUR_S]
    known, put_back = dict(state.known_desired), dict(state.put_back)
    events: list[Event] = []
    for group in fleet.groups:
        seen, before = observed.groups.get(group.name), known.get(group.key)
        if seen is None or before is None or group.key in in_flight:
            continue
        if put_back.get(group.key) == seen.desired or before != seen.desired:
            put_back.pop(group.key, None)
        call = _cause(group, before, seen, calls) if before != seen.desired else None
        if call is None:
            continue
        calls.remove(call)
        known[group.key], put_back[group.key] = seen.desired, before
        detail = (
            f"{group.key} ({group.name}) went from {before} to {seen.desired} by a call that epoch {call.epoch} made "
            f"for {call.intent_id} and that arrived when epoch {epoch} led: to be put back to {before}"
        )
        events.append(Event(fleet_subject(fleet.name), now, Reason.LATE_CALL, detail, group.key))
    if (tuple(calls), known, put_back) != (state.former_calls, state.known_desired, state.put_back):
        state = replace(state, former_calls=tuple(calls), known_desired=known, put_back=put_back)
    return state, tuple(events)


def _cause(group: Group, before: int, seen: GroupObserved, calls: Sequence[FormerCall]) -> FormerCall | None:
    """Return the former leader's call that explains a group's new size, None when none does."""
    serving = {instance.vm for instance in seen.serving}
    for call in calls:
        gone = sum(vm not in serving for vm in call.victims)
        if call.group == group.key and (
            0 < before - seen.desired <= gone if call.victims else seen.desired == call.target
        ):
            return call
    return None


def corrected(proposal: Proposal, state: LoopState, fleet: Fleet, snapshot: Snapshot) -> Proposal:
    """Return the proposal with groups that a late call changed put back, unless the policy asks beyond that anyway.

    A group that the call enlarged keeps what the policy asks when that is more than is there; one that it shrank gets
    at least the size it had.
    """
    if not state.put_back or len(proposal.desired) != len(fleet.groups):
        return proposal
    desired = list(proposal.desired)
    for index, group in enumerate(fleet.groups):
        size, current, asked = state.put_back.get(group.key), snapshot.requested[index], desired[index]
        if size is None or size == current:
            continue
        wanted_anyway = asked > current or size <= asked < current if size < current else asked >= size
        if not wanted_anyway:
            desired[index] = size
    if tuple(desired) == proposal.desired:
        return proposal
    detail = f"a former leader's late call is put right; {proposal.detail}"
    return replace(proposal, desired=tuple(desired), reason=Reason.LATE_CALL, detail=detail)
