"""Rail 1: a proposal has one finite whole number of at least zero per group of the fleet, or current sizes stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from agent.rails.base import Power, Rail, RailContext
from agent.rails.effects import passed
from domain.decisions import Proposal, RailEffect, Reason, Verdict

NAME = "finite_and_schema"


def snapshot_fits(context: RailContext) -> bool:
    """Return whether the snapshot has the fleet's groups in its order, as every other rail takes for granted."""
    return tuple(g.key for g in context.snapshot.groups) == tuple(g.key for g in context.fleet.groups)


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Veto the whole proposal when it cannot be read; whole numbers of other types (3.0, numpy integers) become int.

    The effect of a veto has the current sizes as `before`, for what was proposed may not be numbers; the detail shows
    it.
    """
    fault = _fault(proposal, context)
    if fault is None:
        return passed(NAME, replace(proposal, desired=tuple(int(value) for value in proposal.desired)))
    reason, why = fault
    current = context.snapshot.requested
    detail = f"fleet {context.fleet.name} held at {current}: {why}"
    return replace(proposal, desired=current), RailEffect(NAME, Verdict.VETOED, current, current, reason, detail)


def _fault(proposal: Proposal, context: RailContext) -> tuple[Reason, str] | None:
    if not snapshot_fits(context):
        seen, wanted = ([g.key for g in groups] for groups in (context.snapshot.groups, context.fleet.groups))
        return Reason.SCHEMA_MISMATCH, f"the snapshot has the groups {seen}, the fleet {wanted}"
    if proposal.fleet != context.fleet.name:
        return Reason.SCHEMA_MISMATCH, f"the proposal is for the fleet {proposal.fleet}"
    desired: Sequence[object] = proposal.desired
    if len(desired) != len(context.fleet.groups):
        return Reason.SCHEMA_MISMATCH, f"{len(desired)} sizes proposed for {len(context.fleet.groups)} groups"
    for group, value in zip(context.fleet.groups, desired, strict=True):
        shown = repr(value)[:40]
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
            return Reason.SCHEMA_MISMATCH, f"{group.key} = {shown} is not a number"
        if not isinstance(value, Integral) and not math.isfinite(value):
            return Reason.NOT_FINITE, f"{group.key} = {shown} is not finite"
        if value < 0 or value % 1 != 0:
            return Reason.SCHEMA_MISMATCH, f"{group.key} = {shown} is not a whole number of at least 0"
    return None


RAIL = Rail(NAME, Power.VETO, apply)
