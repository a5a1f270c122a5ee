"""Turns the difference between two minutes of loop state into events people want to read."""

from __future__ import annotations

from agent.autoscaling.policies.ppo_lstm import outside_training
from agent.autoscaling.state import LoopState
from domain.decisions import Event, Reason
from domain.observations.autoscaling import obs_v2_names
from domain.snapshot import Snapshot


def happenings(
    fleet: str, before: LoopState, after: LoopState, snapshot: Snapshot | None, now: float
) -> tuple[Event, ...]:
    """Return an event for each input lost or back, each capacity mark set or over, and for leaving what training saw.

    A group that cannot be managed, and one that can again, is an event too.

    Marks that are over have left `after.capacity` (see `agent.autoscaling.intents.state_after_intents`).
    """
    events = []
    if snapshot is not None and before.stale_bins == 0 and after.stale_bins > 0:
        what = ", ".join(snapshot.absent) or f"coverage {snapshot.coverage:.0%}"
        events.append(Event(fleet, now, Reason.METRICS_LOST, f"input lost: {what}; holding", what))
    if before.stale_bins > 0 and after.stale_bins == 0:
        events.append(Event(fleet, now, Reason.METRICS_RETURNED, f"input back after {before.stale_bins} min"))
    if after.unsupported and after.unsupported != before.unsupported:
        detail = f"the fleet is held, nothing is sent to its groups: {after.unsupported}"
        events.append(Event(fleet, now, Reason.GROUP_UNSUPPORTED, detail))
    if before.unsupported and not after.unsupported:
        events.append(Event(fleet, now, Reason.GROUP_SUPPORTED, "every group of the fleet can be managed again"))
    old = {(mark.vm_type, mark.zone): mark for mark in before.capacity}
    new = {(mark.vm_type, mark.zone): mark for mark in after.capacity}
    for (vm_type, zone), mark in new.items():
        if (vm_type, zone) not in old:
            place = f"{vm_type} in {zone or 'any zone'}"
            detail = f"AWS has no {place}; not asked for again within {mark.length_s:.0f} s"
            events.append(Event(fleet, now, Reason.CAPACITY_LOST, detail, place))
    for vm_type, zone in old:
        if (vm_type, zone) not in new:
            place = f"{vm_type} in {zone or 'any zone'}"
            events.append(Event(fleet, now, Reason.CAPACITY_RETURNED, f"{place} may be asked for again", place))
    return (*events, *_about_training(fleet, before, after, snapshot, now))


def _about_training(
    fleet: str, before: LoopState, after: LoopState, snapshot: Snapshot | None, now: float
) -> tuple[Event, ...]:
    """Return an event when the learned policy begins or ceases to see what its training did not."""
    old, new = outside_training(before.memory), outside_training(after.memory)
    if new - old and snapshot is not None:
        names = obs_v2_names(len(snapshot.groups))
        what = ", ".join(names[position] for position in sorted(new))
        return (Event(fleet, now, Reason.OUTSIDE_TRAINING, f"the learned policy sees what training did not: {what}"),)
    if old and not new:
        return (Event(fleet, now, Reason.WITHIN_TRAINING, "the learned policy sees what training saw again"),)
    return ()
