"""Rails 4, 15 and 16: what operators, the leadership and the mode allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from agent.rails.base import Power, Rail, RailContext, Word, changing, conclude, held, rail, replaced, utc
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.decisions import Direction, Mode, Origin, Proposal, RailEffect, Reason

_HOLDS = {
    PauseScope.ALL: frozenset((Direction.OUT, Direction.IN)),
    PauseScope.OUT: frozenset((Direction.OUT,)),
    PauseScope.IN: frozenset((Direction.IN,)),
}


def holding(controls: Controls, directions: Collection[Direction], now: float) -> Pause | None:
    """Return the active pause that holds one of the directions, the one that lasts longest if there are several."""
    found = [p for p in controls.pauses if p.active(now) and not _HOLDS[p.scope].isdisjoint(directions)]
    return max(found, key=lambda p: float("inf") if p.until is None else p.until, default=None)


def pause_of(context: RailContext, direction: Direction) -> Pause | None:
    """Return the active pause that holds the direction, the one that lasts longest if there are several."""
    return holding(context.controls, (direction,), context.now)


def active_pin(context: RailContext) -> Pin | None:
    """Return the pin in force, if any."""
    pin = context.controls.pin
    return pin if pin is not None and pin.active(context.now) else None


def _pause_and_pin(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Rail 4: operators' words. A pin sets the size of its groups; a pause holds a direction, also against a pin.

    Set pinned groups to their pin, then hold every change in a paused direction. A pause is the stop switch: whatever
    else is set, no matter in which order, a paused direction does not move. The pin is followed as soon as the pause
    ends, and the effect says so. A pin outranks stale input, sickness and the safe floor, which come before it.
    """
    pin = active_pin(context)
    words: list[Word] = []
    for index, (group, asked) in enumerate(zip(context.fleet.groups, proposal.desired, strict=True)):
        pinned = None if pin is None else pin.desired.get(group.key)
        wanted = asked if pinned is None else max(0, pinned)
        current = context.snapshot.groups[index].requested
        pause = None if wanted == current else pause_of(context, Direction.OUT if wanted > current else Direction.IN)
        if pause is not None:
            why = pause_sentence(pause, context.now, pinned=pinned is not None)
            words.append(held(context, index, wanted, Reason.PAUSED, why))
        elif wanted != asked and pin is not None:
            words.append(replaced(context, index, asked, wanted, Reason.PINNED, _pin_sentence(pin, context.now)))
    after, effect = conclude(
        "pause_and_pin", proposal, [word for word in words if word.desired != proposal.desired[word.index]]
    )
    if pin is None or not any(group.key in pin.desired for group in context.fleet.groups):
        return after, effect
    # A pin of some groups leaves the safe floor in force for the others; both are exempt from the same rails.
    origin = Origin.FLOOR if proposal.origin is Origin.FLOOR else Origin.PIN
    return replace(after, origin=origin, reason=Reason.PINNED, detail=_pin_sentence(pin, context.now)), effect


def pause_sentence(pause: Pause, now: float, *, pinned: bool = False) -> str:
    """Return the scope of a pause, its owner, times and reason."""
    what = "scaling" if pause.scope is PauseScope.ALL else f"scale-{pause.scope}"
    after = "; the pin is followed when the pause ends" if pinned else ""
    return f"{what} paused {paused_by(pause, now)}{after}"


def paused_by(pause: Pause, now: float) -> str:
    """Return the owner of a pause, its times and reason."""
    return f"by {pause.owner} since {utc(pause.since, now)} {pause.end(lambda at: utc(at, now))} ({pause.reason})"


def pinned_by(pin: Pin, now: float) -> str:
    """Return the owner of a pin, its times and reason."""
    return f"by {pin.owner} since {utc(pin.since, now)} until {utc(pin.until, now)} ({pin.reason})"


def _pin_sentence(pin: Pin, now: float) -> str:
    return f"pinned {pinned_by(pin, now)}"


pause_and_pin = Rail("pause_and_pin", Power.REPLACE, _pause_and_pin)


@rail(Power.VETO)
def leader_epoch(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 15: only the process that holds the leader epoch may change anything."""
    for index, _, asked in changing(proposal, context):
        if not context.leader:
            yield held(context, index, asked, Reason.NOT_LEADER, "another process leads; this one only watches")


@rail(Power.VETO)
def mode(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 16: in observe mode nothing is done: the effect's `before` is what act mode would do, `after` what is."""
    for index, _, asked in changing(proposal, context):
        if context.mode is not Mode.ACT:
            yield held(context, index, asked, Reason.OBSERVE_MODE, "observe mode: act mode would do this")
