"""How rails speak: what happened to single groups, folded to one effect with a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.autoscaling.state import puts_back
from agent.rails.base import RailContext
from domain.decisions import Origin, Proposal, RailEffect, Reason, Verdict

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


def vms(count: int) -> str:
    """Return '1 VM' or 'n VMs'."""
    return f"{count} VM" if count == 1 else f"{count} VMs"


def _key(context: RailContext, index: int) -> str:
    return context.fleet.groups[index].key


def _sentence(words: Sequence[Word]) -> str:
    told: dict[str, list[str]] = {}
    for word in words:
        told.setdefault(word.why, []).append(word.what)
    parts = []
    for why, whats in told.items():
        numbers = ", ".join(what for what in whats if what)
        parts.append(f"{numbers}: {why}" if numbers and why else numbers or why)
    return "; ".join(part for part in parts if part)
