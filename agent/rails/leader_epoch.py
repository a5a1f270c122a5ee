"""Rail 14: only the process that holds the leader epoch may change anything."""

from __future__ import annotations

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import changing, conclude, held
from domain.decisions import Proposal, RailEffect, Reason

NAME = "leader_epoch"


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold every change while another process leads."""
    if context.leader:
        return conclude(NAME, proposal, ())
    why = "another process leads; this one only watches"
    changes = changing(proposal, context)
    return conclude(
        NAME, proposal, [held(context, index, asked, Reason.NOT_LEADER, why) for index, _, asked in changes]
    )


RAIL = Rail(NAME, Power.VETO, apply)
