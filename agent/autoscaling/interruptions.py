"""Takes in notices of VMs that the cloud is about to take back, each VM once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent.autoscaling.ports import Ports
from agent.autoscaling.state import LoopState
from collectors.interruptions import Interruption, InterruptionKind
from domain.decisions import Event, Mode, Reason
from domain.errors import Fenced, LedgerError
from domain.fleet import Fleet
from domain.observed import Lifecycle, Observed

log = structlog.get_logger(__name__)

AGENT = ""
"""The fleet under which the agent's own events stand."""


def read_interruptions(
    now: float, ports: Ports, states: dict[str, LoopState], observed: Observed, events: list[Event]
) -> Sequence[Interruption]:
    """Put new notices into the states of the fleets whose VMs they name; each VM counts once.

    Returns those that may be forgotten once that is recorded. A notice of a VM that no group shows is forgotten too, it
    is somebody else's, but not while a group cannot be read: the VM may be in there, and the notice comes again.
    """
    if ports.interruptions is None or ports.mode is not Mode.ACT:
        return ()
    try:
        notices = ports.interruptions.receive(now)
    except (LedgerError, Fenced):
        raise
    except Exception as error:
        # The queue is everybody's: its trouble must not cost any fleet its minute.
        log.exception("notices_failed")
        detail = f"spot notices could not be read this minute: {type(error).__name__}: {error}"
        events.append(Event(AGENT, now, Reason.INTERNAL_ERROR, detail))
        return ()
    homes = {
        instance.vm: managed.fleet
        for managed in ports.fleets
        for group in managed.fleet.groups
        if group.name in observed.groups
        for instance in observed.groups[group.name].instances
    }
    settled = []
    for notice in notices:
        fleet = homes.get(notice.vm)
        if fleet is None and observed.failures:
            continue
        settled.append(notice)
        if fleet is None:
            continue
        state = states[fleet.name]
        if notice.vm in state.interrupted or notice.vm in state.seen_interruptions:
            continue
        if notice.kind is InterruptionKind.REBALANCE:
            detail = f"AWS hints that {notice.vm} is at risk; it is not replaced before its notice comes"
            events.append(Event(fleet.name, now, Reason.REBALANCE_HINT, detail, notice.vm))
            continue
        if notice.kind is not InterruptionKind.SPOT:
            continue
        states[fleet.name] = replace(state, interrupted={**state.interrupted, notice.vm: now})
        detail = f"AWS takes {notice.vm} back within two minutes: to be drained and replaced"
        events.append(Event(fleet.name, now, Reason.SPOT_INTERRUPTION, detail, notice.vm))
    return settled


def interrupted_vms(fleet: Fleet, state: LoopState, observed: Observed) -> tuple[tuple[str, str], ...]:
    """Return (group key, VM) of the fleet's VMs in service whose notice has not been acted on yet."""
    return tuple(
        (group.key, instance.vm)
        for group in fleet.groups
        if group.name in observed.groups
        for instance in observed.groups[group.name].instances
        if instance.vm in state.interrupted and instance.lifecycle is Lifecycle.IN_SERVICE
    )
