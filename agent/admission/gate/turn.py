"""One turn of the gate: what was read, the records as they are now, and the events of it, each one once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import structlog

from actuators.base import Permit
from agent.admission.gate.records import Effect, GroupRecord, group_records
from agent.admission.state import ADMISSION
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.capacity_memory import record_shortage
from agent.rails.circuit_breaker import record_outcome
from agent.rails.state import GuardState
from collectors.tagged_groups import ClusterGroup
from domain.decisions import Event, Outcome, Reason
from domain.errors import Fenced, LedgerError
from domain.subject import Subject

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class GateTurn:
    """What a turn works on, by group name, and what it has to tell. asked: pending groups that were decided on.

    unreadable: see `ClusterGroups`.
    permit: asked right before every changing call of this turn.
    """

    now: float
    leads: Leads
    groups: Mapping[str, ClusterGroup]
    records: dict[str, GroupRecord]
    permit: Permit
    events: list[Event] = field(default_factory=list)
    asked: int = 0
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def epoch_of(self, cluster: str) -> int:
        """Return the epoch of a cluster, or that of any other one for a cluster that the settings do not have."""
        epoch = self.leads.of(Subject(ADMISSION, cluster))
        return min(self.leads.numbers) if epoch is None else epoch

    def has_group(self, record: GroupRecord) -> ClusterGroup | None:
        """Return the record's group if it is still in the record's cluster."""
        group = self.groups.get(record.group)
        return group if group is not None and group.cluster == record.cluster else None

    def is_unknown(self, record: GroupRecord) -> bool:
        """Return whether the record's group was not read although it may be there: then nothing is known of it."""
        return record.group not in self.groups and (record.group in self.unreadable or "" in self.unreadable)


class GateJournal:
    """Writes records and events of the gate. What was reported last of a subject is reported anew once it changes."""

    def __init__(self, ledger: Ledger, limits: RailLimits) -> None:
        self._records, self._limits = group_records(ledger), limits
        self._reported: dict[str, tuple[Reason, str]] = {}

    def write(self, turn: GateTurn, record: GroupRecord, effect: Effect | None = None) -> None:
        """Put a record in the place of its group's older one, with the event and the memory that come with it."""
        before = turn.records.get(record.group)
        goes_on = before is not None and (before.number, before.cluster) == (record.number, record.cluster)
        recorded = before.told if before is not None and goes_on else ""
        events: list[Event] = []
        if effect is not None and effect.reason is not None and effect.reason.value != recorded:
            recorded = effect.reason.value
            events = [self._event(turn, record.cluster, effect.reason, effect.detail, record.group)]
        record = replace(record, told=recorded)
        memories = self._memories(record, effect.outcome if effect is not None else None, turn.now)
        if record != before or memories:
            self._records.write({record.group: record}, events, memories, epoch=turn.epoch_of(record.cluster))
        turn.records[record.group] = record
        turn.events += events
        self._reported.pop(_key(record.cluster, record.group), None)

    def begin(self, turn: GateTurn, record: GroupRecord, reason: Reason, detail: str) -> None:
        """Put the record of a decision in place; the decision itself is in the journal already, written with it."""
        record = replace(record, told=reason.value)
        self._records.write({record.group: record}, epoch=turn.epoch_of(record.cluster))
        turn.records[record.group] = record
        turn.events.append(self._event(turn, record.cluster, reason, f"{record.decision_id}: {detail}", record.group))
        self._reported.pop(_key(record.cluster, record.group), None)

    def remember(self, turn: GateTurn, memories: Mapping[str, GuardState], step_s: float) -> None:
        """Write what the rails remember of clusters after the clock was set by `step_s` seconds, with an event each."""
        direction = "forward" if step_s > 0 else "back"
        step = f"the clock was set {direction} by {abs(step_s):.0f} s" if step_s else "the clock was set back"
        detail = f"{step}; stored times moved with it"
        events = [self._event(turn, name, Reason.CLOCK_JUMP, detail, name) for name in memories]
        self._records.write({}, events, memories, epoch=turn.epoch_of(next(iter(memories))))
        turn.events += events

    def say(self, turn: GateTurn, cluster: str, subject: str, reason: Reason, detail: str) -> None:
        """Report an event of which no record is made, once until it changes."""
        if self._reported.get(_key(cluster, subject)) == (reason, detail):
            return
        events = [self._event(turn, cluster, reason, detail, subject)]
        self._records.write({}, events, epoch=turn.epoch_of(cluster))
        self._reported[_key(cluster, subject)] = (reason, detail)
        turn.events += events

    @contextmanager
    def alone(self, turn: GateTurn, cluster: str, subject: str) -> Iterator[None]:
        """Keep an unexpected error in the block to this subject: an event reports it, the turn goes on."""
        try:
            yield
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            log.exception("gate_failed_for_one", cluster=cluster, subject=subject)
            detail = f"{subject}: its part of the turn was cut short: {type(error).__name__}: {error}"
            self.say(turn, cluster, subject, Reason.INTERNAL_ERROR, detail)

    def over(self, cluster: str, subject: str) -> None:
        """Let what was reported of a subject be reported again when it comes back."""
        self._reported.pop(_key(cluster, subject), None)

    def _event(self, turn: GateTurn, cluster: str, reason: Reason, detail: str, subject: str) -> Event:
        return Event(Subject(ADMISSION, cluster), turn.now, reason, f"{cluster}: {detail}", subject)

    def _memories(self, record: GroupRecord, outcome: Outcome | None, now: float) -> Mapping[str, GuardState]:
        if outcome is None or not outcome.status.final:
            return {}
        memory = self._records.memory(record.cluster)
        after = replace(
            memory,
            capacity=record_shortage(memory.capacity, outcome.shortages, now, self._limits),
            breakers=record_outcome(memory.breakers, record.group, outcome, self._limits, now),
        )
        return {} if after == memory else {record.cluster: after}


def _key(cluster: str, subject: str) -> str:
    return f"{cluster}/{subject}"
