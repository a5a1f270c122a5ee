"""Rail 9: scale-in waits for several proposals in a row, spares young and busy VMs, and ends when a group flaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from agent.autoscaling.state import LoopState
from agent.rails.base import Power, Rail, RailContext
from agent.rails.bounds import bounds_of
from agent.rails.effects import Word, changing, conclude, shrunk, unhurried, vms
from domain.decisions import Direction, Proposal, RailEffect, Reason
from domain.snapshot import Snapshot

NAME = "flap_guard"
REVERSAL_WINDOW_S = 3600.0


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


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold or shrink scale-ins. Scale-out is never held, neither by the streak nor by the reversal budget.

    A group above its maximum may return to it without streak or reversal budget. A pin skips streak, lifetime and
    reversal budget, but takes no VM that is not listed as removable: a scale-in names its victims.
    """
    words: list[Word] = []
    for index, current, asked in changing(proposal, context):
        if asked < current:
            allowed, reason, why = _allowed(proposal, context, index)
            if allowed != asked:
                words.append(shrunk(context, index, asked, allowed, reason, why))
    return conclude(NAME, proposal, words)


def _allowed(proposal: Proposal, context: RailContext, index: int) -> tuple[int, Reason, str]:
    """Return the size the group may shrink to, with the reason of the tightest limit."""
    limits, group, asked = context.limits, context.snapshot.groups[index], proposal.desired[index]
    allowed, reason, why = asked, Reason.NOTHING_TO_DO, ""
    if unhurried(proposal, context, index):
        stable = min(group.requested, bounds_of(context, index)[1])
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
        why = f"only {vms(len(group.removable))} may be removed, the others are busy, silent or unhealthy"
        allowed, reason = group.requested - len(group.removable), Reason.BUSY
    return min(allowed, group.requested), reason, why


RAIL = Rail(NAME, Power.SHRINK, apply)
