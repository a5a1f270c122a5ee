"""Rails 8 to 10: rests between changes, and patience before a scale-in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from agent.rails.base import Power, Rail, RailContext, Word, changing, conclude, held, rail, shrunk, unhurried
from agent.rails.limits import bounds_of
from agent.rails.schedule import scheduled
from agent.rails.state import LoopState
from domain.decisions import Direction, Proposal, RailEffect, Reason, refusals_text
from domain.fleet import vms
from domain.snapshot import Snapshot

REVERSAL_WINDOW_S = 3600.0


def remaining_s(context: RailContext, index: int, direction: Direction) -> float:
    """Return the seconds left of the group's cool-down in the direction: the longer of stored and snapshot's."""
    group = context.snapshot.groups[index]
    left = group.cooldown_out_s if direction is Direction.OUT else group.cooldown_in_s
    stored = (
        cooldown.remaining_s(context.now)
        for cooldown in context.state.cooldowns
        if cooldown.group == group.key and cooldown.direction is direction
    )
    return max(left, *stored, 0.0)


@rail(Power.VETO)
def cooldown(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 8: after a change of a group the same direction rests; the other direction is never held by it.

    Hold changes whose direction is cooling down; pins and the safe floor are not held.
    """
    for index, current, asked in changing(proposal, context):
        direction = Direction.OUT if asked > current else Direction.IN
        left = remaining_s(context, index, direction)
        if left > 0.0 and unhurried(proposal, context, index):
            why = f"cooling down for another {math.ceil(left)} s after the last scale-{direction}"
            yield held(context, index, asked, Reason.COOLING_DOWN, why)


def _warmup(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Rail 9: capacity on its way counts once, and a group with an open intent is left alone.

    Hold groups with an open intent; take booting VMs off increases of a proposer that had not counted them.

    Afterwards the proposal says that pending capacity is counted, so that a second pass takes nothing off again. The
    open intent also holds pins and the safe floor (a group has one open intent at most); the counting does not.
    The minimum is not reduced: it is a size that includes booting VMs. Whether a group scales in while VMs boot is the
    policy's own parameter; overdue VMs no longer count, so that a VM that never comes is asked for again.
    """
    words: list[Word] = []
    least = scheduled(context.snapshot.requested, context)
    for index, current, asked in changing(proposal, context):
        group = context.snapshot.groups[index]
        if context.in_progress(index, Direction.OUT if asked > current else Direction.IN):
            why = "an earlier change of the group is still in progress"
            words.append(held(context, index, asked, Reason.IN_FLIGHT, why))
        elif (
            asked > current
            and group.booting > 0
            and not proposal.counts_pending
            and context.limits.count_booting
            and unhurried(proposal, context, index)
        ):
            lowest = max(bounds_of(context, index)[0], least[index])
            allowed = max(current, asked - group.booting, min(asked, lowest))
            if allowed != asked:
                why = f"{vms(group.booting)} booting already"
                words.append(shrunk(context, index, asked, allowed, Reason.WARMING_UP, why))
    after, effect = conclude("warmup", proposal, words)
    return replace(after, counts_pending=True), effect


warmup = Rail("warmup", Power.SHRINK, _warmup)


def next_in_streak(state: LoopState, proposal: Proposal, snapshot: Snapshot) -> Mapping[str, int]:
    """Return per group key the minutes in a row, this one included, in which the POLICY's proposal asks for fewer VMs.

    Takes the proposal as the policy made it, before any rail; one with another number of groups proposes nothing.
    """
    fits = len(proposal.desired) == len(snapshot.groups)
    desired = proposal.desired if fits else snapshot.requested
    return {
        group.key: state.in_streak.get(group.key, 0) + 1 if wanted < group.requested else 0
        for group, wanted in zip(snapshot.groups, desired, strict=True)
    }


def reversals(state: LoopState, group: str, now: float, upcoming: Direction) -> int:
    """Return how often the group changed direction within the last hour, `upcoming` included.

    Changes stamped up to an hour ahead count too: setting the clock back does not refill the budget.
    """
    recent = [
        change.direction
        for change in state.changes
        if change.group == group
        and change.direction is not Direction.REPLACE
        and abs(now - change.at) < REVERSAL_WINDOW_S
    ]
    turns = [*recent, upcoming]
    return sum(earlier is not later for earlier, later in pairwise(turns))


@rail(Power.SHRINK)
def flap_guard(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 10: scale-in waits for several proposals in a row, spares young and busy VMs, and ends when a group flaps.

    Hold or shrink scale-ins. Scale-out is never held, neither by the streak nor by the reversal budget.

    What is above the group's maximum, or a window's, may go without streak or reversal budget. A pin skips streak,
    lifetime and reversal budget, but takes no VM that is not listed as removable: a scale-in names its victims.
    """
    for index, current, asked in changing(proposal, context):
        if asked < current:
            allowed, reason, why = _allowed(proposal, context, index)
            if allowed != asked:
                yield shrunk(context, index, asked, allowed, reason, why)


def _allowed(proposal: Proposal, context: RailContext, index: int) -> tuple[int, Reason, str]:
    """Return the size the group may shrink to, with the reason of the tightest limit."""
    limits, group, asked = context.limits, context.snapshot.groups[index], proposal.desired[index]
    allowed, reason, why = asked, Reason.NOTHING_TO_DO, ""
    if unhurried(proposal, context, index):
        most = min(bounds_of(context, index)[1], scheduled(context.snapshot.requested, context)[index])
        stable = min(group.requested, most)
        streak = context.state.in_streak.get(group.key, 0)
        turns = reversals(context.state, group.key, context.now, Direction.IN)
        if streak < limits.in_periods and stable > allowed:
            why = f"scale-in proposed {streak} of {limits.in_periods} times in a row"
            allowed, reason = stable, Reason.NOT_YET_STABLE
        elif turns > limits.max_reversals and stable > allowed:
            why = f"{turns} changes of direction within an hour, at most {limits.max_reversals}"
            allowed, reason = stable, Reason.REVERSAL_BUDGET
        if group.requested - group.mature > allowed:
            why = f"only {vms(group.mature)} older than {limits.min_lifetime_s:.0f} s"
            allowed, reason = group.requested - group.mature, Reason.TOO_YOUNG
    if group.requested - len(group.removable) > allowed:
        others = f"{refusals_text(group.refused)}; " if group.refused else ""
        why = f"only {vms(len(group.removable))} may be removed, {others}the others are busy, silent or unhealthy"
        allowed = group.requested - len(group.removable)
        reason = group.refused[0].reason if group.refused else Reason.BUSY
    return min(allowed, group.requested), reason, why
