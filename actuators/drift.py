"""Drift: sizes that another party changed, found by comparing the last request with the observed group. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from domain.decisions import Event, Reason
from domain.fleet import Fleet
from domain.observed import Observed
from domain.subject import fleet_subject


class DriftRule(StrEnum):
    """Whether a size that another party set is adopted, or reported for an operator to look into."""

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
    """Return an event for each group whose size this agent did not set, and the sizes known now, by group key.

    A group with an open intent, or not read in this tick, is left as known. Each change is reported once, under either
    rule: a reported size becomes known, so that the same difference is not reported in every tick.
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
        detail = f"another party set {group.key} ({group.name}) from {before} to {seen.desired}: "
        detail += "adopted" if adopted else "find the other party that scales this group"
        reason = Reason.DRIFT_ADOPTED if adopted else Reason.DRIFT_REPORTED
        events.append(Event(fleet_subject(fleet.name), now, reason, detail, group.key))
    return tuple(events), known
