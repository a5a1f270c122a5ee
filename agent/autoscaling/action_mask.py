"""What physics forbids a group this minute: the action mask that a learned policy is given.

Bounds, minimum, cool-down, changes under way and capacity memory count; the flap guard, the budget and whatever else
the rails add are no physics, and a policy is not told of them (autoscaler specification §4, §13). The words come from
the rails' own functions, so that a mask and a rail never differ on what they both know.
"""

from __future__ import annotations

import math
from dataclasses import replace

from agent.rails.base import RailContext
from agent.rails.bounds import bounds_of
from agent.rails.capacity_memory import shortage_until
from agent.rails.cooldown import remaining_s
from agent.rails.finite_and_schema import snapshot_fits
from domain.decisions import Direction
from domain.snapshot import Snapshot

UNDER_WAY = "an earlier change is under way"


def with_bars(context: RailContext) -> Snapshot:
    """Return the snapshot with why each group can now get no VM, and why it can lose none."""
    snapshot = context.snapshot
    if not snapshot_fits(context):
        return snapshot
    bars = [(_cannot_add(context, index), _cannot_remove(context, index)) for index in range(len(snapshot.groups))]
    groups = tuple(
        replace(group, cannot_add=out, cannot_remove=back) if out or back else group
        for group, (out, back) in zip(snapshot.groups, bars, strict=True)
    )
    return replace(snapshot, groups=groups)


def _cannot_add(context: RailContext, index: int) -> str:
    group, (_, highest) = context.snapshot.groups[index], bounds_of(context, index)
    until = shortage_until(context, index)
    if group.key in context.in_flight:
        return UNDER_WAY
    if group.requested >= highest:
        return f"{group.requested} of at most {highest} are there"
    return _cooling(context, index, Direction.OUT) or (
        "" if until is None else f"AWS has none for another {until - context.now:.0f} s"
    )


def _cannot_remove(context: RailContext, index: int) -> str:
    group, (lowest, _) = context.snapshot.groups[index], bounds_of(context, index)
    if group.key in context.in_flight:
        return UNDER_WAY
    if group.warm <= lowest:
        return f"{group.warm} ready of at least {lowest}"
    return _cooling(context, index, Direction.IN)


def _cooling(context: RailContext, index: int, direction: Direction) -> str:
    left_s = remaining_s(context, index, direction)
    return f"cooling down for another {math.ceil(left_s)} s" if left_s > 0.0 else ""
