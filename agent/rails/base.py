"""The contract of a rail: from proposal and context to proposal and effect, and how it says what it did to a group.

An effect has one sentence for people, whatever happened to how many groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from typing import Any

from agent.rails.state import LoopState, puts_back
from domain.controls import Controls, Window
from domain.decisions import Direction, Mode, Origin, Proposal, RailEffect, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import Snapshot


def _limit(record: Any, description: str, **about: Any) -> Any:
    """Return a field that is a setting too.

    record: its value in records without it. about: bounds (ge, gt, le), and the setting's default where it differs.
    One entry of the metadata, for pydantic would check a record's limits by bounds under their own names.
    """
    return field(default=record, metadata={"setting": {"default": record, "description": description, **about}})


@dataclass(frozen=True, slots=True)
class RailLimits:
    """One fleet's limits. Each field with a description is a setting of the fleet; this is the one list of them.

    safe_floor: desired per group after `hold_bins` minutes on absent input. spares: VMs named beside a scale-in's
    victims, each of which may go in place of one that may not.
    """

    min_coverage: float = _limit(
        0.5, "Share of warm VMs that must report, else the minute counts as absent.", ge=0, le=1
    )
    max_age_s: float = _limit(150.0, "Oldest age of the newest measurement.", gt=0, le=3600)
    hold_bins: int = _limit(3, "Minutes held on absent measurements before the safe floor applies.", ge=1, le=60)
    safe_floor: tuple[int, ...] = ()
    sick_share: float = _limit(
        0.45,
        "No scale-in when more than this share of VMs is unhealthy, silent or overdue (see `SICK_COUNT`).",
        ge=0,
        le=1,
    )
    sick_count: int = _limit(
        3, "Fewer unhealthy, silent or overdue VMs than this never stop a scale-in.", ge=1, le=1000
    )
    max_step_out: int = _limit(5, "Most VMs of one group added by one decision.", ge=1, le=1000)
    max_step_in: int = _limit(2, "Most VMs of one group removed by one decision.", ge=1, le=1000)
    max_step_out_percent: float = _limit(
        0.0,
        "`MAX_STEP_OUT` as a percentage of the group's size; the larger of the two counts. 0: not used.",
        ge=0,
        le=1000,
    )
    max_step_in_percent: float = _limit(
        0.0,
        "`MAX_STEP_IN` as a percentage of the group's size; the larger of the two counts. 0: not used.",
        ge=0,
        le=100,
    )
    cooldown_out_s: float = _limit(
        300.0, "Time after an addition of VMs to a group without another one.", ge=0, le=86_400
    )
    cooldown_in_s: float = _limit(
        300.0, "Time after a removal of VMs from a group without another one.", ge=0, le=86_400
    )
    boot_deadline_s: float = _limit(300.0, "A VM that has not reported by then is overdue.", gt=0, le=86_400)
    stop_deadline_s: float = _limit(180.0, "A removal that AWS has not begun by then is abandoned.", gt=0, le=86_400)
    max_replacements: int = _limit(
        3, "Interrupted spot VMs drained and replaced per group and minute. 0: none.", ge=0, le=1000
    )
    # Older records have none, and are replayed so.
    max_replacements_percent: float = _limit(
        0.0,
        "`MAX_REPLACEMENTS` as a percentage of the group's size; the larger of the two counts, and VMs "
        "whose notice ends before the next minute are drained at once, in any number. 0: not used.",
        ge=0,
        le=100,
        default=50.0,
    )
    spares: int = 0
    in_periods: int = _limit(3, "Minutes in a row that must propose a scale-in before it is executed.", ge=1, le=240)
    min_lifetime_s: float = _limit(300.0, "Younger VMs are not removed.", ge=0, le=604_800)
    max_reversals: int = _limit(4, "Changes of direction allowed per group in an hour.", ge=0, le=60)
    budget_per_hour: float | None = _limit(
        None, "The fleet does not grow beyond this. Not set: no limit.", gt=0, le=1e6
    )
    budget_per_day: float | None = _limit(
        None, "The fleet does not grow when the day (UTC) would cost more. Not set: no limit.", gt=0, le=1e8
    )
    capacity_memory_s: float = _limit(
        600.0, "Time for which a shortage of a VM type in a zone is remembered.", ge=0, le=86_400
    )
    breaker_failures: int = _limit(3, "Failures in a row that open the circuit breaker of a group.", ge=1, le=100)
    breaker_open_s: float = _limit(
        300.0, "Time that the breaker stays open at first; it doubles with each failed attempt.", gt=0, le=86_400
    )
    breaker_max_s: float = _limit(1800.0, "Longest time that the breaker stays open.", gt=0, le=86_400)
    count_booting: bool = _limit(True, "Subtract booting VMs from the increases of a policy that does not count them.")


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

    def in_progress(self, index: int, direction: Direction) -> bool:
        """Return whether an earlier change of the group holds one in this direction."""
        key = self.fleet.groups[index].key
        return key in self.in_flight or (key in self.booting and direction is Direction.IN)


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
