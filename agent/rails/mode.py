"""Rail 15: in observe mode nothing is done; the effect keeps what would have been."""

from __future__ import annotations

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import changing, conclude, held
from domain.decisions import Mode, Proposal, RailEffect, Reason

NAME = "mode"


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold every change in observe mode: the effect's `before` is what act mode would do, `after` the current sizes."""
    if context.mode is Mode.ACT:
        return conclude(NAME, proposal, ())
    why = "observe mode: this is what act mode would do"
    changes = changing(proposal, context)
    words = [held(context, index, asked, Reason.OBSERVE_MODE, why) for index, _, asked in changes]
    return conclude(NAME, proposal, words)


RAIL = Rail(NAME, Power.VETO, apply)
