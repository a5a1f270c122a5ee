"""From a decided size to what will be done, at most one intent per group, and what its outcome changes in the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from actuators.activities import Resize
from agent.autoscaling.refusals import with_refusals
from agent.rails.base import RailLimits, utc
from agent.rails.capacity_memory import record_shortage
from agent.rails.circuit_breaker import record_outcome
from agent.rails.limits import largest_step
from agent.rails.state import Change, Cooldown, LoopState, puts_back
from domain.decisions import Direction, Event, Intent, Outcome, Reason, Status
from domain.fleet import Fleet
from domain.observed import GroupObserved, Observed
from domain.snapshot import Snapshot
from domain.subject import fleet_subject
from domain.units import HOUR_S

_UNSENT = frozenset((Reason.PAUSED, Reason.CIRCUIT_OPEN))
NOTICE_S = 600.0
"""A notice older than this names a VM that is long gone: the cloud takes it two minutes after the notice."""


INTERRUPTION_S = 120.0
"""Between a spot notice and the end of its VM."""
LAST_CALL_S = 90.0
"""A notice that leaves less is acted on now: a minute later too little would be left for the worker to see it."""


def drained_now(
    waiting: Sequence[str], notices: Mapping[str, float], size: int, limits: RailLimits, now: float
) -> tuple[str, ...]:
    """Return the interrupted VMs of a group that are drained in this minute, those first whose notice ends first.

    As many as the limits allow, and all whose notice leaves no time for a later minute. waiting: those in service, of a
    group of `size`. notices: by VM, when AWS gave notice. None at `max_replacements` 0.
    """
    if limits.max_replacements == 0:
        return ()
    most = largest_step(size, limits.max_replacements, limits.max_replacements_percent)
    ordered = sorted(waiting, key=lambda vm: notices.get(vm, now))
    if not limits.max_replacements_percent:
        return tuple(ordered[:most])
    last_call = sum(notices.get(vm, now) + INTERRUPTION_S - now < LAST_CALL_S for vm in waiting)
    return tuple(ordered[: max(most, last_call)])


def with_open_targets(fleet: Fleet, observed: Observed, open_intents: Mapping[str, Intent]) -> Observed:
    """Return the reading with each group that has an open scale-out (by key) desiring what that asks for.

    What is decided is on its way, whether AWS has heard of it yet or not: a throttled call, or an agent started again
    between the decision and the call, must not make the next minute ask another group for the same capacity.
    """
    groups: dict[str, GroupObserved] = {}
    for group in fleet.groups:
        intent, seen = open_intents.get(group.key), observed.groups.get(group.name)
        if intent is not None and seen is not None and intent.direction is Direction.OUT:
            coming = max(seen.desired, min(intent.target, seen.maximum))
            if coming > seen.desired:
                units = replace(seen.capacity, desired=seen.capacity.units_of(coming))
                groups[group.name] = replace(seen, desired=coming, units=units)
    return replace(observed, groups={**observed.groups, **groups}) if groups else observed


def plan_intents(
    decision_id: str,
    fleet: Fleet,
    snapshot: Snapshot,
    desired: tuple[int, ...],
    interrupted: Sequence[tuple[str, str]],
    notices: Mapping[str, float],
    limits: RailLimits,
    in_flight: tuple[str, ...],
    booting: tuple[str, ...],
    epoch: int,
    now: float,
) -> tuple[Intent, ...]:
    """Return what to do to reach `desired`: replacements of interrupted VMs first, then one change of size per group.

    `interrupted` holds (group key, VM) of VMs still in service, `notices` when each got its notice. A group with an
    open intent gets none. A replacement in a group of `booting` takes the place of an open scale-out, whose launches it
    follows: its `before` is the size in service. Scale-in takes the VMs of `removable` in order, so that the least work
    is lost; those behind them are its spares.
    """
    intents = []
    for group, seen, size in zip(fleet.groups, snapshot.groups, desired, strict=True):
        if group.key in in_flight:
            continue
        waiting = [vm for key, vm in interrupted if key == group.key]
        victims = drained_now(waiting, notices, seen.requested, limits, now)
        direction, target, deadline_s = Direction.REPLACE, seen.requested, limits.stop_deadline_s
        spares: tuple[str, ...] = ()
        before = seen.requested
        if victims and group.key in booting:
            before, deadline_s = min(seen.in_service, target), max(deadline_s, limits.boot_deadline_s)
        if not victims and size > seen.requested:
            direction, target, deadline_s = Direction.OUT, size, limits.boot_deadline_s
        elif not victims and size < seen.requested:
            victims = seen.removable[: seen.requested - size]
            spares = seen.removable[len(victims) :][: limits.spares]
            direction, target = Direction.IN, seen.requested - len(victims)
        if victims or direction is Direction.OUT:
            intents.append(
                Intent(
                    intent_id=f"{decision_id}.{group.key}",
                    decision_id=decision_id,
                    fleet=fleet.name,
                    group=group.key,
                    direction=direction,
                    before=before,
                    target=target,
                    victims=victims,
                    epoch=epoch,
                    created_at=now,
                    deadline_at=now + deadline_s,
                    spares=spares,
                )
            )
    return tuple(intents)


def state_after_intents(state: LoopState, intents: tuple[Intent, ...], limits: RailLimits, now: float) -> LoopState:
    """Return the state with cool-downs and changes begun, interruptions acted on, and what is over forgotten."""
    cooldowns = [c for c in state.cooldowns if c.remaining_s(now) > 0.0]
    changes = [c for c in state.changes if abs(now - c.at) < HOUR_S]
    waiting, seen, known = dict(state.interrupted), dict(state.seen_interruptions), dict(state.known_desired)
    for intent in intents:
        known[intent.group] = intent.target
        if intent.direction is Direction.REPLACE:
            for vm in intent.victims:
                seen[vm] = waiting.pop(vm, now)
            continue
        length_s = limits.cooldown_out_s if intent.direction is Direction.OUT else limits.cooldown_in_s
        cooldowns = [c for c in cooldowns if (c.group, c.direction) != (intent.group, intent.direction)]
        cooldowns.append(Cooldown(intent.group, intent.direction, now + length_s, length_s))
        changes.append(Change(intent.group, intent.direction, now))
    # A size that this leader chose on purpose is no longer the late call's.
    chosen = {i.group for i in intents if not puts_back(state.put_back, i.group, i.before, i.target)}
    return replace(
        state,
        put_back={group: size for group, size in state.put_back.items() if group not in chosen},
        cooldowns=tuple(cooldowns),
        changes=tuple(changes),
        capacity=tuple(mark for mark in state.capacity if mark.active(now)),
        interrupted={vm: at for vm, at in waiting.items() if now - at < NOTICE_S},
        seen_interruptions={vm: at for vm, at in seen.items() if now - at < HOUR_S},
        known_desired=known,
    )


def with_past_resizes(
    state: LoopState, fleet: Fleet, limits: RailLimits, resizes: Sequence[Resize], now: float
) -> tuple[LoopState, tuple[Event, ...]]:
    """Return the state with the cool-downs that AWS's own changes of size began, and an event for each that is new.

    So a size that an earlier process, or a person, set within the cool-down counts, although this ledger may not know
    of it. A cool-down that the ledger has ends no earlier for it.
    """
    lengths = {Direction.OUT: limits.cooldown_out_s, Direction.IN: limits.cooldown_in_s}
    keys = {group.name: group.key for group in fleet.groups}
    events: list[Event] = []
    for one in resizes:
        key, length_s = keys.get(one.group_name), lengths[one.direction]
        rests = Cooldown(key or "", one.direction, min(one.at, now) + length_s, length_s)
        if key is None or rests.until <= now:
            continue
        same = [c for c in state.cooldowns if (c.group, c.direction) == (key, one.direction)]
        if any(known.until >= rests.until for known in same):
            continue
        if not same:
            detail = (
                f"AWS changed its size at {utc(one.at, now)}, before this process: scale-{one.direction} rests for "
            )
            detail += f"another {rests.until - now:.0f} s"
            events.append(Event(fleet_subject(fleet.name), now, Reason.COOLING_DOWN, detail, key))
        others = tuple(c for c in state.cooldowns if c not in same)
        state = replace(state, cooldowns=(*others, rests))
    return state, tuple(events)


def state_after_nothing_done(state: LoopState, intent: Intent, outcome: Outcome) -> LoopState:
    """Return the state without the cool-down and change that the intent began, when it turned out to change nothing.

    A change that AWS took and that was undone from outside was one: its cool-down keeps the two from undoing each
    other's sizes every minute. VMs with a spot notice whose replacement was not sent wait for it again, as after a
    pause.
    """
    if intent.direction is Direction.REPLACE and outcome.reason in _UNSENT:
        seen = dict(state.seen_interruptions)
        waiting = {vm: seen.pop(vm) for vm in intent.victims if vm in seen}
        state = replace(state, interrupted={**state.interrupted, **waiting}, seen_interruptions=seen)
    if outcome.achieved or outcome.status not in (Status.SKIPPED, Status.FAILED):
        return state
    if outcome.status is Status.FAILED and outcome.reason is Reason.SUPERSEDED:
        return state
    return state_without(state, intent)


def state_without(state: LoopState, intent: Intent) -> LoopState:
    """Return the state as if the intent had begun no cool-down and counted as no change."""
    return replace(
        state,
        cooldowns=tuple(c for c in state.cooldowns if (c.group, c.direction) != (intent.group, intent.direction)),
        changes=tuple(
            c
            for c in state.changes
            if (c.group, c.direction, c.at) != (intent.group, intent.direction, intent.created_at)
        ),
    )


_WAITED = frozenset((Reason.STALE_INPUT, Reason.LOW_COVERAGE, Reason.NOT_FINITE, Reason.SCHEMA_MISMATCH, Reason.PAUSED))
"""Reasons of ours for which an open intent was not sent."""


def state_after_outcome(
    state: LoopState, intent: Intent, outcome: Outcome, limits: RailLimits, now: float
) -> LoopState:
    """Return the state after the outcome; one that is not final changes nothing yet but the memory of refusals."""
    if outcome.refusals:
        state = replace(state, refusals=with_refusals(state.refusals, outcome.refusals, now))
    if not outcome.status.final:
        return state
    state = replace(
        state_after_nothing_done(state, intent, outcome),
        known_desired=_known_desired(state.known_desired, intent, outcome),
        intent_times={name: times for name, times in state.intent_times.items() if name != intent.intent_id},
    )
    if outcome.shortages:
        state = replace(state, capacity=record_shortage(state.capacity, outcome.shortages, now, limits))
    return replace(state, breakers=record_outcome(state.breakers, intent.group, outcome, limits, now))


def with_cause(outcome: Outcome, before: Outcome | None) -> Outcome:
    """Return an overdue outcome with what stood in the way: the failure that the intent's last outcome `before` met.

    A change that AWS throttled up to its deadline is no sign of a broken group, and must not count as one. Nor is one
    that was never sent because it waited for measurements.
    """
    if outcome.reason is not Reason.OVERDUE or outcome.failure is not None or before is None:
        return outcome
    if before.failure is None and before.reason in _WAITED:
        status = Status.PARTIAL if outcome.achieved else Status.SKIPPED
        detail = f"{outcome.detail}; last: {before.detail}"
        return replace(outcome, status=status, reason=Reason.SUPERSEDED, detail=detail)
    if before.failure is None:
        return outcome
    return replace(outcome, failure=before.failure, detail=f"{outcome.detail}; last: {before.detail}")


def _known_desired(known: Mapping[str, int], intent: Intent, outcome: Outcome) -> dict[str, int]:
    """Return the sizes that are ours, by which the next reading shows what was changed from outside.

    An overdue intent leaves its group's size open: what was achieved could not be read, or AWS may or may not have
    been asked, or what it did not launch was not given back. So does one whose launches end before service: VMs of
    intents before it are given back with its own. The next reading is taken as it is then.
    """
    after = dict(known)
    if outcome.status is Status.DONE or (intent.direction is Direction.REPLACE and not intent.follows_launches):
        return after
    if intent.follows_launches or outcome.reason in (Reason.OVERDUE, Reason.LAUNCHES_FAILING):
        after.pop(intent.group, None)
    else:
        achieved = outcome.achieved if intent.direction is Direction.OUT else -outcome.achieved
        after[intent.group] = intent.before + achieved
    return after
