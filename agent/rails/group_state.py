"""Rail 12: what the group would not carry out is not begun: suspended processes, instance refresh, refused sizes."""

from __future__ import annotations

from agent.rails.base import Power, Rail, RailContext
from agent.rails.bounds import aws_accepts
from agent.rails.effects import Word, changing, conclude, held
from domain.decisions import Proposal, RailEffect, Reason

NAME = "group_state"


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold increases while Launch is suspended, decreases while Terminate is suspended or a refresh runs (no drain).

    A change that shrinking left outside AWS's own bounds is held too: AWS would refuse the call.
    """
    words: list[Word] = []
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
            words.append(held(context, index, asked, reason, why))
    return conclude(NAME, proposal, words)


RAIL = Rail(NAME, Power.VETO, apply)
