"""Rails 1 to 3: a decision needs sizes and input that can be judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Final

import numpy as np

from agent.rails.base import (
    Power,
    Rail,
    RailContext,
    RailLimits,
    Word,
    changing,
    conclude,
    held,
    passed,
    rail,
    replaced,
)
from domain.decisions import Origin, Proposal, RailEffect, Reason, Verdict
from domain.snapshot import Snapshot

SCALE_IN_WAITS: Final = "no VM reports: scale-in waits"


def snapshot_fits(context: RailContext) -> bool:
    """Return whether the snapshot has the fleet's groups in its order, as every other rail takes for granted."""
    return tuple(g.key for g in context.snapshot.groups) == tuple(g.key for g in context.fleet.groups)


def _finite_and_schema(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Rail 1: a proposal has one finite whole number of at least zero per group of the fleet, or current sizes stay.

    Veto the whole proposal when it cannot be read; whole numbers of other types (3.0, numpy integers) become int.

    The effect of a veto has the current sizes as `before`, for what was proposed may not be numbers; the detail shows
    it.
    """
    fault = _fault(proposal, context)
    if fault is None:
        return passed("finite_and_schema", replace(proposal, desired=tuple(int(value) for value in proposal.desired)))
    reason, why = fault
    current = context.snapshot.requested
    detail = f"fleet {context.fleet.name} held at {current}: {why}"
    return replace(proposal, desired=current), RailEffect(
        "finite_and_schema", Verdict.VETOED, current, current, reason, detail
    )


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


finite_and_schema = Rail("finite_and_schema", Power.VETO, _finite_and_schema)


def input_fault(snapshot: Snapshot, limits: RailLimits) -> tuple[Reason, str] | None:
    """Return why the snapshot cannot carry a decision (STALE_INPUT or LOW_COVERAGE, and a sentence), else None.

    An input that is absent counts only if it is needed, which is what `stale_bins` counts. Age counts only while a warm
    VM exists: a fleet at zero has no VM that could report.
    """
    if snapshot.stale_bins > 0 and snapshot.absent:
        return Reason.STALE_INPUT, f"absent: {', '.join(snapshot.absent)}"
    if sum(snapshot.warm) > 0:
        if snapshot.age_s is None:
            return Reason.STALE_INPUT, f"no sample was ever received from {sum(snapshot.warm)} warm VMs"
        if not snapshot.age_s <= limits.max_age_s:
            return (
                Reason.STALE_INPUT,
                f"the newest sample is {snapshot.age_s:.0f} s old, at most {limits.max_age_s:.0f} s",
            )
    if not snapshot.coverage >= limits.min_coverage:
        return (
            Reason.LOW_COVERAGE,
            f"{snapshot.coverage:.0%} of the warm VMs report, at least {limits.min_coverage:.0%} must",
        )
    if snapshot.stale_bins > 0:
        return Reason.STALE_INPUT, "a needed input is absent"
    return None


def _staleness_and_coverage(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Rail 2: without fresh input nothing changes; after some minutes of that the fleet is raised to its safe floor.

    Hold the current sizes; after more than `hold_bins` minutes of that, max(current, safe floor). Without VM reports,
    where the policy needs none, hold scale-in alone.
    """
    limits = context.limits
    fault = input_fault(context.snapshot, limits)
    if fault is None:
        if not context.snapshot.without_reports:
            return conclude("staleness_and_coverage", proposal, ())
        kept = [
            held(context, index, asked, Reason.NO_VM_REPORTS, SCALE_IN_WAITS)
            for index, current, asked in changing(proposal, context)
            if asked < current
        ]
        return conclude("staleness_and_coverage", proposal, kept)
    reason, why = fault
    bins = context.snapshot.stale_bins
    floored = bins > limits.hold_bins
    words: list[Word] = []
    for index, (current, asked) in enumerate(zip(context.snapshot.requested, proposal.desired, strict=True)):
        floor = limits.safe_floor[index] if floored and index < len(limits.safe_floor) else 0
        if floor > current and floor != asked:
            because = f"{why}, for {bins} minutes; the safe floor applies"
            words.append(replaced(context, index, asked, floor, Reason.SAFE_FLOOR, because))
        elif floor <= current and asked != current:
            words.append(held(context, index, asked, reason, why))
    after, effect = conclude("staleness_and_coverage", proposal, words)
    if floored:
        after = replace(after, origin=Origin.FLOOR, reason=Reason.SAFE_FLOOR, detail=why, counts_pending=True)
    return after, effect


staleness_and_coverage = Rail("staleness_and_coverage", Power.REPLACE, _staleness_and_coverage)


def sickness_of(snapshot: Snapshot, limits: RailLimits) -> str | None:
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


@rail(Power.VETO)
def sickness(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 3: no scale-in while too much of the fleet is unhealthy, silent or overdue: its load cannot be judged then.

    Hold every scale-in of a sick fleet; scale-out goes on.
    """
    why = sickness_of(context.snapshot, context.limits)
    if why is not None:
        for index, current, asked in changing(proposal, context):
            if asked < current:
                yield held(context, index, asked, Reason.FLEET_SICK, why)
