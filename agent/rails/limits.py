"""Rails 6, 7 and 13: what sizes and steps the settings and the Auto Scaling group admit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agent.rails.base import Power, RailContext, Word, changing, held, rail, replaced, shrunk
from agent.rails.inputs import input_fault, sickness_of
from agent.rails.permissions import pause_of
from domain.decisions import Direction, Proposal, Reason
from domain.fleet import vms


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


@rail(Power.REPLACE)
def bounds(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 6: sizes stay between minimum and maximum, ours and the Auto Scaling group's as read this tick.

    Clamp every group to its bounds, also where the current size lies outside them.

    A correction that none asked for opens no direction that an earlier rail holds: a group above its maximum is not
    shrunk on stale input, on a sick fleet or while scale-in is paused, and one below its minimum is not raised while
    scale-out is paused.
    """
    for index, (current, asked) in enumerate(zip(context.snapshot.requested, proposal.desired, strict=True)):
        lowest, highest = bounds_of(context, index)
        desired = min(max(asked, lowest), highest)
        if (desired < current <= asked and scale_in_is_held(context)) or (
            desired > current >= asked and pause_of(context, Direction.OUT) is not None
        ):
            desired = current
        if desired != asked:
            reason = Reason.BELOW_MINIMUM if desired > asked else Reason.ABOVE_MAXIMUM
            yield replaced(context, index, asked, desired, reason, _sentence(context, index, reason))


def scale_in_is_held(context: RailContext) -> bool:
    """Return whether no correction may take VMs: on unusable input, without reports, on a sick fleet, under a pause."""
    return (
        context.snapshot.without_reports
        or input_fault(context.snapshot, context.limits) is not None
        or sickness_of(context.snapshot, context.limits) is not None
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


def largest_step(current: int, absolute: int, percent: float) -> int:
    """Return how many VMs a decision may add or remove: `absolute` or, if larger, `percent` of current, floored."""
    return max(absolute, math.floor(current * percent / 100.0 + 1e-9))


@rail(Power.SHRINK)
def step_limit(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 7: at most so many VMs of one group per decision, absolute or as a percentage of its size, per direction.

    Shrink every change to the largest step; pins and the safe floor walk to their size in steps too.

    A group outside AWS's own bounds may go back to them at once: AWS refuses every size in between.
    """
    limits = context.limits
    for index, current, asked in changing(proposal, context):
        aws = context.snapshot.groups[index]
        if asked > current:
            step = largest_step(current, limits.max_step_out, limits.max_step_out_percent)
            allowed = min(asked, max(current + step, aws.minimum))
            why = f"at most {vms(step)} out per decision"
        else:
            step = largest_step(current, limits.max_step_in, limits.max_step_in_percent)
            allowed = max(asked, min(current - step, aws.maximum))
            why = f"at most {vms(step)} in per decision"
        if allowed != asked:
            yield shrunk(context, index, asked, allowed, Reason.STEP_LIMIT, why)


@rail(Power.VETO)
def group_state(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 13: what the group would not carry out is not begun: suspended processes, instance refresh, refused sizes.

    Hold increases while Launch is suspended, decreases while Terminate is suspended or a refresh runs (no drain).

    A change that shrinking left outside AWS's own bounds is held too: AWS would refuse the call.
    """
    for index, current, asked in changing(proposal, context):
        group = context.snapshot.groups[index]
        reason: Reason | None = None
        why = ""
        if asked > current and "Launch" in group.suspended:
            reason, why = Reason.LAUNCH_SUSPENDED, "the group's Launch process is suspended"
        elif asked < current and "Terminate" in group.suspended:
            reason, why = Reason.TERMINATE_SUSPENDED, "the group's Terminate process is suspended; no drain is begun"
        elif asked < current and group.refreshing:
            reason, why = Reason.REFRESH_IN_PROGRESS, "an instance refresh is in progress; no drain is begun"
        elif not aws_accepts(context, index, asked):
            reason = Reason.BELOW_MINIMUM if asked < group.minimum else Reason.ABOVE_MAXIMUM
            why = f"AWS accepts only {group.minimum}..{group.maximum}"
        if reason is not None:
            yield held(context, index, asked, reason, why)
