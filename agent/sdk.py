"""The names for packages and notebooks: to write a plug-in, to load a model, to read a ledger.

Everything else in the agent may change without notice. docs/operate/plug-ins.md describes the four kinds of plug-ins,
docs/architecture.md a decision. `read_decisions` and `Ledger.open(url)` serve notebooks; `load_model` verifies a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actuators.base import Act, ChangingCall, Held, Permit, Refusal, change
from actuators.outcomes import Report, achieved
from agent.autoscaling.plug_ins import ActuatorHost, ActuatorKind, CollectorHost, CollectorKind
from agent.autoscaling.policies.base import Policy, spelled
from agent.kernel.decision import Capacity, Card, Check, Chore, Decision, Host, Observation, Part, Status, Turn
from agent.kernel.metrics import Section, counter, gauge, histogram
from agent.kernel.store import DecisionStore, Record
from agent.kernel.transaction import Conflict, Write, commit, retried
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import Ledger, codec
from agent.rails.state import Memory
from collectors.aws import AwsSession
from collectors.base import Collector, SampleSink
from collectors.inventory import Inventory
from domain.decisions import Direction, Event, Intent, Mode, Outcome, Proposal, Reason
from domain.errors import BadInput, CloudError, Fenced, LedgerError, LedgerUnavailable, TrimtabError, UnknownName
from domain.fleet import Fleet, Group, VmType
from domain.observed import Observed
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries
from domain.snapshot import Snapshot
from domain.subject import AGENT, Subject

__all__ = [
    "AGENT",
    "Act",
    "ActuatorHost",
    "ActuatorKind",
    "AwsSession",
    "BadInput",
    "Capacity",
    "Card",
    "ChangingCall",
    "Check",
    "Chore",
    "CloudError",
    "Collector",
    "CollectorHost",
    "CollectorKind",
    "Conflict",
    "Decision",
    "DecisionStore",
    "Direction",
    "Event",
    "Fenced",
    "Fleet",
    "Group",
    "Held",
    "Host",
    "Intent",
    "Inventory",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Memory",
    "Mode",
    "Observation",
    "Observed",
    "Outcome",
    "Part",
    "Permit",
    "Policy",
    "Proposal",
    "QueueMetric",
    "QueueSeries",
    "Reason",
    "Record",
    "Refusal",
    "Report",
    "Sample",
    "SampleSink",
    "Section",
    "Severity",
    "Snapshot",
    "Status",
    "Subject",
    "TrimtabError",
    "Turn",
    "TurnReport",
    "UnknownName",
    "VmMetric",
    "VmSeries",
    "VmType",
    "Write",
    "achieved",
    "change",
    "commit",
    "counter",
    "gauge",
    "histogram",
    "load_model",
    "read_decisions",
    "retried",
    "spelled",
]


def load_model(path: Path) -> Any:
    """Return the verified model of a file; BadInput gives the reason of a refusal."""
    from agent.models.file import load_model  # it loads the ONNX runtime, which few plug-ins need

    return load_model(path)


def read_decisions(url: str, decision: str, subject: str | None = None, *, limit: int = 1000) -> Iterator[Any]:
    """Yield the newest decisions of a ledger as plain data, the newest first: id, subject, time and recorded body.

    url: as TRIMTAB_LEDGER_URL. The ledger is only read. LedgerError when it cannot be opened.
    """
    with Ledger.open(url, read_only=True) as ledger:
        for record in DecisionStore(ledger.database).newest(decision, subject, limit=limit):
            about = {"decision_id": record.decision_id, "subject": record.subject, "at": record.at}
            yield {**about, **codec.decode_mapping(record.body)}
