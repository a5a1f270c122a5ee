"""Rail 5: sizes stay between minimum and maximum, ours and the Auto Scaling group's as read this tick."""

from __future__ import annotations

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import Word, conclude, replaced
from agent.rails.pause_and_pin import pause_of
from agent.rails.sickness import sickness
from agent.rails.staleness_and_coverage import input_fault
from domain.decisions import Direction, Proposal, RailEffect, Reason

NAME = "bounds"


def bounds_of(context: RailContext, index: int) -> tuple[int, int]:
    """Return the group's (minimum, maximum): the overlap of ours and AWS's.

    Without an overlap AWS's bounds win, for AWS refuses anything else; the end nearest to ours counts.
    """
    ours, aws = context.fleet.groups[index], context.snapshot.groups[index]
    lowest, highest = (min(max(value, aws.minimum), aws.maximum) for value in (ours.minimum, ours.maximum))
    return lowest, max(lowest, highest)


def aws_accepts(context: RailContext, index: int, desired: int) -> bool:
    """Return whether AWS's own bounds, as read this tick, admit the size."""
    aws = context.snapshot.groups[index]
    return aws.minimum <= desired <= aws.maximum


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Clamp every group to its bounds, also where the current size lies outside them.

    A correction that nobody asked for opens no direction that an earlier rail holds: a group above its maximum is not
    shrunk on stale input, on a sick fleet or while scale-in is paused, and one below its minimum is not raised while
    scale-out is paused.
    """
    words: list[Word] = []
    for index, (current, asked) in enumerate(zip(context.snapshot.requested, proposal.desired, strict=True)):
        lowest, highest = bounds_of(context, index)
        desired = min(max(asked, lowest), highest)
        if (desired < current <= asked and _scale_in_is_held(context)) or (
            desired > current >= asked and pause_of(context, Direction.OUT) is not None
        ):
            desired = current
        if desired != asked:
            reason = Reason.BELOW_MINIMUM if desired > asked else Reason.ABOVE_MAXIMUM
            words.append(replaced(context, index, asked, desired, reason, _sentence(context, index, reason)))
    return conclude(NAME, proposal, words)


def _scale_in_is_held(context: RailContext) -> bool:
    return (
        input_fault(context.snapshot, context.limits) is not None
        or sickness(context.snapshot, context.limits) is not None
        or pause_of(context, Direction.IN) is not None
    )


def _sentence(context: RailContext, index: int, reason: Reason) -> str:
    ours, aws = context.fleet.groups[index], context.snapshot.groups[index]
    lowest, highest = bounds_of(context, index)
    if aws.minimum > ours.maximum or aws.maximum < ours.minimum:
        return (
            f"AWS's bounds {aws.minimum}..{aws.maximum} lie outside ours {ours.minimum}..{ours.maximum} "
            "and win, because AWS refuses anything else"
        )
    if reason is Reason.BELOW_MINIMUM:
        return f"the minimum is {lowest} (ours {ours.minimum}, AWS {aws.minimum})"
    return f"the maximum is {highest} (ours {ours.maximum}, AWS {aws.maximum})"


RAIL = Rail(NAME, Power.REPLACE, apply)
