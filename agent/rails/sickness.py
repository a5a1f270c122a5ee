"""Rail 3: no scale-in while too much of the fleet is unhealthy, silent or overdue: its load cannot be judged then."""

from __future__ import annotations

from agent.rails.base import Power, Rail, RailContext, RailLimits
from agent.rails.effects import changing, conclude, held
from domain.decisions import Proposal, RailEffect, Reason
from domain.snapshot import Snapshot

NAME = "sickness"


def sickness(snapshot: Snapshot, limits: RailLimits) -> str | None:
    """Return in a sentence why the fleet counts as sick, or None.

    Sick: at least `sick_count` VMs and more than `sick_share` of the fleet. A VM that is both unhealthy and silent
    counts twice, which errs on the side of keeping VMs.
    """
    total = sum(max(group.requested, group.in_service) for group in snapshot.groups)
    unhealthy = sum(group.unhealthy for group in snapshot.groups)
    silent = sum(group.silent for group in snapshot.groups)
    overdue = sum(group.overdue for group in snapshot.groups)
    sick = min(total, unhealthy + silent + overdue)
    if sick < max(1, limits.sick_count) or sick <= limits.sick_share * total:
        return None
    return (
        f"{sick} of {total} VMs are sick ({unhealthy} unhealthy, {silent} silent, {overdue} overdue), "
        f"more than {limits.sick_share:.0%}"
    )


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold every scale-in of a sick fleet; scale-out goes on."""
    why = sickness(context.snapshot, context.limits)
    if why is None:
        return conclude(NAME, proposal, ())
    shrinking = [(index, desired) for index, current, desired in changing(proposal, context) if desired < current]
    return conclude(NAME, proposal, [held(context, index, asked, Reason.FLEET_SICK, why) for index, asked in shrinking])


RAIL = Rail(NAME, Power.VETO, apply)
