"""A turn of an agent that does not lead: it measures as the leader does, so that it can take over, and does no more."""

from __future__ import annotations

import structlog

from agent.autoscaling.ports import Ports, TickReport
from agent.autoscaling.state import LoopState
from domain.decisions import Reason
from domain.errors import BadInput, LedgerError, LedgerReplaced
from domain.snapshot import Snapshot

log = structlog.get_logger(__name__)


def watch(now: float, ports: Ports) -> TickReport:
    """Fold the minute of every fleet that can be read; nothing is decided, recorded or changed.

    Without the ledger it goes on measuring, as if nothing were remembered, and the report says so.
    """
    fleets = [managed.fleet for managed in ports.fleets]
    observed = ports.actuator.observe(fleets, now)
    failure, reason = None, Reason.LEDGER_UNAVAILABLE
    states: dict[str, LoopState] = {}
    try:
        ports.ledger.check_same()
        states = ports.ledger.loop_states([fleet.name for fleet in fleets])
    except LedgerError as error:
        failure = str(error)
        reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else reason
    snapshots: list[Snapshot] = []
    for managed in ports.fleets:
        state = states.get(managed.fleet.name, LoopState())
        try:
            snapshot, _ = ports.aggregator.snapshot(managed.fleet, observed, state, managed.aggregation, now)
        except BadInput:
            # A group that could not be read: the next minute tries again.
            continue
        except Exception:
            log.exception("fleet_failed", fleet=managed.fleet.name)
            continue
        snapshots.append(snapshot)
    return TickReport(now, tuple(snapshots), failure=failure, failure_reason=reason)
