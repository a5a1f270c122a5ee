"""Drift: what somebody else changed behind us, seen by comparing what we last asked with what is there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from domain.decisions import Event, Reason
from domain.fleet import Fleet
from domain.observed import Observed


class DriftRule(StrEnum):
    """Whether a size that somebody else set is taken as ours from now on, or announced as something to look into."""

    ADOPT = "adopt"
    REPORT = "report"


def drift(
    fleet: Fleet,
    known_desired: Mapping[str, int],
    observed: Observed,
    in_flight: Collection[str],
    rule: DriftRule,
    now: float,
) -> tuple[tuple[Event, ...], dict[str, int]]:
    """Return an event for each group whose desired capacity nobody here set, and the sizes known now, by group key.

    A group with an open intent, or not read in this tick, is left as known. Each change is told once, under either
    rule: what was told becomes known, so that the same difference does not come up in every tick.
    """
    events: list[Event] = []
    known = {group.key: known_desired[group.key] for group in fleet.groups if group.key in known_desired}
    for group in fleet.groups:
        seen = observed.groups.get(group.name)
        if seen is None or group.key in in_flight:
            continue
        before = known.get(group.key)
        known[group.key] = seen.desired
        if before is None or before == seen.desired:
            continue
        adopted = rule is DriftRule.ADOPT
        detail = f"somebody set {group.key} ({group.name}) from {before} to {seen.desired}: "
        detail += "taken as it is" if adopted else "find out who else scales this group"
        reason = Reason.DRIFT_ADOPTED if adopted else Reason.DRIFT_REPORTED
        events.append(Event(fleet.name, now, reason, detail, group.key))
    return tuple(events), known
