"""What the HTTP interface answers with: frozen records, from which its OpenAPI description is made too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.autoscaling.status import FleetStatus
from agent.view.parts import Check
from domain.decisions import Decision


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the loop turns: seconds since the last turn ended, how many are too many, and a sentence."""

    ok: bool
    detail: str
    last_turn_age_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the agent can do its work, whether it leads or stands by, and each condition."""

    ready: bool
    role: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The agent and each of its fleets at `at` (epoch seconds); counts are since the start.

    problems: by the name of what has one, a sentence for a person to look into. ledger_failure: why the last turn could
    execute nothing, "" when it could.
    """

    at: float
    version: str
    mode: str
    tick_interval_s: float
    started_at: float
    last_turn_at: float | None
    last_turn_duration_s: float
    turns: int
    failed_turns: int
    rescued_turns: int
    overran_turns: int
    leader: bool
    epoch: int
    stopping: bool
    ledger_failure: str
    problems: Mapping[str, str]
    fleets: tuple[FleetStatus, ...]


@dataclass(frozen=True, slots=True)
class ListedDecision:
    """A decision and its number in the journal, without the inputs."""

    seq: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """Decisions, the newest first; give `next_before_seq` as `before_seq` for older ones, None at the end."""

    decisions: tuple[ListedDecision, ...]
    next_before_seq: int | None


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row of the journal: a decision, intent, outcome, event or change of settings, as it was recorded."""

    seq: int
    at: float
    fleet: str
    kind: str
    ref: str
    reason: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Journal rows in order; give `next_since_seq` as `since_seq` for what came after, at any later time."""

    events: tuple[JournalRow, ...]
    next_since_seq: int


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How a collector has fared; `ok` is whether its last collection succeeded. Counts are since the start."""

    name: str
    ok: bool
    successes: int
    failures: int
    overruns: int
    skipped: int
    refused: int
    last_success_at: float | None
    last_duration_s: float | None
    last_error: str


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """What the Graphite listener took and refused since the start, with the last refused line of each reason."""

    accepted: int
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    connections_open: int
    connections_opened: int
    connections_refused: int
    connections_idled_out: int
    connections_displaced: int
    connections_foreign: int
    datagrams: int
    datagrams_foreign: int


@dataclass(frozen=True, slots=True)
class InputStatus:
    """The collectors and the listener."""

    collectors: tuple[CollectorStatus, ...]
    listener: ListenerStatus


@dataclass(frozen=True, slots=True)
class VmReport:
    """Whether a VM reports: `last_sample_at` is the time of its newest reading, None when it never reported."""

    group: str
    vm: str
    reporting: bool
    last_sample_at: float | None
