"""Rail 6: at most so many VMs of one group per decision, absolute or as a percentage of its size, per direction."""

from __future__ import annotations

import math

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import Word, changing, conclude, shrunk, vms
from domain.decisions import Proposal, RailEffect, Reason

NAME = "step_limit"


def largest_step(current: int, absolute: int, percent: float) -> int:
    """Return how many VMs a decision may add or remove: `absolute` or, if larger, `percent` of current, floored."""
    return max(absolute, math.floor(current * percent / 100.0 + 1e-9))


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Shrink every change to the largest step; pins and the safe floor walk to their size in steps too.

    A group outside AWS's own bounds may go back to them at once: AWS refuses every size in between.
    """
    limits = context.limits
    words: list[Word] = []
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
            words.append(shrunk(context, index, asked, allowed, Reason.STEP_LIMIT, why))
    return conclude(NAME, proposal, words)


RAIL = Rail(NAME, Power.SHRINK, apply)
