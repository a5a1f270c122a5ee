"""Rail 8: capacity on its way counts once, and a group with an open intent is left alone.

The rail only counts. Whether a group scales in while VMs boot is the policy's own parameter; overdue VMs no longer
count, so that a VM that never comes is asked for again.
"""

from __future__ import annotations

from dataclasses import replace

from agent.rails.base import Power, Rail, RailContext
from agent.rails.bounds import bounds_of
from agent.rails.effects import Word, changing, conclude, held, shrunk, unhurried, vms
from domain.decisions import Proposal, RailEffect, Reason

NAME = "warmup"


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold groups with an open intent; take booting VMs off increases of a proposer that had not counted them.

    Afterwards the proposal says that pending capacity is counted, so that a second pass takes nothing off again. The
    open intent also holds pins and the safe floor (a group has one open intent at most); the counting does not.
    The minimum is not reduced: it is a size that includes booting VMs.
    """
    words: list[Word] = []
    for index, current, asked in changing(proposal, context):
        group = context.snapshot.groups[index]
        if group.key in context.in_flight:
            why = "an earlier change of the group is still under way"
            words.append(held(context, index, asked, Reason.IN_FLIGHT, why))
        elif (
            asked > current
            and group.booting > 0
            and not proposal.counts_pending
            and context.limits.count_booting
            and unhurried(proposal, context, index)
        ):
            allowed = max(current, asked - group.booting, min(asked, bounds_of(context, index)[0]))
            if allowed != asked:
                why = f"{vms(group.booting)} booting already"
                words.append(shrunk(context, index, asked, allowed, Reason.WARMING_UP, why))
    after, effect = conclude(NAME, proposal, words)
    return replace(after, counts_pending=True), effect


RAIL = Rail(NAME, Power.SHRINK, apply)
