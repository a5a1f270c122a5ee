"""Rail 2: without fresh input nothing changes; after some minutes of that the fleet is raised to its safe floor."""

from __future__ import annotations

from dataclasses import replace

from agent.rails.base import Power, Rail, RailContext, RailLimits
from agent.rails.effects import Word, conclude, held, replaced
from domain.decisions import Origin, Proposal, RailEffect, Reason
from domain.snapshot import Snapshot

NAME = "staleness_and_coverage"


def input_fault(snapshot: Snapshot, limits: RailLimits) -> tuple[Reason, str] | None:
    """Return why the snapshot cannot carry a decision (STALE_INPUT or LOW_COVERAGE, and a sentence), else None.

    An input that is absent counts only if it is needed, which is what `stale_bins` counts. Age counts only while a warm
    VM exists: a fleet at zero has nobody who could report.
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


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold the current sizes; after more than `hold_bins` minutes of that, max(current, safe floor)."""
    limits = context.limits
    fault = input_fault(context.snapshot, limits)
    if fault is None:
        return conclude(NAME, proposal, ())
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
    after, effect = conclude(NAME, proposal, words)
    if floored:
        after = replace(after, origin=Origin.FLOOR, reason=Reason.SAFE_FLOOR, detail=why, counts_pending=True)
    return after, effect


RAIL = Rail(NAME, Power.REPLACE, apply)
