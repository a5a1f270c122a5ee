"""Rail 7: after a change of a group the same direction rests; the other direction is never held by it."""

from __future__ import annotations

import math

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import Word, changing, conclude, held, unhurried
from domain.decisions import Direction, Proposal, RailEffect, Reason

NAME = "cooldown"


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


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold changes whose direction is cooling down; pins and the safe floor are not held."""
    words: list[Word] = []
    for index, current, asked in changing(proposal, context):
        direction = Direction.OUT if asked > current else Direction.IN
        left = remaining_s(context, index, direction)
        if left > 0.0 and unhurried(proposal, context, index):
            why = f"cooling down for another {math.ceil(left)} s after the last scale-{direction}"
            words.append(held(context, index, asked, Reason.COOLING_DOWN, why))
    return conclude(NAME, proposal, words)


RAIL = Rail(NAME, Power.VETO, apply)
