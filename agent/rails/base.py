"""The contract of a rail: from proposal and context to proposal and effect, and how it says what it did to a group.

An effect has one sentence for people, whatever happened to how many groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps

from agent.rails.state import LoopState, puts_back
from domain.controls import Controls, Window
from domain.decisions import Mode, Origin, Proposal, RailEffect, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RailLimits:
    """One fleet's limits, from its settings.

    min_coverage: share of warm VMs that must report. max_age_s: oldest usable newest sample. hold_bins: minutes held on
    absent input before the safe floor applies. safe_floor: desired per group then (max(current, floor)). sick_share,
    sick_count: no scale-in when more than this share, and at least this many VMs, are unhealthy, silent or overdue.
    max_step_out/in and *_percent: VMs of one group per decision, absolute and as a percentage of the current size (the
    larger of the two allows; 0 % = only the absolute one counts). cooldown_out_s, cooldown_in_s: per group and
    direction. boot_deadline_s: a VM that has not reported by then is overdue. stop_deadline_s: a removal that AWS has
    not begun by then is given up. max_replacements, max_replacements_percent: interrupted VMs drained and replaced per
    group and minute, absolute and as a percentage of its size (the larger of the two allows; those whose notice ends
    before the next minute are drained beyond that; at 0 % only the absolute one counts, whatever they leave).
    in_periods: proposals in a row before scale-in. min_lifetime_s: younger VMs are not removed. max_reversals: changes
    of direction allowed per group in an hour. budget_per_hour, budget_per_day: dollars, None = no limit.
    capacity_memory_s: how long a (type, zone) shortage is remembered. breaker_failures: failures in a row that open the
    breaker; breaker_open_s:
    for how long at first, doubling to breaker_max_s. spares: VMs named beside a scale-in's victims, each of which may
    go in place of one that may not. count_booting: take VMs that boot off the increases of a policy
    that had not counted them.
    """

    min_coverage: float = 0.5
    max_age_s: float = 150.0
    hold_bins: int = 3
    safe_floor: tuple[int, ...] = ()
    sick_share: float = 0.45
    sick_count: int = 3
    max_step_out: int = 5
    max_step_in: int = 2
    max_step_out_percent: float = 0.0
    max_step_in_percent: float = 0.0
    cooldown_out_s: float = 300.0
    cooldown_in_s: float = 300.0
    boot_deadline_s: float = 300.0
    stop_deadline_s: float = 180.0
    max_replacements: int = 3
    max_replacements_percent: float = 0.0
    spares: int = 0
    in_periods: int = 3
    min_lifetime_s: float = 300.0
    max_reversals: int = 4
    budget_per_hour: float | None = None
    budget_per_day: float | None = None
    capacity_memory_s: float = 600.0
    breaker_failures: int = 3
    breaker_open_s: float = 300.0
    breaker_max_s: float = 1800.0
    count_booting: bool = True


@dataclass(frozen=True, slots=True)
class RailContext:
    """Everything a rail may look at. `in_flight` are the keys of groups with an open intent.

    `booting` are those of groups whose scale-out boots, which a larger size may supersede and a smaller one may not.
    `leader` whether this process holds the epoch. `windows` of the fleet's schedule, open or to come.
    """

    now: float
    fleet: Fleet
    snapshot: Snapshot
    state: LoopState
    controls: Controls
    limits: RailLimits
    mode: Mode
    leader: bool
    in_flight: tuple[str, ...] = ()
    booting: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()


class Power(StrEnum):
    """What a rail may do.

    Only refuse (an admission is all or nothing), also shrink a change, or also set another size.
    """

    VETO = "veto"
    SHRINK = "shrink"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Rail:
    """A named rail, what it may do, and the function that does it."""

    name: str
    power: Power
    apply: Callable[[Proposal, RailContext], tuple[Proposal, RailEffect]]


def rail(power: Power) -> Callable[[Callable[[Proposal, RailContext], Iterable[Word]]], Rail]:
    """Return the decorator that makes a rail of a function of its name, which yields what becomes of single groups."""

    def made(function: Callable[[Proposal, RailContext], Iterable[Word]]) -> Rail:
        @wraps(function)
        def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
            return conclude(function.__name__, proposal, tuple(function(proposal, context)))

        return Rail(function.__name__, power, apply)

    return made


# An effect that did several things at once is named after the first of these.
_LOUDEST_FIRST = (Verdict.MOVED, Verdict.VETOED, Verdict.RAISED, Verdict.SHRUNK)


@dataclass(frozen=True, slots=True)
class Word:
    """What a rail did to the group at `index`: its desired size afterwards, `what` happened in numbers, and `why`."""

    index: int
    desired: int
    verdict: Verdict
    reason: Reason
    what: str
    why: str


def held(context: RailContext, index: int, asked: int, reason: Reason, why: str) -> Word:
    """Return the word that sets the group back to its current size."""
    current = context.snapshot.groups[index].requested
    what = f"{_key(context, index)} {current} -> {asked} held at {current}"
    return Word(index, current, Verdict.VETOED, reason, what, why)


def shrunk(context: RailContext, index: int, asked: int, allowed: int, reason: Reason, why: str) -> Word:
    """Return the word that makes the group's change smaller; a change shrunk to nothing is held."""
    current = context.snapshot.groups[index].requested
    if allowed == current:
        return held(context, index, asked, reason, why)
    what = f"{_key(context, index)} {current} -> {asked} shrunk to {allowed}"
    return Word(index, allowed, Verdict.SHRUNK, reason, what, why)


def replaced(context: RailContext, index: int, asked: int, desired: int, reason: Reason, why: str) -> Word:
    """Return the word that sets the group to another size than was asked."""
    current = context.snapshot.groups[index].requested
    verdict = Verdict.RAISED if desired > asked else Verdict.SHRUNK
    what = f"{_key(context, index)} {current} -> {asked} {'raised' if desired > asked else 'lowered'} to {desired}"
    return Word(index, desired, verdict, reason, what, why)


def passed(rail: str, proposal: Proposal) -> tuple[Proposal, RailEffect]:
    """Return the proposal as it is, with the effect that says so."""
    return proposal, RailEffect(rail, Verdict.PASSED, proposal.desired, proposal.desired)


def conclude(rail: str, proposal: Proposal, words: Sequence[Word]) -> tuple[Proposal, RailEffect]:
    """Return the proposal with every word carried out, and the one effect that tells of them all."""
    after = list(proposal.desired)
    for word in words:
        after[word.index] = word.desired
    if tuple(after) == proposal.desired:
        return passed(rail, proposal)
    loudest = min(words, key=lambda word: _LOUDEST_FIRST.index(word.verdict))
    effect = RailEffect(rail, loudest.verdict, proposal.desired, tuple(after), loudest.reason, _sentence(words))
    return replace(proposal, desired=tuple(after)), effect


def changing(proposal: Proposal, context: RailContext) -> tuple[tuple[int, int, int], ...]:
    """Return (index, current, desired) of every group whose size the proposal would change."""
    pairs = zip(context.snapshot.requested, proposal.desired, strict=True)
    return tuple((index, current, desired) for index, (current, desired) in enumerate(pairs) if current != desired)


def unhurried(proposal: Proposal, context: RailContext, index: int) -> bool:
    """Return whether cool-down, warm-up and flap guard apply.

    Not to the safe floor, to pinned groups, and to putting right what a former leader's late call did.
    """
    current, asked = context.snapshot.requested[index], proposal.desired[index]
    if puts_back(context.state.put_back, _key(context, index), current, asked):
        return False
    if proposal.origin is Origin.FLOOR:
        return False
    if proposal.origin is Origin.PIN:
        pin = context.controls.pin
        return pin is not None and pin.active(context.now) and _key(context, index) not in pin.desired
    return True


def utc(at: float, now: float | None = None) -> str:
    """Return the time of day as HH:MM:SS UTC, with the date in front when `now` is given and lies on another day."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
        other_day = now is not None and moment.date() != datetime.fromtimestamp(now, UTC).date()
    except (OverflowError, OSError, ValueError):
        return "a time beyond the calendar"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC" if other_day else "%H:%M:%S UTC")


def _key(context: RailContext, index: int) -> str:
    return context.fleet.groups[index].key


def _sentence(words: Sequence[Word]) -> str:
    reasons: dict[str, list[str]] = {}
    for word in words:
        reasons.setdefault(word.why, []).append(word.what)
    parts = []
    for why, whats in reasons.items():
        numbers = ", ".join(what for what in whats if what)
        parts.append(f"{numbers}: {why}" if numbers and why else numbers or why)
    return "; ".join(part for part in parts if part)
