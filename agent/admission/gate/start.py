"""Makes the gate that the settings ask for, and turns it after the loop without letting its troubles reach the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from agent.admission.clusters import Clusters
from agent.admission.gate.gate import Gate
from agent.admission.gate.turn import AGENT
from agent.autoscaling.ports import TickReport
from agent.ledger import Ledger
from agent.settings import Settings
from agent.settings.admission import gate_terms
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.errors import Fenced, LedgerError
from domain.fleet import Fleet

log = structlog.get_logger(__name__)


def gate_of(settings: Settings, session: AwsSession, ledger: Ledger, clusters: Clusters, clock: Clock) -> Gate | None:
    """Return the gate before the clusters of tagged groups, None when there is no such cluster."""
    gated = {name: cluster for name, cluster in settings.clusters.items() if cluster.tagged_groups}
    if not gated:
        return None
    services = {name: clusters[name] for name in gated}
    terms = {name: gate_terms(one) for name, one in gated.items()}
    return Gate(session, ledger, services, terms, settings.mode, clock)


def gated(gate: Gate, report: TickReport, epoch: int, fleets: Sequence[Fleet]) -> TickReport:
    """Turn the gate after the loop's turn and return the report of both."""
    if report.failure is not None:
        return report
    try:
        events = gate.turn(report.at, epoch, fleets, report.outcomes)
    except (LedgerError, Fenced) as error:
        log.error("gate_stopped", detail=str(error))
        return replace(report, failure=str(error))
    except Exception as error:
        log.exception("gate_failed")
        detail = f"the gate's turn was cut short: {type(error).__name__}: {error}"
        events = (Event(AGENT, report.at, Reason.INTERNAL_ERROR, detail),)
    return replace(report, events=(*report.events, *events))
