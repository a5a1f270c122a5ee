"""Events of a fleet's state: inputs lost or back, capacity marks set or over, values outside the training range."""

from __future__ import annotations

import math

from agent.autoscaling.policies.ppo_lstm import outside_training
from agent.autoscaling.snapshot.aggregate import BIN_S
from agent.models.card import SCORER_MEMORY
from agent.rails.state import LoopState
from domain.decisions import Event, Reason
from domain.observations.autoscaling import obs_v2_names
from domain.observations.autoscaling_scorer import STATE_FEATURES
from domain.snapshot import Snapshot
from domain.subject import fleet_subject


def state_events(
    fleet: str,
    before: LoopState,
    after: LoopState,
    snapshot: Snapshot | None,
    now: float,
    listening_since: float = -math.inf,
) -> tuple[Event, ...]:
    """Return an event for each input lost or back, each capacity mark set or over, and values outside training.

    A group that cannot be managed, and one that can again, is an event too. An input counts as lost from the first
    minute on that this process listened to as a whole.

    Marks that are over have left `after.capacity` (see `agent.autoscaling.intents.state_after_intents`).
    """
    events = []
    begins = math.inf if snapshot is None else snapshot.bin_end - BIN_S
    is_first = begins - BIN_S < listening_since <= begins and before.last_bin_end != after.last_bin_end
    if (
        snapshot is not None
        and after.stale_bins > 0
        and begins >= listening_since
        and (is_first or before.stale_bins == 0)
    ):
        what = ", ".join(snapshot.absent) or f"coverage {snapshot.coverage:.0%}"
        events.append(Event(fleet_subject(fleet), now, Reason.METRICS_LOST, f"input lost: {what}; holding", what))
    # One minute without it, at the start, was no loss.
    if before.stale_bins > (1 if is_first else 0) and after.stale_bins == 0:
        events.append(
            Event(fleet_subject(fleet), now, Reason.METRICS_RETURNED, f"input back after {before.stale_bins} min")
        )
    if after.unsupported and after.unsupported != before.unsupported:
        detail = f"the fleet is held, none of its groups is sized: {after.unsupported}"
        events.append(Event(fleet_subject(fleet), now, Reason.GROUP_UNSUPPORTED, detail))
    if before.unsupported and not after.unsupported:
        events.append(
            Event(fleet_subject(fleet), now, Reason.GROUP_SUPPORTED, "every group of the fleet can be managed again")
        )
    old = {(mark.vm_type, mark.zone): mark for mark in before.capacity}
    new = {(mark.vm_type, mark.zone): mark for mark in after.capacity}
    for (vm_type, zone), mark in new.items():
        if (vm_type, zone) not in old:
            place = f"{vm_type} in {zone or 'any zone'}"
            reason, detail = Reason.CAPACITY_LOST, f"AWS has no {place}"
            if mark.failing:
                reason = Reason.LAUNCHES_FAILING
                detail = f"VMs of {place} end before they are in service: see the group's scaling activities, then its "
                detail += "launch hooks, image and health checks"
            events.append(
                Event(
                    fleet_subject(fleet),
                    now,
                    reason,
                    f"{detail}; not asked for again within {mark.length_s:.0f} s",
                    place,
                )
            )
    for vm_type, zone in old:
        if (vm_type, zone) not in new:
            place = f"{vm_type} in {zone or 'any zone'}"
            events.append(
                Event(fleet_subject(fleet), now, Reason.CAPACITY_RETURNED, f"{place} may be asked for again", place)
            )
    return (*events, *_about_training(fleet, before, after, snapshot, now))


def _about_training(
    fleet: str, before: LoopState, after: LoopState, snapshot: Snapshot | None, now: float
) -> tuple[Event, ...]:
    """Return an event when the learned policy leaves or enters the range of its training."""
    old, new = outside_training(before.memory), outside_training(after.memory)
    if new - old and snapshot is not None:
        # A scorer sees the fleet by other features than a network does, and more of them.
        scores = any(key.endswith(f".{SCORER_MEMORY}") for key in after.memory)
        names = STATE_FEATURES if scores else obs_v2_names(len(snapshot.groups))
        what = ", ".join(names[position] for position in sorted(new))
        return (
            Event(
                fleet_subject(fleet),
                now,
                Reason.OUTSIDE_TRAINING,
                f"inputs of the learned policy lie outside the training range: {what}",
            ),
        )
    if old and not new:
        return (
            Event(
                fleet_subject(fleet),
                now,
                Reason.WITHIN_TRAINING,
                "inputs of the learned policy are in the training range again",
            ),
        )
    return ()
